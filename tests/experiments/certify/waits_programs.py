"""What a certificate counts of waits and launches, on the device of `devices`: for a process of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import devices
from unisono.experiments.certify.programs import count_launches, count_waits, look, time_steps


def counted(_: None) -> Any:
    """Return what `count_waits` writes."""
    return _written(count_waits)


def launched(_: None) -> Any:
    """Return what `count_launches` writes."""
    return _written(count_launches)


def looked(_: None) -> Any:
    """Return what `look` writes of the device, what `time_steps` does, and `look` where it is not."""
    found = [_written(look), _written(lambda device, out: time_steps(device, [2], 1, out))]
    found += [_written(lambda _, out: look(f"{devices.KIND}:9", out))]
    devices.Module.device_count = staticmethod(lambda: 0)
    return [*found, _written(look)]


def _written(program: Callable[[str, str], None]) -> Any:
    devices.install()
    with TemporaryDirectory() as folder:
        program(f"{devices.KIND}:0", f"{folder}/found.json")
        return json.loads(Path(f"{folder}/found.json").read_text())
