"""The same two jobs with Hugging Face accelerate.

torchrun --nproc-per-node 2 benchmarks/baselines/with_accelerate.py imdb --data ARCHIVE --epochs 1
"""

import json
import time

import torch
from accelerate import Accelerator
from ddp import arguments
from torch.utils.data import DataLoader

from jobs import job


def main() -> None:
    given = arguments()
    accelerator = Accelerator(cpu=True)
    work = job(given.job, given.data, limit=given.limit, tokenised=given.tokenised, seed=given.seed)
    loader = DataLoader(work.train_set, batch_size=work.per_rank, shuffle=True, collate_fn=work.collate)
    testing = DataLoader(work.test_set, batch_size=128, collate_fn=work.collate)
    model, optimizer, loader, testing = accelerator.prepare(
        work.model, work.optimizer(work.model.parameters()), loader, testing
    )
    for epoch in range(given.epochs):
        model.train()
        accelerator.wait_for_everyone()
        started, cpu = time.perf_counter(), time.process_time()
        for batch in loader:
            target, x = batch if work.swap else batch[::-1]
            optimizer.zero_grad()
            accelerator.backward(work.loss(model(x), target))
            if work.clip is not None:
                accelerator.clip_grad_norm_(model.parameters(), work.clip)
            optimizer.step()
        accelerator.wait_for_everyone()
        train_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
        model.eval()
        right = 0
        with torch.no_grad():
            for batch in testing:
                target, x = batch if work.swap else batch[::-1]
                right += int(accelerator.gather_for_metrics(model(x).argmax(dim=1) == target).sum())
        if accelerator.is_main_process:
            line = {
                "epoch": epoch + 1, "train_s": train_s, "samples_per_s": len(work.train_set) / train_s,
                "accuracy": right / len(work.test_set), "cpu_s": cpu_s,
            }  # fmt: skip
            print(json.dumps(line), flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
