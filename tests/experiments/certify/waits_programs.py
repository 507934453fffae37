"""What a certificate counts of waits, on the device of `devices`: for a process of its own."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import devices
from unisono.experiments.certify.programs import count_waits


def counted(_: None) -> dict[str, list[int]]:
    """Return what `count_waits` writes."""
    devices.install()
    with TemporaryDirectory() as folder:
        count_waits(f"{devices.KIND}:0", f"{folder}/waits.json")
        found: dict[str, list[int]] = json.loads(Path(f"{folder}/waits.json").read_text())
    return found
