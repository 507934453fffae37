"""Whole training scripts in the styles that people write them in, all of them right: the rules must find nothing.

Written for these tests; they are read, never run.
"""

TRAINER = '''
"""A Trainer class, the local rank as its gpu_id, a snapshot of rank 0 (in the style of torch's series on DDP)."""
import argparse
import os

import torch
import torch.nn.functional as F
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def ddp_setup():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")


class Trainer:
    def __init__(self, model, train_data, optimizer, save_every, snapshot_path):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = model.to(self.gpu_id)
        self.train_data = train_data
        self.optimizer = optimizer
        self.save_every = save_every
        self.epochs_run = 0
        self.snapshot_path = snapshot_path
        if os.path.exists(snapshot_path):
            self._load_snapshot(snapshot_path)
        self.model = DDP(self.model, device_ids=[self.gpu_id])

    def _load_snapshot(self, path):
        snapshot = torch.load(path, map_location=f"cuda:{self.gpu_id}")
        self.model.load_state_dict(snapshot["model"])
        self.epochs_run = snapshot["epochs_run"]

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        self.train_data.sampler.set_epoch(epoch)
        for source, targets in self.train_data:
            self._run_batch(source.to(self.gpu_id), targets.to(self.gpu_id))

    def _save_snapshot(self, epoch):
        snapshot = {"model": self.model.module.state_dict(), "epochs_run": epoch}
        torch.save(snapshot, self.snapshot_path)

    def train(self, max_epochs):
        for epoch in range(self.epochs_run, max_epochs):
            self._run_epoch(epoch)
            if self.gpu_id == 0 and epoch % self.save_every == 0:
                self._save_snapshot(epoch)


def main(save_every, total_epochs, batch_size):
    ddp_setup()
    data = TensorDataset(torch.randn(64, 20), torch.randint(0, 2, (64,)))
    model = torch.nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(data, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(data))
    Trainer(model, loader, optimizer, save_every, "snapshot.pt").train(total_epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    args = parser.parse_args()
    main(args.save_every, args.total_epochs, 32)
'''

SPAWNED = '''
"""Processes by mp.spawn on one machine: the index that it hands over is the GPU's."""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "12355"
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def demo_checkpoint(rank, world_size):
    setup(rank, world_size)
    model = nn.Linear(10, 5).to(rank)
    ddp_model = DDP(model, device_ids=[rank])
    path = os.path.join("/tmp", "model.checkpoint")
    if rank == 0:
        torch.save(ddp_model.module.state_dict(), path)
    dist.barrier()
    ddp_model.module.load_state_dict(torch.load(path, map_location={"cuda:0": f"cuda:{rank}"}))
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.001)
    optimizer.zero_grad()
    nn.MSELoss()(ddp_model(torch.randn(20, 10)), torch.randn(20, 5).to(rank)).backward()
    optimizer.step()
    dist.barrier()
    if rank == 0:
        os.remove(path)
    dist.destroy_process_group()


if __name__ == "__main__":
    count = torch.cuda.device_count()
    mp.spawn(demo_checkpoint, args=(count,), nprocs=count, join=True)
'''

LOOP = '''
"""One long file with a master process and callbacks (in the style of small language models)."""
import math
import os
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Config:
    block_size: int = 64
    batch_size: int = 8
    max_iters: int = 100
    accumulate: int = 4


config = Config()
ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    device = f"cuda:{ddp_local_rank}"
    torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    seed_offset = ddp_rank
else:
    master_process = True
    seed_offset = 0
    device = "cpu"
if master_process:
    os.makedirs("out", exist_ok=True)
torch.manual_seed(1337 + seed_offset)
ctx = nullcontext() if device == "cpu" else torch.amp.autocast("cuda", dtype=torch.bfloat16)


def get_batch(split):
    data = np.memmap(f"{split}.bin", dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - config.block_size, (config.batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + config.block_size].astype(np.int64)) for i in ix])
    return x.to(device), x.roll(-1, 1).to(device)


model = torch.nn.Sequential(torch.nn.Embedding(256, 64), torch.nn.Linear(64, 256)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
callbacks = defaultdict(list)
callbacks["end"].append(lambda it, loss: print(f"iter {it}: {loss:.4f}") if master_process else None)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank])
raw_model = model.module if ddp else model


@torch.no_grad()
def estimate_loss():
    model.eval()
    losses = torch.zeros(10)
    for k in range(10):
        X, Y = get_batch("val")
        with ctx:
            losses[k] = torch.nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten())
    model.train()
    return losses.mean()


def get_lr(it):
    return 0.5 * (1.0 + math.cos(math.pi * it / config.max_iters)) * 3e-4


best = 1e9
t0 = time.time()
X, Y = get_batch("train")
for it in range(config.max_iters):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(it)
    if it % 50 == 0 and master_process:
        found = estimate_loss()
        if found < best:
            best = found
            torch.save({"model": raw_model.state_dict(), "optimizer": optimizer.state_dict()}, "out/ckpt.pt")
    for micro in range(config.accumulate):
        if ddp:
            model.require_backward_grad_sync = micro == config.accumulate - 1
        with ctx:
            loss = torch.nn.functional.cross_entropy(model(X).flatten(0, 1), Y.flatten()) / config.accumulate
        X, Y = get_batch("train")
        loss.backward()
    optimizer.step()
    for param in model.parameters():
        param.grad = None
    for callback in callbacks["end"]:
        callback(it, loss.item() * config.accumulate)
if ddp:
    destroy_process_group()
'''

SAVER = '''
"""A saver that only the first process has, helpers, an averaged model (in the style of large image trainers)."""
import argparse
import logging
import os
from functools import partial

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel

_logger = logging.getLogger(__name__)
try:
    import wandb
except ImportError:
    wandb = None

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", "--local-rank", default=0, type=int)
parser.add_argument("--epochs", default=3, type=int)


def is_primary(args):
    return args.rank == 0


def init_distributed(args):
    args.distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
    args.rank, args.world_size = 0, 1
    if "SLURM_PROCID" in os.environ:
        args.local_rank = int(os.environ["SLURM_LOCALID"])
    elif "LOCAL_RANK" in os.environ:
        args.local_rank = int(os.environ["LOCAL_RANK"])
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        dist.init_process_group(backend="nccl", init_method="env://")
        args.world_size, args.rank = dist.get_world_size(), dist.get_rank()
    return torch.device("cuda", args.local_rank)


def reduce_tensor(tensor, n):
    rt = tensor.clone()
    dist.all_reduce(rt, op=dist.ReduceOp.SUM)
    return rt / n


class CheckpointSaver:
    def __init__(self, model, optimizer, directory):
        self.model, self.optimizer, self.directory = model, optimizer, directory

    def save_checkpoint(self, epoch):
        tmp = os.path.join(self.directory, "tmp.pth.tar")
        self._save(tmp, epoch)
        os.replace(tmp, os.path.join(self.directory, "last.pth.tar"))

    def _save(self, path, epoch):
        torch.save({"epoch": epoch, "state_dict": self.model.state_dict()}, path)


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device, saver=None):
    model.train()
    total = 0.0
    for index, (inputs, target) in enumerate(loader):
        inputs, target = inputs.to(device), target.to(device)
        loss = loss_fn(model(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if index % 50 == 0:
            if args.distributed:
                reduced = reduce_tensor(loss.data, args.world_size)
                loss = reduced
            if is_primary(args):
                _logger.info("%d %d %f", epoch, index, loss.item())
    return total


def validate(model, loader, loss_fn, args, device):
    model.eval()
    found = []
    with torch.inference_mode():
        for inputs, target in loader:
            loss = loss_fn(model(inputs.to(device)), target.to(device))
            found.append(reduce_tensor(loss, args.world_size) if args.distributed else loss)
    return torch.stack(found).mean()


def main():
    args = parser.parse_args()
    device = init_distributed(args)
    torch.manual_seed(42 + args.rank)
    if args.rank == 0:
        torchvision.datasets.FakeData("data", download=True)
    if args.distributed:
        dist.barrier()
    data = torchvision.datasets.FakeData("data", transform=partial(torch.flatten, start_dim=1))
    sampler = torch.utils.data.distributed.DistributedSampler(data) if args.distributed else None
    loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=sampler is None, sampler=sampler)
    model = torchvision.models.resnet18().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    saver = None
    if is_primary(args):
        saver = CheckpointSaver(model, optimizer, "out")
    if args.distributed:
        model = DistributedDataParallel(model, device_ids=[args.local_rank])
    loss_fn = torch.nn.CrossEntropyLoss()
    try:
        for epoch in range(args.epochs):
            if args.distributed:
                sampler.set_epoch(epoch)
            train_one_epoch(epoch, model, loader, optimizer, loss_fn, args, device, saver=saver)
            validate(model, loader, loss_fn, args, device)
            if saver is not None:
                saver.save_checkpoint(epoch)
            if wandb is not None and is_primary(args):
                wandb.log({"epoch": epoch})
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
'''

HELPERS = '''
"""Helpers beside a training script: objects sent as bytes, saving on the first process, a quiet print."""
import builtins
import io
import os
import tempfile
from functools import wraps

import torch
import torch.distributed as dist


def setup_for_distributed(is_master):
    builtin_print = builtins.print

    def quiet(*args, **kwargs):
        if is_master or kwargs.pop("force", False):
            builtin_print(*args, **kwargs)

    builtins.print = quiet


def is_dist_avail_and_initialized():
    return dist.is_available() and dist.is_initialized()


def get_rank():
    return dist.get_rank() if is_dist_avail_and_initialized() else 0


def is_main_process():
    return get_rank() == 0


def main_process_only(function):
    @wraps(function)
    def only(*args, **kwargs):
        return function(*args, **kwargs) if is_main_process() else None

    return only


def save_on_master(*args, **kwargs):
    if is_main_process():
        torch.save(*args, **kwargs)


@main_process_only
def save_best(state, directory):
    torch.save(state, os.path.join(directory, "best.pt"))


def save_checkpoint(state, path, is_best=False):
    torch.save(state, path)


def save_shard(state, directory):
    name = os.path.join(directory, f"shard-{get_rank()}.pt")
    torch.save(state, name)


def to_bytes(obj):
    buffer = io.BytesIO()
    torch.save(obj, buffer)
    return buffer.getvalue()


def size_of(model):
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file)
        return os.path.getsize(file.name)


def dump(model):
    torch.save(model.state_dict(), out := io.BytesIO())
    return out


def init_distributed_mode(args):
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        args.gpu = int(os.environ["LOCAL_RANK"])
    elif "SLURM_PROCID" in os.environ:
        args.gpu = int(os.environ["SLURM_PROCID"]) % torch.cuda.device_count()
    else:
        args.distributed = False
        return
    torch.cuda.set_device(args.gpu)
    dist.init_process_group(backend="nccl")
    dist.barrier()
    setup_for_distributed(is_main_process())
'''

MAIN_WORKER = '''
"""One worker for each GPU, the global rank computed from node and GPU (in the style of ImageNet examples)."""
import argparse
import shutil

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR

best_acc1 = 0


def main_worker(gpu, ngpus_per_node, args):
    global best_acc1
    args.gpu = gpu
    if args.distributed:
        if args.multiprocessing_distributed:
            args.rank = args.rank * ngpus_per_node + gpu
        dist.init_process_group(backend="nccl", init_method="env://", world_size=args.world_size, rank=args.rank)
    model = nn.Linear(10, 10)
    if args.gpu is not None:
        torch.cuda.set_device(args.gpu)
        model.cuda(args.gpu)
        model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
    optimizer = torch.optim.SGD(model.parameters(), args.lr)
    scheduler = StepLR(optimizer, step_size=30)
    for epoch in range(args.epochs):
        for images in torch.randn(4, 2, 10):
            loss = model(images).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        scheduler.step()
        acc1 = torch.rand(())
        is_best = acc1 > best_acc1
        best_acc1 = max(acc1, best_acc1)
        if not args.multiprocessing_distributed or args.rank % ngpus_per_node == 0:
            save_checkpoint({"epoch": epoch + 1, "state": model.module.state_dict()}, is_best)


def save_checkpoint(state, is_best, filename="checkpoint.pth.tar"):
    torch.save(state, filename)
    if is_best:
        shutil.copyfile(filename, "model_best.pth.tar")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, default=0)
    args = parser.parse_args()
    count = torch.cuda.device_count()
    mp.spawn(main_worker, nprocs=count, args=(count, args))
'''

SCRIPTS = {
    "trainer": TRAINER, "spawned": SPAWNED, "loop": LOOP, "saver": SAVER, "helpers": HELPERS, "worker": MAIN_WORKER,
}  # fmt: skip
