"""What rows about GPUs look at, without one: for a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import devices
from unisono.experiments.certify import large_models
from unisono.experiments.certify.device_programs import move_alone, press_memory


def moved(_: None) -> Any:
    """Return what `move_alone` writes: on the CPU, by gloo."""
    return _written(lambda out: move_alone("cpu", out))


def pressed(_: None) -> Any:
    """Return what `press_memory` writes: on the strict device, where no tensor may be larger than the memory."""
    devices.install()
    return _written(lambda out: press_memory(f"{devices.KIND}:0", 4, out))


def large(_: None) -> Any:
    """Return what `time_large` writes: on the strict device, of the same models, small."""
    devices.install()
    small = [(lambda: large_models.resnet18(8), 32), (lambda: large_models.GPT2(1, 64, 16), 16), (None, 200)]
    for name, (build, size) in zip([*large_models.LARGE], small, strict=True):
        theirs, make, *_ = large_models.LARGE[name]
        large_models.LARGE[name] = build or theirs, make, 4, size
    return _written(lambda out: large_models.time_large(f"{devices.KIND}:0", [1, 2], 1, out))


def _written(program: Callable[[str], None]) -> Any:
    with TemporaryDirectory() as folder:
        program(f"{folder}/found.json")
        return json.loads(Path(f"{folder}/found.json").read_text())
