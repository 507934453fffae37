"""The ledger: one line per step, written by the leader, by which runs are compared bit for bit.

A line is JSON with a fixed key order and no time in it, so two runs of one score have equal files. Floats are
written as hex (``float.hex``), exactly. On resume the lines after the checkpoint's step are cut off and written
anew.
"""

import contextlib
import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, final

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """What one step did.

    Attributes:
        step: 1-based.
        epoch: 0-based.
        num_samples: Samples in the step's batch.
        samples: Hash of their indices, in order.
        loss: Mean loss over them, as hex float.
        gradient: Checksum of the summed gradient's bits, before clipping.
        weights: Checksum of the weights' bits before the update.
        lr: Learning rate of the first parameter group in this update, as hex float.
    """

    step: int
    epoch: int
    num_samples: int
    samples: str
    loss: str
    gradient: str
    weights: str
    lr: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Detail:
    """What a step was made of, on request (``detail.jsonl``): what `unisono diff` names replica and parameter by.

    Attributes:
        step: 1-based.
        indices: The batch's samples, in order.
        losses: Mean loss of each replica's micro-batch, as hex floats; empty where the strategy has no replicas.
        weights: Checksum of each parameter and buffer before the update, by name, in the model's order.
        gradients: Checksum of each gradient before clipping; a parameter without one is left out.
    """

    step: int
    indices: list[int]
    losses: list[str]
    weights: dict[str, str]
    gradients: dict[str, str]


def hash_samples(indices: npt.NDArray[np.int64]) -> str:
    """Return a short hash of sample indices and their order."""
    return hashlib.blake2b(indices.astype("<i8").tobytes(), digest_size=8).hexdigest()


@final
class Ledger:
    """Appends entries to a file; use as a context manager, or call `close`.

    Args:
        path: ``ledger.jsonl`` of the run directory, or another file of steps.
        last_step: Keep the entries up to this step, drop later ones (they will be written again).
    """

    def __init__(self, path: Path, last_step: int) -> None:
        kept = [line for line in read_lines(path) if line["step"] <= last_step]
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(line) + "\n" for line in kept))
        temporary.replace(path)
        self._file: IO[str] = path.open("a", buffering=1)

    def append(self, entry: Entry | Detail) -> None:
        """Write one line; it reaches the operating system before this returns."""
        self._file.write(json.dumps(asdict(entry)) + "\n")

    def sync(self) -> None:
        """Put everything written so far on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._file.close()


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a ledger, empty if there is none; a last line cut short by a crash is ignored."""
    entries: list[dict[str, Any]] = []
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_bytes().splitlines():
            try:
                entries.append(json.loads(line))
            except ValueError:
                break
    return entries
