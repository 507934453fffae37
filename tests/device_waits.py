"""How often a step of `exact` waits for its device, for every model of the conformance suite and some that are harder.

Programs for a process of their own (see `devices`): each returns the waits of every step on each rank, and bits, which
must be those of the CPU.
"""

import importlib
import math
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import devices
import unisono
from reference import bits
from strategies.conformance import Parts, batch_norm_model, mlp
from unisono.collectives.loopback import run_ranks
from unisono.collectives.transport import Transport
from unisono.data.batches import move
from unisono.determinism.device_reads import DeviceReads


class Odd(nn.Module):
    """Sizes that fill no 64 bits, a layout of its own, two dtypes, a mask with infinity, and a buffer put in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3).to(memory_format=torch.channels_last)
        self.norm, self.last = nn.BatchNorm2d(3), nn.Linear(108, 10)
        self.scale = nn.Parameter(torch.tensor([1.0]).double())
        self.register_buffer("mask", torch.tensor([[0.0, -math.inf, math.nan]]))
        self.register_buffer("seen", torch.zeros(3), persistent=False)
        self.register_buffer("many", torch.zeros(40, dtype=torch.int64))
        self.register_buffer("nothing", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        found = F.relu(self.norm(self.conv(x.view(-1, 1, 8, 8))))
        self.seen = found.detach().mean((0, 2, 3))
        self.many[:4] += len(x)
        scores: Tensor = self.last(found.flatten(1)) * self.scale.float()
        return scores


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "batch_norm_model": batch_norm_model, "Parts": Parts, "Odd": Odd,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {}, "clip_norm": {"clip_norm": 0.05}, "fp16": {"precision": "fp16"}, "poisoned": {"non_finite": "skip"},
    "int8": {"strategy": unisono.strategy("exact", compress="int8")},
    "bf16": {"strategy": unisono.strategy("exact", compress="bf16")},
    "int8, poisoned": {"strategy": unisono.strategy("exact", compress="int8"), "non_finite": "skip"},
    "bf16, poisoned": {"strategy": unisono.strategy("exact", compress="bf16"), "non_finite": "skip"},
    "embed": {}, "embed, poisoned": {"non_finite": "skip"}, "witness": {"witness": 1.0},
}  # fmt: skip
CASES = [
    *[(1, model, "plain", replicas) for model in MODELS for replicas in (1, 2, 8)],
    *[(2, model, "plain", 2) for model in MODELS], (1, "Odd", "plain", 24),
    (2, "Odd", "poisoned", 8), *[(1, "Odd", settings, 2) for settings in ("clip_norm", "fp16", "poisoned")],
    *[(ranks, "batch_norm_model", settings, 8) for ranks, settings in zip((1, 2) * 2, [*SETTINGS][4:8], strict=True)],
    *[(ranks, model, "embed", 4) for ranks in (1, 2) for model in ("mlp", "Odd")], (2, "Odd", "embed, poisoned", 4),
    *[(ranks, model, "witness", 4) for ranks in (2, 3) for model in ("batch_norm_model", "Odd")],
]  # fmt: skip
"""Ranks, model, settings of the run, replicas."""
LARGE = [number for number, case in enumerate(CASES) if case[2] == "plain" and case[3] >= 8]
"""Those that take long: each model is counted with fewer replicas, too, and 8 replicas with other settings."""


def images(*, is_poisoned: bool) -> unisono.ArrayDataset:
    """Return 48 small images; some of them with infinite pixels."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(48, 1, 8, 8, generator=generator), torch.randint(10, (48,), generator=generator)
    if is_poisoned:
        x[[7, 20, 41]] = torch.inf
    return unisono.ArrayDataset(x, y)


def whole_loss(rows: tuple[Tensor, Tensor]) -> Tensor:
    """Return a loss over the whole batch, which is no mean over its micro-batches."""
    scores, labels = rows
    return F.cross_entropy(scores, labels) + 0.1 * scores.mean(0).square().sum()


def train(
    transport: Transport, device: str, model: str, settings: str, replicas: int, extra: Callable[[Tensor], object]
) -> list[Any]:
    """Train two epochs of two steps; return the waits of each step, losses, bad replicas, and the fingerprint."""
    place = device if device == "cpu" else f"{device}:{transport.rank}"
    name, waits, told = threading.current_thread().name, [], []
    with unisono.Run(seed=3, replicas=replicas, transport=transport, device=place, **SETTINGS[settings]) as run:
        torch.manual_seed(1)
        made = MODELS[model]().to(place)
        optimizer = torch.optim.AdamW([each for each in made.parameters() if each.requires_grad], lr=1e-2)
        front, optimizer = run.prepare(made, optimizer)

        def loss(micro: Any) -> Tensor:
            found = F.cross_entropy(front(micro.x), micro.y)
            extra(found)
            return found

        for batch in run.steps(run.loader(images(is_poisoned=settings.endswith("poisoned")), batch_size=24), epochs=2):
            before = devices.counted[name]
            if settings.startswith("embed"):
                told.append(run.step(batch, whole_loss, embed=lambda micro: (front(micro.x), micro.y)).hex())
            else:
                told.append(run.step(batch, loss).hex())
            waits.append(devices.counted[name] - before)
        skipped = run.non_finite.num_skipped
        fingerprint = run.result()["fingerprint"]
    return [waits, [told, skipped, fingerprint]]


def counted(_: None, *, is_large: bool = False) -> dict[str, Any]:
    """Return for each case, by its number, what its ranks give on the device, and on the CPU."""
    devices.install()
    torch.set_num_threads(1)
    numbers = [number for number in range(len(CASES)) if (number in LARGE) == is_large]
    return {str(each): [on_ranks(device, *CASES[each]) for device in (devices.KIND, "cpu")] for each in numbers}


def counted_large(_: None) -> dict[str, Any]:
    """As `counted`, of the cases that take long."""
    return counted(None, is_large=True)


def launches(_: None) -> dict[str, int]:
    """Return how many kernels a step of ResNet-18 in 8 replicas launches, and its passes and its update alone."""
    devices.install()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(16, 3, 32, 32, generator=generator), torch.randint(10, (16,), generator=generator)
    with unisono.Run(seed=3, replicas=8, device=devices.KIND) as run:
        torch.manual_seed(1)
        sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
        model = importlib.import_module("exact_vs_ddp").resnet_18()
        optimizer = torch.optim.SGD(model.to(devices.KIND).parameters(), lr=0.1, foreach=True)
        front, optimizer = run.prepare(model, optimizer)
        loss = lambda micro: F.cross_entropy(front(micro.x), micro.y)  # noqa: E731
        found = {}
        for batch in run.steps(
            run.loader(unisono.ArrayDataset(x, y), batch_size=16), epochs=3
        ):  # no guard looks at the third
            devices.counted["pageable"] = 0
            found["step"] = launched(lambda batch=batch: run.step(batch, loss))
    found["pageable"] = devices.counted["pageable"]
    x, y = x[:2].to(devices.KIND), y[:2].to(devices.KIND)
    found["control"] = devices.counted["pageable"]
    model.zero_grad()
    alone = launched(lambda: F.cross_entropy(model(x), y).backward())
    again = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    return {**found, "pass": alone, "update": launched(again.step)}


def carried(_: None) -> list[list[Any]]:
    """Return what `move` and torch make of tensors of the CPU: their numbers, shape, strides and device."""
    devices.install()
    image = torch.arange(120.0).view(2, 3, 4, 5)
    made = [
        image, image.to(memory_format=torch.channels_last), image.transpose(1, 3), image[:, :1].expand(2, 3, 4, 5),
        image[:, ::2], torch.zeros(0, 3), torch.tensor(7), torch.tensor([True, False]), image.half(),
    ]  # fmt: skip
    place = torch.device(devices.KIND, 1)
    both = [[move(tensor, place), tensor.to(place)] for tensor in made]
    return [[[t.cpu().tolist(), [*t.shape], [*t.stride()], str(t.device)] for t in pair] for pair in both]


def launched(act: Callable[[], object]) -> int:
    """Return how many kernels something launches."""
    before = devices.counted["launches"]
    act()
    return devices.counted["launches"] - before


def control(_: None) -> list[list[int]]:
    """Return the waits of steps whose loss function reads its loss."""
    devices.install()
    return [on_ranks(devices.KIND, 1, "mlp", "plain", replicas, lambda loss: loss.item())[0][0] for replicas in (1, 2)]


def refusals(_: None) -> list[list[str]]:
    """Return what is said on the device, and on the CPU, where passes are not alike; there it is known at the read."""
    devices.install()
    return [[refused(device, case) for device in (devices.KIND, "cpu")] for case in ("calls", "buffer", "witness")]


def refused(device: str, case: str) -> str:
    """Return what a step of two ranks says."""

    def play(transport: Transport) -> None:
        place = device if device == "cpu" else f"{device}:{transport.rank}"
        with unisono.Run(replicas=2, transport=transport, device=place, witness=float(case == "witness")) as run:
            torch.manual_seed(1)
            model = batch_norm_model().to(place)
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

            def whole(rows: Tensor) -> Tensor:
                if case == "buffer":
                    model[2].running_mean.add_(1)
                return rows.square().mean()

            embed = lambda micro: front(micro.x) * (1 + (case == "calls") * (time.perf_counter() % 1))  # noqa: E731
            alone = lambda micro: front(micro.x).mean() * (1 + transport.rank)  # noqa: E731
            for batch in run.steps(run.loader(images(is_poisoned=False), batch_size=24), max_steps=1):
                if case == "witness":
                    run.step(batch, alone)
                else:
                    run.step(batch, whole, embed=embed)

    try:
        run_ranks(play, 2)
    except unisono.UnisonoError as error:
        said = "\n".join([str(error), *getattr(error, "__notes__", [])])
        return re.sub(r"process \d+ on \S+\)|[0-9a-f]{16}| from \d+ to \d+$", "", said)
    return "nothing"


def on_ranks(
    device: str, world: int, model: str, settings: str, replicas: int,
    extra: Callable[[Tensor], object] = lambda loss: None,
) -> list[Any]:  # fmt: skip
    """Train a case on ranks in threads; `extra` is done with every loss."""
    return run_ranks(lambda transport: train(transport, device, model, settings, replicas, extra), world)


def mixed(_: None) -> list[Any]:
    """Return how often reading tensors of all kinds from two devices and the CPU waits, and whether all bits arrive."""
    devices.install()
    generator = torch.Generator().manual_seed(4)
    made = [
        torch.randn(shape, generator=generator).to(dtype)
        for shape in ((), (3,), (0,), (2, 5)) for dtype in (torch.bool, torch.float16, torch.float64, torch.complex64)
    ]  # fmt: skip
    made += [torch.tensor([math.nan, -0.0, math.inf]), torch.arange(12).view(3, 4).t()]
    found: list[list[Tensor]] = []
    reads = DeviceReads()
    for place in ("fake:0", "fake:1", "cpu"):
        reads.ask([tensor.to(place) for tensor in made], lambda *told: found.append([*told]))
    before = devices.counted["waits"]
    reads.read()
    waits = devices.counted["waits"] - before
    reads.ask([made[0]], lambda told: found.append([told]))
    reads.forget()
    reads.read()
    return [waits, [[bits(told) == bits(tensor) for told, tensor in zip(each, made, strict=True)] for each in found]]


PROGRAMS = (counted, launches, carried, control, refusals)
"""Those that one process runs."""


def everything(_: None) -> dict[str, Any]:
    """Return what each of the `PROGRAMS` gives, by name."""
    return {program.__name__: program(None) for program in PROGRAMS}
