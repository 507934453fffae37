"""What rows about GPUs look at, without one: for a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import devices
from unisono.experiments.certify.device_programs import move_alone, press_memory


def moved(_: None) -> Any:
    """Return what `move_alone` writes: on the CPU, by gloo."""
    return _written(lambda out: move_alone("cpu", out))


def pressed(_: None) -> Any:
    """Return what `press_memory` writes: on the strict device, where no tensor may be larger than the memory."""
    devices.install()
    return _written(lambda out: press_memory(f"{devices.KIND}:0", 4, out))


def _written(program: Callable[[str], None]) -> Any:
    with TemporaryDirectory() as folder:
        program(f"{folder}/found.json")
        return json.loads(Path(f"{folder}/found.json").read_text())
