"""Data parallel training from scratch: process group, partition, averaging and a ring by hand, on 1 to 4 processes.

    python examples/tour/mnist_by_hand.py --data DIR      the four files of MNIST; else those in the cache, else nothing
    python examples/tour/mnist_by_hand.py --small         1,437 digits of 8 x 8 that scikit-learn brings, enlarged

Only `torch.distributed` is used for training. Each number of processes trains the same batches; the table and the
picture say how long the training took, without the start of the processes. With 2,000 samples it takes a minute.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from unisono.data.sets.digits import load_digits
from unisono.data.sets.mnist import MEAN, STD, load_mnist
from unisono.errors import DataError
from unisono.report.charts import Series
from unisono.report.content import Section, line_view
from unisono.report.picture import draw_section

BATCH = 128  # samples of a step, over all processes: never `int(128 / size)`
Data = tuple[Tensor, Tensor, Tensor, Tensor]


class SimpleCNN(nn.Module):
    """Images (n, 1, 28, 28) to log-probabilities (n, 10); 421,642 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = F.dropout(x.flatten(1), 0.25, self.training)
        x = F.dropout(F.relu(self.fc1(x)), 0.5, self.training)
        return F.log_softmax(self.fc2(x), dim=1)


def load(folder: str | None, *, is_small: bool, samples: int) -> Data:
    """Return training images and labels, test images and labels; `DataError` where MNIST is not there."""
    if is_small:
        data = load_digits()
        images = [F.interpolate(torch.as_tensor(part), 28) for part in (data.train_images, data.test_images)]
    else:
        data = load_mnist(Path(folder) if folder else None, offline=True)  # once, before there are processes
        images = [torch.as_tensor(part)[:, None] / 255 for part in (data.train_images, data.test_images)]
    train, test = ((part - MEAN) / STD for part in images)
    labels, test_labels = torch.as_tensor(data.train_labels), torch.as_tensor(data.test_labels)
    return train[:samples], labels[:samples], test[:samples], test_labels[:samples]


def partition(num_samples: int, epoch: int, rank: int, size: int) -> list[Tensor]:
    """Return this rank's part of every batch of an epoch: the batches are the same for any `size`, no sample is lost.

    Every rank draws the same order, another one in each epoch. Parts differ by one sample at most.
    """
    order = torch.randperm(num_samples, generator=torch.Generator().manual_seed(1234 + epoch))
    return [batch.tensor_split(size)[rank] for batch in order.split(BATCH)]


def ring_all_reduce(values: Tensor) -> None:
    """Sum over all ranks, in place, with messages to the right neighbour only.

    `size` chunks go round twice. In the first round each is added up on its way, every chunk by exactly one rank; in
    the second round the sums are copied. So all ranks hold the same bits, and each sends 2 (size - 1) / size of the
    buffer. Sending whole buffers and adding what arrives gives every rank an order of its own, and other bits.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    chunks = values.view(-1).tensor_split(size)
    for move in range(2 * (size - 1)):
        sent, kept = chunks[(rank - move) % size], chunks[(rank - move - 1) % size]
        arrived = torch.empty_like(kept)
        messages = [
            dist.P2POp(dist.isend, sent, (rank + 1) % size),
            dist.P2POp(dist.irecv, arrived, (rank - 1) % size),
        ]
        messages = [each for each in messages if each.tensor.numel()]  # fewer values than ranks: some chunks are empty
        for begun in dist.batch_isend_irecv(messages) if messages else []:
            begun.wait()  # together: one after the other, a send could wait for a receive that has not begun
        if move < size - 1:
            kept += arrived
        else:
            kept.copy_(arrived)


def average_gradients(model: nn.Module, share: float) -> None:
    """Average over the samples of all ranks, in one message instead of one per parameter.

    Args:
        model: After backward, with gradients of this rank's mean loss.
        share: This rank's samples over those of the batch: with unequal parts, `1 / size` would be wrong.
    """
    parameters = [*model.parameters()]
    there = torch.tensor([float(each.grad is not None) for each in parameters])
    flat = [torch.zeros(each.numel()) if each.grad is None else each.grad.flatten() * share for each in parameters]
    buffer = torch.cat([*flat, there])
    ring_all_reduce(buffer)
    *sums, there = buffer.split([each.numel() for each in parameters] + [len(parameters)])
    for parameter, total, count in zip(parameters, sums, there, strict=True):
        parameter.grad = total.view_as(parameter) if count else None  # None only where no rank has one


def test(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """Return the share of images that are classified right: counts are added up, and divided once."""
    mine = torch.arange(len(labels)).tensor_split(dist.get_world_size())[dist.get_rank()]
    model.eval()
    with torch.no_grad():
        right = sum((model(images[part]).argmax(1) == labels[part]).sum().item() for part in mine.split(500))
    model.train()
    counts = torch.tensor([float(right), float(len(mine))])
    ring_all_reduce(counts)
    return (counts[0] / counts[1]).item()


def run(rank: int, size: int, data: Data, epochs: int, lr: float) -> dict[str, Any]:
    """Train, and return what rank 0 reports."""
    images, labels, test_images, test_labels = data
    torch.manual_seed(1234)
    model = SimpleCNN()
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), src=0)  # the same weights, whatever a rank's constructor has drawn
    torch.manual_seed(1234 + rank)  # from here on: other dropout masks on every rank
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5)
    dist.barrier()
    began, exchange_s, losses = time.perf_counter(), 0.0, []
    for epoch in range(epochs):
        summed = torch.zeros(1)
        for number, mine in enumerate(partition(len(labels), epoch, rank, size)):
            whole = min(BATCH, len(labels) - number * BATCH)
            optimizer.zero_grad()
            if len(mine):
                loss = F.nll_loss(model(images[mine]), labels[mine])
                loss.backward()
                summed += loss.detach() * len(mine)  # a number without a graph, weighted by samples
            before = time.perf_counter()
            average_gradients(model, len(mine) / whole)
            exchange_s += time.perf_counter() - before
            optimizer.step()
        ring_all_reduce(summed)
        losses.append(summed.item() / len(labels))
    seconds = time.perf_counter() - began
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    held = [torch.empty_like(weights) for _ in range(size)]
    dist.all_gather(held, weights)
    if not all(torch.equal(each, weights) for each in held):
        raise RuntimeError("the ranks hold different weights")  # with a ring of whole buffers, from three ranks on
    return {
        "processes": size, "losses": losses, "accuracy": test(model, test_images, test_labels), "train_s": seconds,
        "exchange_s": exchange_s, "bytes": 2 * (size - 1) / size * 4 * weights.numel(),
    }  # fmt: skip


def init_process(rank: int, size: int, folder: str, fn: Callable[..., dict[str, Any]], *args: Any) -> None:
    """Join the process group, run, and leave it; they meet at a file, so two trainings share no port."""
    torch.set_num_threads(1)  # one for each process, else they compete
    dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=size)
    try:
        told = fn(rank, size, *args)
        if rank == 0:
            Path(folder, "told.json").write_text(json.dumps(told))
    finally:
        dist.destroy_process_group()


def drive(size: int, *args: Any) -> dict[str, Any]:
    """Start processes, wait for them, and return what rank 0 told; `SystemExit` where one of them has failed."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        processes = [
            context.Process(target=init_process, args=(rank, size, folder, run, *args)) for rank in range(size)
        ]
        for process in processes:
            process.start()
        while alive := [process for process in processes if process.is_alive()]:
            wait([process.sentinel for process in alive])
            if any(process.exitcode for process in processes):  # the others would wait for it
                for process in processes:
                    process.kill()
                    process.join()
                codes = [process.exitcode for process in processes]
                raise SystemExit(f"of {size} processes one has failed: exit codes {codes}; nothing was measured")
        told: dict[str, Any] = json.loads(Path(folder, "told.json").read_text())
        return told | {"wall_s": time.perf_counter() - began}


def draw(rows: list[dict[str, Any]], path: str) -> None:
    """Draw time over processes, with the ideal and the part that is spent in the exchange."""
    first = rows[0]["train_s"] * rows[0]["processes"]
    lines = [
        Series(name="training", points=[(row["processes"], row["train_s"]) for row in rows]),
        Series(name="of it averaging gradients", points=[(row["processes"], row["exchange_s"]) for row in rows]),
        Series(name="ideal", points=[(row["processes"], first / row["processes"]) for row in rows], is_limit=True),
    ]
    seconds, whole = (lambda value: f"{value:.3g} s"), (lambda value: f"{value:g}")
    chart = line_view("Time of the training", lines, "processes", whole, seconds, ticks_at_points=True)
    draw_section(
        Section(title="SimpleCNN from scratch", lines=["Without the start of processes."], charts=[chart]), path
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", metavar="DIR", help="holds the four files of MNIST")
    parser.add_argument("--small", action="store_true", help="scikit-learn's digits in place of MNIST")
    parser.add_argument("--sizes", default="1,2,3,4", metavar="N,...", help="numbers of processes")
    parser.add_argument("--samples", type=int, default=2000, metavar="N", help="of each part, at most")
    parser.add_argument("--epochs", type=int, default=2, metavar="E")
    parser.add_argument("--lr", type=float, default=0.01, metavar="X")
    parser.add_argument("--picture", metavar="FILE.svg", help="draw time over processes")
    given = parser.parse_args()
    try:
        data = load(given.data, is_small=given.small, samples=given.samples)
    except DataError as error:
        print(f"skipped, MNIST is not here: {error}\nWith --small it runs on digits that scikit-learn brings.")
        return
    rows = [drive(int(size), data, given.epochs, given.lr) for size in given.sizes.split(",")]
    for row in rows:
        print(
            f"{row['processes']} processes: loss {row['losses'][0]:.3f} to {row['losses'][-1]:.3f}, "
            f"{row['accuracy']:.1%} right, training {row['train_s']:.1f} s of {row['wall_s']:.1f} s, "
            f"exchange {row['exchange_s']:.1f} s, {row['bytes'] / 1e6:.2f} MB sent by each in a step"
        )
    if given.picture:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
