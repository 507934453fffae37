"""Programs on the CPU and on the device of `devices`, in one process: what they return must be equal."""

import json
import os
import tempfile
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import devices
import unisono
from unisono.callbacks import MemoryMonitor
from unisono.checkpoint.staging import Staging, bytes_of, taken_by
from unisono.collectives.loopback import run_ranks
from unisono.collectives.process_groups.transport import connect
from unisono.collectives.transport import Transport
from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.determinism import devices as known
from unisono.determinism.device_reads import brought
from unisono.determinism.switches import describe_environment, drift
from unisono.strategies.catalog import find
from unisono.strategies.parts.streams import capture, restore
from unisono.world import World

CASES: dict[str, tuple[int, str, dict[str, Any], dict[str, Any]]] = {
    "exact": (1, "exact", {}, {"allow_drift": True}),
    "exact, two ranks": (2, "exact", {}, {"clip_norm": 0.1}),
    "exact, three ranks": (3, "exact", {}, {"clip_value": 1e-3}),
    "exact, rounded": (2, "exact", {"compress": "int8"}, {}),
    "exact, overlap": (2, "exact", {"overlap": "on"}, {}),
    "exact, planes": (2, "exact", {"codec": "planes"}, {}),
    "exact, bf16": (2, "exact", {"compress": "bf16"}, {}),
    "ddp": (1, "ddp", {}, {}),
    "allreduce": (2, "allreduce", {}, {"clip_norm": 0.1}),
    "exact, weighed": (2, "exact", {}, {}),
    "allreduce, weighed": (2, "allreduce", {}, {}),
    "allreduce tree": (2, "allreduce", {"algorithm": "tree", "bucket_mb": 0.001}, {}),
    "local sgd": (2, "allreduce", {"sync_every": 3}, {}),
    "ps": (3, "ps", {}, {"clip_norm": 0.1}),
    "ps, two servers": (4, "ps", {"servers": 2}, {}),
    "fsdp": (1, "fsdp", {}, {"clip_norm": 0.1}),
    "dp": (1, "dp", {"devices": 2}, {}),
    "balanced_dp": (1, "balanced_dp", {"devices": 2}, {}),
    "balanced_dp, some": (1, "balanced_dp", {"devices": 2, "gpu0_bsz": 2}, {}),
    "model_parallel": (1, "model_parallel", {"devices": 2, "map": (0, 0, 1, 1, 1, 1)}, {"clip_norm": 0.1}),
    "model_parallel, two ranks": (2, "model_parallel", {"devices": 2, "map": (0, 0, 1, 1, 1, 1)}, {}),
    "pipeline": (2, "pipeline", {}, {"clip_norm": 0.1}),
    "pipeline, gpipe": (2, "pipeline", {"schedule": "gpipe"}, {}),
    "pipeline, interleaved": (2, "pipeline", {"schedule": "interleaved"}, {}),
    "islands": (2, "exact", {"island_steps": 2, "outer_lr": 1.0, "outer_momentum": 0.0}, {}),
}
"""Ranks, strategy, its options, settings of the run."""


WAITS: dict[tuple[str, str], Counter[int]] = defaultdict(Counter)
"""Of a case and a device: how many steps, of all its ranks, have waited so often."""

METRICS = {"accuracy": unisono.Accuracy(), "f1": unisono.F1(3), "confusion": unisono.ConfusionMatrix(3)}


def model_of(name: str) -> nn.Module:
    """Return a small model; with buffers and random numbers wherever a strategy treats devices as one."""
    torch.manual_seed(1)
    last = [nn.Linear(8, 3)]
    if name != "model_parallel":
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), *last)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), *last)


def samples(device: str = "cpu") -> unisono.ArrayDataset:
    """Return 24 samples."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(24, 6, generator=generator), torch.randint(3, (24,), generator=generator)
    return unisono.ArrayDataset(x.to(device), y.to(device))


def place_of(device: str, rank: int, name: str) -> str:
    """Return the device of a rank."""
    return device if device == "cpu" else f"{device}:{rank % known.count(device)}"


def served(_: None) -> dict[str, Any]:
    """Train with a server for asynchronous pushes, which adds up those of a step, as a rank of three processes."""
    devices.install()
    return {device: play(device, unisono.strategy("ps_async", max_staleness=0)) for device in ("cpu", devices.KIND)}


def sharded(_: None) -> dict[str, Any]:
    """Train with weights in slices, as a rank of several processes; see `play`."""
    devices.install()
    found = {device: play(device, unisono.strategy("fsdp"), clip_norm=0.1) for device in ("cpu", devices.KIND)}
    return {**found, "exact": play("cpu", unisono.strategy("exact"), clip_norm=0.1)}


def play(device: str, strategy: Any, **settings: Any) -> list[Any]:
    """Train a rank; return its kind of device, the waits of each step, the fingerprint, and metrics."""
    rank = int(os.environ["RANK"])
    replicas = None if strategy.name == "ps_async" else 4
    place = place_of(device, rank, strategy.name)
    with unisono.Run(seed=3, strategy=strategy, device=place, replicas=replicas, **settings) as run:
        model = model_of(strategy.name).to(run.device)
        front, _ = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False))
        waits = []
        for batch in run.steps(run.loader(samples(), batch_size=8), epochs=2):
            before = devices.counted["waits"]
            run.step(batch, lambda micro: F.cross_entropy(front(micro.x), micro.y))
            waits.append(devices.counted["waits"] - before)
        # The device's tensors cannot be gathered in inference mode.
        how = {"inference_mode": strategy.name != "fsdp"}
        found = run.evaluate(samples(), lambda micro: (front(micro.x), micro.y), METRICS, batch_size=7, **how)
        return [run.device.type, waits, run.result()["fingerprint"], repr(found)]


class Cells(nn.LSTM):
    """Something like an LSTM, with its dropout drawn as cuDNN draws it."""

    def __init__(self) -> None:
        super().__init__(8, 8, num_layers=2, dropout=0.5)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Return as many numbers."""
        mask = torch.rand(x.shape, generator=devices.MODULE.rnn_generator(x.device)) < 0.5
        return torch.tanh(F.linear(x * mask.to(x.device), self.weight_hh_l0[:8]))


def recurrent(_: None) -> list[str]:
    """Return the fingerprints of RNNs with dropout: in one piece, on one rank and two, and in two stages."""
    devices.install()
    fronts = ("exact", 1), ("exact", 2), ("pipeline", 2)
    return [run_ranks(lambda transport, name=name: recur(transport, name), ranks)[0] for name, ranks in fronts]


def recur(transport: Transport, strategy: str) -> str:
    """Train two RNNs, one after the other; return the fingerprint."""
    place = place_of(devices.KIND, transport.rank, strategy)
    with unisono.Run(seed=3, replicas=4, transport=transport, strategy=strategy, device=place) as run:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(6, 8), Cells(), nn.ReLU(), Cells(), nn.Linear(8, 3)).to(place)
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))
        for batch in run.steps(run.loader(samples(), batch_size=8), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(front(micro.x), micro.y))
        found: str = run.result()["fingerprint"]
    return found


def train(transport: Transport, name: str, device: str, out: str | None = None, steps: int | None = None) -> Any:
    """Train a case, and return its bits."""
    _, strategy, options, settings = CASES[name]
    place = place_of(device, transport.rank, strategy)
    with unisono.Run(
        seed=3, replicas=max(4, transport.world_size) if strategy == "exact" else None, transport=transport,
        strategy=find(strategy, options), device=place, out=out, checkpoint_every=2, **settings,
    ) as run:  # fmt: skip
        model = model_of(strategy).to(place)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        front, optimizer = run.prepare(model, optimizer)
        loader = run.loader(samples(), batch_size=8)
        losses = []
        weight = (lambda micro: (micro.y + 1).sum()) if name.endswith("weighed") else None
        for batch in run.steps(loader, epochs=2, max_steps=steps):
            before = devices.counted[own := threading.current_thread().name]
            loss = run.step(batch, lambda micro: F.cross_entropy(front(micro.x), micro.y), weight=weight)
            losses.append(loss.hex())
            WAITS[name, device][devices.counted[own] - before] += 1
        found = run.evaluate(samples(), lambda micro: (front(micro.x), micro.y), METRICS, batch_size=7)
        result = run.result()
    return [losses, result["fingerprint"], repr(found)]


def strategies(_: None) -> dict[str, Any]:
    """Return for each case what it gives on the CPU and on the device, and how often its steps wait there."""
    devices.install()
    found = {name: both(lambda device, name=name: on_ranks(name, device)) for name in CASES}
    return {name: {**told, "waits": sorted(WAITS[name, devices.KIND].items())} for name, told in found.items()}


def repeated(_: None, device: str, name: str) -> list[Any]:
    """Return the bits of a case that is played twice on a kind of device."""
    if device == devices.KIND:
        devices.install()
    return [on_ranks(name, device) for _ in range(2)]


def resumed(_: None) -> list[Any]:
    """Return the bits of a run that never stopped, and of those that did, on one kind of device or from one to another.

    The drift of the device is allowed there: what is looked at are the checkpoint's bytes.
    """
    devices.install()
    found = [on_ranks("exact", devices.KIND)[0][1]]
    for first in ("cpu", devices.KIND):
        with tempfile.TemporaryDirectory() as folder:
            on_ranks("exact", first, f"{folder}/run", 4)
            found.append(on_ranks("exact", devices.KIND, f"{folder}/run")[0][1])
    return found


def staged(_: None) -> list[list[float]]:
    """Copy tensors of two devices as a checkpoint does; return their numbers before and after the wait."""
    devices.install()
    staging = Staging()
    files = {
        f"{index}.safetensors": {"t": torch.full((3,), float(index + 1), device=f"fake:{index}")} for index in (0, 1)
    }
    staging.reserve(bytes_of(files), pinned=True)
    copies = [staging.put(files[file][name], offset) for file, name, offset in staging.lay_out(files)]
    before = [copy.tolist() for copy in copies]
    staging.finish(files)
    return [*before, *[copy.tolist() for copy in copies], [taken_by(files), bytes_of(files)]]


def loaded(_: None) -> dict[str, Any]:
    """Return micro-batches of arrays on the CPU and on the device, and what several processes are told."""
    devices.install()
    found: dict[str, Any] = {}
    for device in ("cpu", "fake:1"):
        fetcher = Fetcher(samples(device), 3)
        task = Task(0, torch.arange(3, 9).numpy())
        found[device] = [[str(each.device), each.cpu().tolist()] for each in fetcher[task]]
    try:
        list(fetch_all(Fetcher(samples("fake:1"), 3), [task], num_workers=1))
    except unisono.ConfigError as error:
        found["processes"] = str(error)
    return found


def drawn(_: None) -> dict[str, Any]:
    """Return what dropout draws on each device, under what draws in several devices at a time, and streams put back."""
    devices.install()
    found: dict[str, Any] = {strategy: dropped(strategy) for strategy in ("dp", "model_parallel")}
    device = torch.device("fake:1")
    kept = capture(device)
    first = torch.rand(4, device=device).tolist()
    restore(kept, device)
    found["streams"] = [first, torch.rand(4, device=device).tolist(), torch.rand(4, device=device).tolist()]
    return found


def dropped(strategy: str) -> list[tuple[str, list[Any]]]:
    """Return by device which places dropout has set to zero in a step."""
    is_cut = strategy == "model_parallel"
    parts = [nn.Dropout(0.5) for _ in range(1 + is_cut)]
    model = nn.Sequential(nn.Linear(64, 64), *parts, nn.Linear(64, 1)).to("fake:0")
    seen: list[tuple[str, list[Any]]] = []
    for part in parts:
        part.register_forward_hook(lambda _, given, out: seen.append((str(out.device), (out == 0).tolist())))
    options = {"devices": 2, **({"map": (0, 0, 1, 1)} if is_cut else {})}
    with unisono.Run(strategy=unisono.strategy(strategy, **options), device="fake:0") as run:
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))
        ones = torch.ones(4, 64)
        for batch in run.steps(run.loader(unisono.ArrayDataset(ones, ones[:, 0]), batch_size=4), max_steps=1):
            run.step(batch, lambda micro: front(micro.x).mean())
    return sorted(seen, key=lambda each: each[0])


def strict(_: None) -> dict[str, str]:
    """Return what the device says where a GPU would refuse."""
    devices.install()
    here, there, host = torch.ones(2, device="fake:0"), torch.ones(2, device="fake:1"), torch.ones(2)
    tries: dict[str, Callable[[], Any]] = {
        "index": lambda: here + there, "cpu": lambda: here + host, "cat": lambda: torch.cat([here, there]),
        "out": lambda: torch.add(here, here, out=host), "select": lambda: here.index_select(0, torch.tensor([0])),
    }  # fmt: skip
    return {name: _said(attempt) for name, attempt in tries.items()}


def ordered(_: None) -> dict[str, str]:
    """Return what the device says of work on two streams: in no order, and in one by an event, a wait, or the CPU."""
    devices.install()
    other = devices.Stream(0)

    def reads(wait: Callable[[Tensor], object]) -> None:
        made = torch.ones(3, device="fake:0") + 1
        wait(made)
        with torch.fake.stream(other):  # type: ignore[attr-defined]
            made + 1

    def overwrites(wait: Callable[[Tensor], object]) -> None:
        with torch.fake.stream(other):  # type: ignore[attr-defined]
            made = torch.ones(3, device="fake:0") + 1
        torch.fake.current_stream().wait_stream(other)  # type: ignore[attr-defined]
        with torch.fake.stream(other):  # type: ignore[attr-defined]
            made + 1
        wait(made)
        made.add_(1)

    found: dict[str, str] = {}
    for work, streams in ((reads, (other, devices.stream_of(0))), (overwrites, (devices.stream_of(0), other))):
        later, earlier = streams
        ways: dict[str, Callable[[Tensor], object]] = {
            "nothing": lambda made: None, "stream": lambda made, a=later, b=earlier: a.wait_stream(b),
            "event": lambda made, a=later, b=earlier: a.wait_event(b.record_event()),
            "cpu": lambda made, b=earlier: b.synchronize(),
        }  # fmt: skip
        for name, way in ways.items():
            found[f"{work.__name__}, {name}"] = _said(lambda work=work, way=way: work(way))
    late = (torch.ones(3, device="fake:0") * 7).to("cpu", non_blocking=True)
    found["before"] = str(late.tolist())
    devices.Stream(0).synchronize()
    found["another stream"] = str(late.tolist())
    devices.stream_of(0).synchronize()
    return {**found, "its stream": str(late.tolist())}


def _said(attempt: Callable[[], Any]) -> str:
    try:
        attempt()
    except RuntimeError as error:
        return str(error)
    return "nothing"


def met(_: None) -> dict[str, Any]:
    """Return, of two processes, whether they were told to share a card, and whether they share memory."""
    devices.install()
    found: dict[str, Any] = {}
    told: list[bool] = []
    known.backend_of = lambda device, *, is_shared: told.append(is_shared) or "gloo"  # type: ignore[func-returns-value]
    ways = {
        "one each": (1, 1, False), "one each, may share": (1, 1, True), "two parts of one": (2, 1, False),
        "one for both, may share": (1, 0, True), "one for both": (1, 0, False),
    }  # fmt: skip
    os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
    for name, (parts, second, may_share) in ways.items():
        devices.MODULE.parts, world = parts, replace(World.current(), shares_devices=may_share)
        told.clear()
        try:
            transport = connect(world, device=f"{devices.KIND}:{second * world.rank}", timeout_s=60)
        except unisono.ConfigError as error:
            found[name] = str(error)
        else:
            found[name] = [[*told], transport.board is not None]
            transport.close()
        found.setdefault("workspaces", []).append(os.environ["CUBLAS_WORKSPACE_CONFIG"])
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":16:8"
    return found


def timed(_: None) -> dict[str, Any]:
    """Return what is measured of the device's time: of five kernels before and after a wait, and of a pipeline."""
    devices.install()
    device = torch.device(devices.KIND, 0)
    x = torch.ones(3, device=device)
    first = known.instant(device)
    for _ in range(5):
        x += 1
    last = known.instant(device)
    found: dict[str, Any] = {"before": _said(lambda: known.seconds_between(first, last))}
    devices.MODULE.synchronize(device)
    found["after"] = known.seconds_between(first, last)

    def play(transport: Transport) -> float:
        with unisono.Run(transport=transport, strategy="pipeline", device=f"{devices.KIND}:{transport.rank}") as run:
            model = model_of("pipeline").to(run.device)
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False))
            for batch in run.steps(run.loader(samples(), batch_size=8), max_steps=1):
                run.step(batch, lambda micro: F.cross_entropy(front(micro.x), micro.y))
            return float(2e3 * run._stepper.parts.strategy.times.busy_s)  # of both, in milliseconds

    return {**found, "busy_ms": run_ranks(play, 2)[0]}


def limits(_: None) -> dict[str, Any]:
    """Return what is said of more devices than there are, and of the memory that a run has had."""
    devices.install()
    found: dict[str, Any] = {}
    for name in ("dp", "model_parallel"):
        strategy = unisono.strategy(name, devices=devices.COUNT + 5)
        try:
            with unisono.Run(strategy=strategy, device=f"{devices.KIND}:0") as run:
                model = nn.Sequential(*[nn.Linear(6, 6) for _ in range(9)]).to(run.device)
                run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        except unisono.ConfigError as error:
            found[name] = str(error)
    place = f"{devices.KIND}:0"
    with tempfile.TemporaryDirectory() as folder, unisono.Run(device=place, out=folder) as run:
        model = model_of("exact").to(place)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss(), callbacks=[MemoryMonitor()])
        trainer.fit(samples(), epochs=1, batch_size=8, show_progress=False)
        lines = Path(folder, "metrics.jsonl").read_text().splitlines()
    found["memory"] = [json.loads(line)["values"]["gpu_memory_peak_mib"] for line in lines if "gpu_" in line]
    return found


def large(_: None) -> dict[str, Any]:
    """Return what bringing tensors of 4 MB to the CPU takes of the device: bytes and waits; and what arrives."""
    devices.install()
    made = [torch.arange(1 << 20, dtype=torch.float32), torch.ones(3), torch.randn(1024, 1024).t(), torch.zeros(0)]
    there = [tensor.to(devices.KIND) for tensor in made]
    before = dict(devices.counted)
    arrived = brought(there)
    told = {what: devices.counted[what] - before.get(what, 0) for what in ("bytes", "waits")}
    return {**told, "equal": [torch.equal(a, b) for a, b in zip(made, arrived, strict=True)]}


def described(_: None) -> tuple[Any, list[str], bool]:
    """Return what is recorded of a device, what a resume says of another, and whether the CPU has any."""
    devices.install()
    found = describe_environment(threads=1, device=torch.device("fake:0"))
    other = {**found, "device_facts": {**found["device_facts"], "multiprocessors": 2}}
    on_cpu = describe_environment(threads=1, device=torch.device("cpu"))
    return found["device_facts"]["multiprocessors"], drift(found, other), "device_facts" in on_cpu


def on_ranks(name: str, device: str, *more: Any) -> Any:
    """Train a case on ranks in threads, and return the bits of each."""
    return run_ranks(lambda transport: train(transport, name, device, *more), CASES[name][0])


def both(play: Callable[[str], Any]) -> dict[str, Any]:
    """Return what a program gives on the CPU and on the device; an error as text."""
    found = {}
    for device in ("cpu", devices.KIND):
        try:
            found[device] = play(device)
        except BaseException:  # noqa: BLE001 - shown by the test
            found[device] = traceback.format_exc()[-3000:]
    return found


PROGRAMS = (ordered, staged, strict, described, loaded, drawn, recurrent, strategies, resumed, limits)
"""Those that one process runs, in an order in which none minds what the ones before have left."""


def everything(_: None) -> dict[str, Any]:
    """Return what each of the `PROGRAMS` gives, by name."""
    return {program.__name__: program(None) for program in PROGRAMS}
