"""What workers run for a certificate: short trainings, one after another, in the world of this process.

In: trainings as plain values. Out: a JSON file, by the leader: what each has left.
"""

import functools
import json
import os
import signal
import statistics
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from unisono.collectives.process_groups.transport import connect
from unisono.determinism import devices
from unisono.determinism.switches import describe_environment, float32_precision, set_determinism
from unisono.errors import ConfigError, LeaderFailed
from unisono.experiments.certify.models import MODELS, samples
from unisono.experiments.certify.trainings import BATCH_SIZE, Training
from unisono.strategies.catalog import find
from unisono.train.run import Run
from unisono.world import World

_WAIT_S = 120.0


def look(device: str, out: str) -> None:
    """Write what this machine is; or why the device cannot be certified, under ``refused``."""
    try:
        found = devices.named(device)
        gpus = devices.count(found.type) if devices.is_gpu(found) else 0
        if devices.is_gpu(found) and (found.index or 0) >= gpus:
            raise ConfigError(
                f"expected a device {device!r}, found none: torch {torch.__version__} sees {gpus or 'no'} "
                f"GPU{'s' * (gpus > 1)}. Hint: unisono doctor says why; --device cpu certifies the CPU."
            )
        found = devices.device_at(found.index or 0, found.type) if devices.is_gpu(found) else found
        told: dict[str, Any] = {"facts": describe_environment(threads=1, device=found), "gpus": gpus}
    except ConfigError as error:
        told = {"refused": str(error)}
    Path(out).write_text(json.dumps(told))


def train_all(trainings: Sequence[Training], device: str, backwards: bool, out: str) -> None:
    """Train each, and write fingerprint, first step and steps by name; of a refused one the message.

    Ranks that have a GPU each take them in their order, or `backwards`.
    All ranks call it; it blocks.
    """
    world = World.current()
    if backwards:
        device = f"{device}:{world.world_size - 1 - world.rank}"
    held = connect(world, device=device, timeout_s=_WAIT_S)  # the runs join it, and leave it as it is
    try:
        found = {}
        for one in trainings:
            try:
                with float32_precision(one.matmul):
                    found[one.name] = train_one(one, device)
            except (ConfigError, LeaderFailed) as error:  # the second: what the leader has refused, on the others
                found[one.name] = {"refused": str(error)}
        if held.rank == 0:
            Path(out).write_text(json.dumps(found))
        held.barrier()
    finally:
        held.close()


def train_one(one: Training, device: str) -> dict[str, Any]:
    """Train once in the world of this process."""
    with Run(
        seed=one.seed, replicas=one.replicas, strategy=one.strategy, precision=one.precision, clip_norm=0.5,
        out=one.out, checkpoint_every=None if one.out is None else 2, device=device,
    ) as run:  # fmt: skip
        model = MODELS[one.model]().to(run.device)
        model, _ = run.prepare(model, optimizer_of(one, model))
        # Module.compile compiles nothing of a class of torch's own, as nn.Sequential is.
        forward = torch.compile(model, dynamic=one.is_dynamic or None) if one.is_compiled else model
        model.train()
        loader = run.loader(samples(), batch_size=BATCH_SIZE)
        for batch in run.steps(loader, epochs=one.steps, max_steps=one.steps):
            if one.dies_at == batch.step and run.world.rank == run.world.world_size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            run.step(batch, lambda micro: F.cross_entropy(forward(micro.x), micro.y))
        result = run.result()
        return {name: result[name] for name in ("fingerprint", "steps", "resumed_from_step")}


def optimizer_of(one: Training, model: torch.nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of a training, with its form of kernels."""
    how: dict[str, Any] = {"lr": 3e-3, **({"momentum": 0.9} if one.optimizer == "SGD" else {})}
    if one.form is not None:
        how |= {"foreach": False} if one.form == "single" else {one.form: True}
    found: torch.optim.Optimizer = getattr(torch.optim, one.optimizer)(model.parameters(), **how)
    return found


def time_steps(device: str, replicas: Sequence[int], rounds: int, out: str) -> None:
    """Write the median seconds of a step of the CNN: by ``exact`` at each number of replicas, and by a plain loop.

    One process with one thread, all under the switches of a run. They take turns, so that what slows the machine slows
    all alike.
    """
    set_determinism(1)
    taken: dict[str, list[float]] = {}
    for _ in range(rounds):
        taken.setdefault("plain torch", []).append(_plain(device))
        for count in replicas:
            taken.setdefault(f"exact, V = {count}", []).append(_exact(device, count))
    Path(out).write_text(json.dumps({name: statistics.median(times) for name, times in taken.items()}))


def count_waits(device: str, out: str) -> None:
    """Write by name how often steps of the CNN wait for a GPU, beside an event: of each step after the first two.

    One process. The last one is a control: its loss function reads its loss.
    """
    found = {name: _waits(device, *how, reads=name == READING) for name, how in WAITING.items()}
    Path(out).write_text(json.dumps(found))


READING = "exact, V = 2, whose loss function reads its loss"
WAITING: dict[str, tuple[str, int, dict[str, Any]]] = {
    **{f"exact, V = {count}": ("exact", count, {}) for count in (1, 2, 8)},
    "exact, V = 2, bf16 gradients": ("exact", 2, {"compress": "bf16"}),
    "islands, between meetings": ("exact", 2, {"island_steps": 100}),
    **{name: (name, 1, {}) for name in ("allreduce", "fsdp")},  # in ddp torch's own code waits, too
    READING: ("exact", 2, {}),
}
"""Strategy, replicas, and options of what `count_waits` counts."""


def count_launches(device: str, out: str) -> None:
    """Write by name how many kernels and copies a GPU is given by a step of the CNN itself: beside the passes of its
    replicas, its data on their way, and its update.

    One process. The last one is a control: its loss function adds some of its own.
    """
    found = {name: _launches(device, *how, name == ADDING) for name, how in LAUNCHING.items()}
    Path(out).write_text(json.dumps(found))


ADDED = 7
ADDING = f"exact, V = 2, whose loss function launches {ADDED} kernels more"
LAUNCHING = {**{f"exact, V = {count}": (count,) for count in (1, 2, 8)}, ADDING: (2,)}
"""Replicas of what `count_launches` counts."""


def _launches(device: str, replicas: int, adds: bool) -> int:
    with Run(seed=0, replicas=replicas, device=device) as run:
        model = MODELS["cnn"]().to(run.device)
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=True))
        model.train()

        def loss(micro: Any) -> torch.Tensor:
            found = F.cross_entropy(front(micro.x), micro.y)
            for _ in range(ADDED * adds):
                found.detach().add(1)
            return found

        launched = 0
        for batch in run.steps(run.loader(samples(), batch_size=BATCH_SIZE), epochs=2, max_steps=2):
            launched = devices.launched(run.device, functools.partial(run.step, batch, loss))
    x, y = (part[: BATCH_SIZE // replicas].to(run.device) for part in samples().arrays)
    model.zero_grad()
    alone = devices.launched(run.device, lambda: F.cross_entropy(model(x), y).backward())
    again = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
    return launched - replicas * (alone + 2) - devices.launched(run.device, again.step)


def _waits(device: str, strategy: str, replicas: int, options: dict[str, Any], *, reads: bool) -> list[int]:
    waits = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the run ends .* after its islands have met")
        with Run(seed=0, replicas=replicas, device=device, strategy=find(strategy, options)) as run:
            model = MODELS["cnn"]().to(run.device)
            model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
            model.train()

            def loss(micro: Any) -> torch.Tensor:
                found = F.cross_entropy(model(micro.x), micro.y)
                if reads:
                    found.item()
                return found

            for batch in run.steps(run.loader(samples(), batch_size=BATCH_SIZE), epochs=4, max_steps=4):
                with devices.told_of_waits(run.device) as told:
                    run.step(batch, loss)
                waits.append(len(told))
    return waits[2:]


_WARMUP, _TIMED = 3, 12


def _plain(device: str) -> float:
    where = torch.device(device)
    torch.manual_seed(0)
    model = MODELS["cnn"]().to(where)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    x, y = (part[:BATCH_SIZE].to(where) for part in samples().arrays)
    began = 0.0
    for step in range(_WARMUP + _TIMED):
        if step == _WARMUP:
            began = _now(where)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return (_now(where) - began) / _TIMED


def _exact(device: str, replicas: int) -> float:
    with Run(seed=0, replicas=replicas, device=device) as run:
        model = MODELS["cnn"]().to(run.device)
        model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
        model.train()
        began, last = 0.0, _WARMUP + _TIMED
        for batch in run.steps(run.loader(samples(), batch_size=BATCH_SIZE), epochs=last, max_steps=last):
            if batch.step == _WARMUP + 1:
                began = _now(run.device)
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        return (_now(run.device) - began) / _TIMED


def _now(device: torch.device) -> float:
    if devices.is_gpu(device):
        devices.mark(device).synchronize()
    return time.perf_counter()
