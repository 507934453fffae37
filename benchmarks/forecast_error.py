"""How far a forecast is from what is then measured: steps of 2, 3, 4 and 8 ranks on this machine.

    python benchmarks/forecast_error.py [ROUNDS] [--json FILE]

Two models (a small CNN on 28x28 images, 0.4 M parameters, and a perceptron of 1 M), 8 replicas, 64 samples a step, one
thread per process, over shared memory and over gloo. In every round the calibration of `unisono forecast` is made anew
(steps of one rank, messages between 2 and 4 ranks; no step of several ranks), then the steps are measured. Prints the
error of each case (median over the rounds), the median of all, and the machine's load.
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.experiments.calibrate import STEPS, WARMUP, measure_links, measure_solo
from unisono.launchers.api import describe_function
from unisono.launchers.local import run_local
from unisono.launchers.spec import LaunchSpec
from unisono.observe.phases import read_phases
from unisono.scaling.calibration import crowding_of, fit_job
from unisono.scaling.forecast import predict
from unisono.scaling.study import trial_of
from unisono.system.machine import usable_cores

RANKS, REPLICAS, BATCH = (2, 3, 4, 8), 8, 64
TRANSPORTS = {"shm": "auto", "gloo": "gloo"}


class SmallCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.classify = nn.Sequential(nn.Flatten(), nn.Linear(1600, 240), nn.ReLU(), nn.Linear(240, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


def perceptron() -> nn.Module:
    layers = (nn.Flatten(), nn.Linear(784, 768), nn.ReLU(), nn.Linear(768, 512), nn.ReLU(), nn.Linear(512, 10))
    return nn.Sequential(*layers)


MODELS = {"cnn": SmallCNN, "mlp": perceptron}


def job(name: str, transport: str, replicas: int, out: str) -> None:
    """One run, in the world of this process."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(BATCH * STEPS, 1, 28, 28, generator=draw), torch.randint(10, (BATCH * STEPS,), generator=draw)
    with unisono.Run(seed=0, replicas=replicas, out=out, transport=TRANSPORTS[transport]) as run:
        model, _ = run.prepare(*_parts(name))
        loader = run.loader(unisono.ArrayDataset(x, y), batch_size=BATCH)
        for batch in run.steps(loader, epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


def _parts(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = MODELS[name]()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def launch(name: str, transport: str, replicas: int, workers: int, out: Path) -> None:
    target = describe_function(job, (name, transport, replicas, str(out)))
    run_local(LaunchSpec(target=target, workers=workers, threads=1, output="quiet"))


def one_round(name: str, transport: str, scratch: Path) -> dict[int, tuple[float, float]]:
    """Return (forecast, measured) seconds of a step for each number of ranks."""
    cores = usable_cores()
    solo, num_parameters, _ = measure_solo(
        lambda replicas, out: launch(name, transport, replicas, 1, out), REPLICAS, BATCH, cores, scratch
    )
    fitted = fit_job(solo, gradient_bytes=4.0 * num_parameters, replicas=REPLICAS)
    machine, _ = measure_links(fitted.gradient_bytes, cores, crowding_of(solo), transport)
    found = {}
    for ranks in RANKS:
        out = scratch / f"ranks-{ranks}"
        launch(name, transport, REPLICAS, ranks, out)
        trial = trial_of(
            read_phases(out), workers=ranks, repeat=0, warmup=WARMUP, launched_ns=0, total_s=0.0, batch_size=BATCH,
            fingerprint="", load=0.0,
        )  # fmt: skip
        found[ranks] = predict(fitted, machine, ranks, "owner-computes").step_s, trial.step_s
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 3
    rows: list[dict[str, object]] = []
    loads = [os.getloadavg()[0]]
    for number in range(rounds):
        for name in MODELS:
            for transport in TRANSPORTS:
                with tempfile.TemporaryDirectory(prefix="unisono-error-") as scratch:
                    for ranks, (told, found) in one_round(name, transport, Path(scratch)).items():
                        rows.append({"round": number, "model": name, "transport": transport, "ranks": ranks,
                                     "forecast_s": told, "measured_s": found, "error": told / found - 1})  # fmt: skip
                        print(f"  round {number + 1} {name} {transport} {ranks}: forecast {told * 1e3:.1f} ms, "
                              f"measured {found * 1e3:.1f} ms", file=sys.stderr, flush=True)  # fmt: skip
                loads.append(os.getloadavg()[0])
    if "--json" in sys.argv:
        Path(sys.argv[sys.argv.index("--json") + 1]).write_text(json.dumps(rows))
    print(f"{'model':<6} {'over':<5} " + " ".join(f"{ranks:>8}" for ranks in RANKS) + "   (forecast over measured - 1)")
    for name in MODELS:
        for transport in TRANSPORTS:
            cells = []
            for ranks in RANKS:
                case = (name, transport, ranks)
                errors = [row["error"] for row in rows if (row["model"], row["transport"], row["ranks"]) == case]
                cells.append(f"{statistics.median(errors):>+8.0%}")
            print(f"{name:<6} {transport:<5} " + " ".join(cells))
    sizes = [abs(row["error"]) for row in rows]
    print(f"absolute error: median {statistics.median(sizes):.1%}, largest {max(sizes):.0%}, {rounds} rounds, "
          f"load {min(loads):.1f} to {max(loads):.1f}")  # fmt: skip


if __name__ == "__main__":
    main()
