"""How far a forecast is from what is then measured: steps of 2, 3, 4 and 8 ranks on this machine.

    python benchmarks/forecast_error.py [--rounds 3] [--quick] [--out DIR]

Two models (a small CNN on 28x28 images, 0.4 M parameters, and a perceptron of 1 M), 8 replicas, 64 samples a step, one
thread per process, over shared memory and over gloo. In every round the calibration of `unisono forecast` is made anew
(steps of one rank, messages between 2 and 4 ranks; no step of several ranks), then the steps are measured.
"""

import itertools
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from harness import parser_of, rounds_of, save
from results import Bar, Result
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


def one_round(name: str, transport: str, numbers: Sequence[int], scratch: Path) -> dict[int, tuple[float, float]]:
    """Return (forecast, measured) seconds of a step for each number of ranks."""
    cores = usable_cores()
    solo, num_parameters, _ = measure_solo(
        lambda replicas, out: launch(name, transport, replicas, 1, out), REPLICAS, BATCH, cores, scratch
    )
    fitted = fit_job(solo, gradient_bytes=4.0 * num_parameters, replicas=REPLICAS)
    machine, _ = measure_links(fitted.gradient_bytes, cores, crowding_of(solo), transport)
    found = {}
    for ranks in numbers:
        out = scratch / f"ranks-{ranks}"
        launch(name, transport, REPLICAS, ranks, out)
        trial = trial_of(
            read_phases(out), workers=ranks, repeat=0, warmup=WARMUP, launched_ns=0, total_s=0.0, batch_size=BATCH,
            fingerprint="", load=0.0,
        )  # fmt: skip
        found[ranks] = predict(fitted, machine, ranks, "owner-computes").step_s, trial.step_s
    return found


def main() -> None:
    given = parser_of(__doc__, rounds=3).parse_args()
    models, transports, ranks = (["mlp"], ["shm"], (2,)) if given.quick else (list(MODELS), list(TRANSPORTS), RANKS)
    errors: dict[tuple[str, str, int], list[float]] = {}
    for _, name, transport in itertools.product(range(rounds_of(given, quick=1)), models, transports):
        with tempfile.TemporaryDirectory(prefix="unisono-error-") as scratch:
            for count, (told, found) in one_round(name, transport, ranks, Path(scratch)).items():
                errors.setdefault((name, transport, count), []).append(100 * (told / found - 1))
                print(f"{name} {transport} {count}: forecast {told * 1e3:.1f} ms, measured {found * 1e3:.1f} ms",
                      file=sys.stderr, flush=True)  # fmt: skip
    found = [
        Result.of(
            f"{name}-{transport}-{count}",
            seen,
            unit="%",
            topic="Scaling",
            what="forecast of a step over its measurement, less 1",
            settings={"model": name, "transport": transport, "ranks": count},
        )
        for (name, transport, count), seen in errors.items()
    ]
    absolute = [abs(error) for seen in errors.values() for error in seen]
    found.append(
        Result.of(
            "absolute",
            absolute,
            unit="%",
            topic="Scaling",
            what="absolute error of the forecast of a step",
            bar=Bar(at_most=15),
        )
    )
    save(given, found)


if __name__ == "__main__":
    main()
