"""The article's and the tutorial's script, repaired, on torch DDP with gloo.

    torchrun --nproc-per-node 2 benchmarks/baselines/ddp.py imdb --data ARCHIVE --epochs 5

Rank 0 prints one JSON line per epoch: seconds of training, samples per second, test accuracy.
"""

import argparse
import gc
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from jobs import job


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=["imdb", "mnist"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--tokenised", action="store_true", help="tokenise before training, not in every epoch")
    parser.add_argument("--sync", choices=["ddp", "tutorial"], default="ddp")
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


def average_gradients(model: nn.Module) -> None:
    """The tutorial's own way: one blocking all-reduce per parameter."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad, op=dist.ReduceOp.SUM)
        parameter.grad /= dist.get_world_size()


def main() -> None:
    given = arguments()
    dist.init_process_group("gloo")
    work = job(given.job, given.data, limit=given.limit, tokenised=given.tokenised, seed=given.seed)
    model = DistributedDataParallel(work.model) if given.sync == "ddp" else work.model
    optimizer = work.optimizer(model.parameters())
    sampler = DistributedSampler(work.train_set, seed=given.seed)
    loader = DataLoader(work.train_set, batch_size=work.per_rank, sampler=sampler, collate_fn=work.collate)
    torch.manual_seed(given.seed + dist.get_rank())
    for epoch in range(given.epochs):
        sampler.set_epoch(epoch)
        model.train()
        dist.barrier()
        started, cpu = time.perf_counter(), time.process_time()
        for batch in loader:
            target, x = batch if work.swap else batch[::-1]
            optimizer.zero_grad()
            loss = work.loss(model(x), target)
            loss.backward()
            if given.sync == "tutorial":
                average_gradients(model)
            if work.clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), work.clip)
            optimizer.step()
        dist.barrier()
        train_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        accuracy = evaluate(work)
        if dist.get_rank() == 0:
            rate = len(work.train_set) / train_s
            line = {"epoch": epoch + 1, "train_s": train_s, "samples_per_s": rate, "accuracy": accuracy, "cpu_s": cpu_s}
            print(json.dumps(line), flush=True)
    # DDP holds the group: while it lives, gloo's threads outlive the group, and sometimes the interpreter (SIGABRT).
    del model, optimizer
    gc.collect()
    dist.destroy_process_group()


def evaluate(work) -> float:
    """Each rank counts its share of the test set; the counts are added."""
    work.model.eval()
    mine = range(dist.get_rank(), len(work.test_set), dist.get_world_size())
    part = torch.utils.data.Subset(work.test_set, list(mine))
    right = torch.zeros(1)
    with torch.no_grad():
        for batch in DataLoader(part, batch_size=128, collate_fn=work.collate):
            target, x = batch if work.swap else batch[::-1]
            right += (work.model(x).argmax(dim=1) == target).sum()
    dist.all_reduce(right)
    return right.item() / len(work.test_set)


if __name__ == "__main__":
    main()
