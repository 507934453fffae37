"""What a worker runs for those rows of a certificate that are about GPUs alone: bytes over NCCL, and little memory.

In: a device. Out: a JSON file.
"""

import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn import functional as F

from unisono.collectives.process_groups.transport import ProcessGroupTransport
from unisono.data.datasets import ArrayDataset
from unisono.determinism import devices
from unisono.train.run import Run

SPOILT = "the same with one bit changed afterwards"
TOO_LITTLE = "out of memory"
_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8)
_SIZES = (0, 1, 1000, 1 << 20)
_SHARES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3, 0.05)


def move_alone(device: str, out: str) -> None:
    """Write by data type and size how many bytes differ after collectives of a group of one, over the backend of ranks
    that have a GPU each; under `SPOILT` how many do where one bit was changed.
    """
    where = devices.named(device)
    if devices.is_gpu(where):
        devices.make_current(devices.device_at(where.index or 0, where.type))
    backend = devices.backend_of(where, is_shared=False)
    dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)
    transport = ProcessGroupTransport(owns_group=True)
    found: dict[str, int] = {}
    try:
        for dtype in _TYPES:
            for size in _SIZES:
                sent, arrived, gathered = _moved(transport, where, dtype, size)
                found[f"{str(dtype).partition('.')[2]}, {size}"] = _differ(sent, arrived) + _differ(sent, gathered)
        arrived.view(torch.uint8)[7] ^= 1
        Path(out).write_text(json.dumps({**found, SPOILT: _differ(sent, arrived)}))
    finally:
        transport.close()


def _moved(transport: ProcessGroupTransport, where: torch.device, dtype: torch.dtype, size: int) -> list[Tensor]:
    """Return what was sent, and what both collectives have made of it: (size,) each."""
    random = torch.Generator().manual_seed(size)
    bits = torch.randint(256, (size * dtype.itemsize,), generator=random, dtype=torch.uint8).to(where)
    sent, arrived, gathered = bits.view(dtype), torch.zeros_like(bits).view(dtype), torch.zeros_like(bits).view(dtype)
    transport.all_to_all(sent, [size], arrived, [size])
    transport.all_gather(sent, gathered)
    return [sent, arrived, gathered]


def _differ(sent: Tensor, got: Tensor) -> int:
    return int((sent.view(torch.uint8) != got.view(torch.uint8)).sum())


def press_memory(device: str, width: int, out: str) -> None:
    """Write the fingerprint of a network of convolutions that gets all of a GPU's memory, and by share of what it has
    then taken, what it leaves where it gets no more: its fingerprint, or `TOO_LITTLE`.
    """
    where = devices.named(device)
    where = devices.device_at(where.index or 0, where.type)
    found = {"all": _convolved(where, width)}
    taken = devices.reserved_bytes(where)
    for share in _SHARES:
        with devices.limited_to(where, int(share * taken)):
            try:
                found[f"{share:.0%}"] = _convolved(where, width)
            except torch.OutOfMemoryError:
                found[f"{share:.0%}"] = TOO_LITTLE
    Path(out).write_text(json.dumps(found))


def _convolved(where: torch.device, width: int) -> str:
    random = torch.Generator().manual_seed(0)
    images, labels = torch.randn(64, 3, 32, 32, generator=random), torch.randint(10, (64,), generator=random)
    with Run(seed=0, replicas=1, device=str(where)) as run:
        model = nn.Sequential(
            nn.Conv2d(3, width, 7, padding=3), nn.ReLU(), nn.Conv2d(width, width, 5, padding=2), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(width, 10),
        ).to(where)  # fmt: skip
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
        for batch in run.steps(run.loader(ArrayDataset(images, labels), batch_size=32), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(front(micro.x), micro.y))
        found: str = run.result()["fingerprint"]
    return found
