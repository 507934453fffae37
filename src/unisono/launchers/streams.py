"""Where the workers' output goes besides the launcher's own: log files, and whose output is shown.

In: torchrun's words (``--redirects 0:1,1:2``, ``--tee 3``, ``--local-ranks-filter 0``). Out: for each worker's stdout
and stderr whether they are shown, and the file that keeps them. Must not import torch.
"""

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, final

from unisono.errors import ConfigError

STDOUT, STDERR = 1, 2
_NAMES = {STDOUT: "stdout.log", STDERR: "stderr.log"}
_ALL = -1


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Streams:
    """What is shown and what is kept of the workers' output; by default all is shown and nothing kept."""

    directory: str | None = None  #: Where the files go, as ``attempt_<n>/<local rank>/stdout.log``; None keeps nothing.
    #: By local rank (-1: all), the sum of 1 (stdout) and 2 (stderr): goes to the file only.
    redirected: Mapping[int, int] = field(default_factory=dict)
    copied: Mapping[int, int] = field(default_factory=dict)  #: The same; goes to the file too.
    shown: frozenset[int] | None = None  #: Local ranks whose output is shown; None: all.

    def lines(
        self, output: str, stream: int, rank: int, local_rank: int, world_size: int, *, is_kept: bool
    ) -> tuple[str, int | None] | None:
        """Return how a worker's lines are shown: prefix and our descriptor (None drops them); None: ours directly."""
        is_chosen = self.shown is None or local_rank in self.shown
        if output == "quiet" or not is_chosen or _of(self.redirected, local_rank) & stream:
            return "", None
        own, err = _descriptor(sys.__stdout__ if stream == STDOUT else sys.__stderr__), _descriptor(sys.__stderr__)
        is_direct = world_size == 1 if output == "prefix" else rank == 0
        if not is_direct:
            return f"[rank {rank}] ", own if output == "prefix" else err
        if output == "stderr" and stream == STDOUT:
            return "", err
        return ("", own) if is_kept else None

    def leaders_error(self, output: str) -> int | None:
        """Return our descriptor where the leader writes its error output into it directly; else None."""
        is_kept = self.file(0, 0, STDERR) is not None
        is_direct = self.lines(output, STDERR, 0, 0, 2, is_kept=is_kept) is None
        return _descriptor(sys.__stderr__) if is_direct else None

    def file(self, attempt: int, local_rank: int, stream: int) -> Path | None:
        """Return the file that keeps `stream` of a worker, None for none."""
        kept = (_of(self.redirected, local_rank) | _of(self.copied, local_rank)) & stream
        if self.directory is None or not kept:
            return None
        return Path(self.directory) / f"attempt_{attempt}" / str(local_rank) / _NAMES[stream]

    def open(self, attempt: int, local_rank: int, stream: int) -> int | None:
        """Make that file and return its descriptor, None for none."""
        path = self.file(attempt, local_rank, stream)
        if path is None:
            return None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def parse_streams(option: str, text: str) -> dict[int, int]:
    """Return what ``--redirects`` or ``--tee`` asks for, by local rank.

    Args:
        option: Named in the error.
        text: ``0`` to ``3`` for all workers, or ``LOCAL_RANK:N,...``.

    Raises:
        ConfigError: It is neither.

    Example:
        >>> parse_streams("--tee", "3"), parse_streams("--tee", "0:1,1:2"), parse_streams("--tee", "0")
        ({-1: 3}, {0: 1, 1: 2}, {})
    """
    if re.fullmatch(r"[0-3]", text):
        return {_ALL: int(text)} if text != "0" else {}
    if re.fullmatch(r"\d{1,6}:[0-3](,\d{1,6}:[0-3])*", text, re.ASCII):
        pairs = (part.split(":") for part in text.split(","))
        return {int(rank): int(streams) for rank, streams in pairs}
    raise ConfigError(
        f"expected {option} 0, 1 (stdout), 2 (stderr) or 3 (both), or that for some local ranks as in 0:1,1:3, "
        f"got {text!r}."
    )


def parse_ranks(option: str, text: str) -> frozenset[int] | None:
    """Return the local ranks of ``0,1``; None where nothing is given."""
    if not text:
        return None
    if not re.fullmatch(r"\d{1,6}(\s*,\s*\d{1,6})*", text.strip(), re.ASCII):
        raise ConfigError(f"expected {option} with local ranks such as 0,1, got {text!r}.")
    return frozenset(map(int, text.split(",")))


def make_log_directory(place: str, run_id: str) -> str:
    """Make a directory of this launch's own below `place`, which other launches may use too, and return it."""
    name = re.sub(r"[^\w.-]", "_", run_id) or "none"
    try:
        Path(place).mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix=f"{name}_", dir=place)
    except OSError as error:
        raise ConfigError(f"expected --log-dir with a directory to write to, got {place!r}: {error}.") from error


def _descriptor(stream: TextIO | None) -> int | None:
    # None when we were started with the stream closed: its number may be another file by now.
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


def _of(chosen: Mapping[int, int], local_rank: int) -> int:
    return chosen.get(local_rank, chosen.get(_ALL, 0))
