"""Which workers die when, and what came of it: pure rules of a seed.

In: a seed. Out: planned deaths, and tables of those that came. A run whose workers are not replaced loses up to N - 1
of N. One that grows back may lose any number: members, two within one recovery, and those that are about to join. One
on several hosts loses whole hosts, too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from unisono.determinism.seeding import mix
from unisono.errors import ConfigError

AIMS = ("", "data", "compute", "reduce", "update", "record", "save", "evaluate", "between steps")
"""What a worker may be doing when it is killed, as its heartbeat page tells it; empty: whatever it is."""

Kind = Literal["member", "second", "guest", "host", "launcher", "silent", "decider", "silent decider"]
"""A worker; another one before the others have recovered from the first; one that waits to join, or joins; a launcher
with its workers; a launcher alone, with which its workers die; all of a host stopped, and woken when it is left out;
the launcher that decides, with which its workers die; all of its host stopped and woken. These two take three hosts.
"""

_USED_SHARE = 0.8  # of the run: the last death must still find it going
_DELAY_S, _SECOND_S, _GUEST_S = 0.05, 0.08, 0.25
_KINDS: tuple[Kind, ...] = ("member",) * 7 + ("second",) + ("guest",) * 2
_OF_HOSTS: tuple[Kind, ...] = ("silent decider", "member", "decider", "host", "silent", "second", "launcher")
_TAIL = 0.99


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One planned death."""

    step: int = 0  #: It comes when this step (1-based) has begun, or a little later.
    rank: int  #: The worker, by its number at the start; where it is gone, another one that this number draws.
    aim: str  #: What it shall be doing, of `AIMS`.
    delay_s: float  #: How much later.
    kind: Kind = "member"  #: Who it is.


@dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    """What came of one death."""

    rank: int  #: The worker, by its number at the start, or the next one where it has come later.
    step: int  #: The step it was in, or before; of one that had not joined, that of the others.
    phase: str  #: What it was doing; ``joining`` where it had not joined.
    left: int  #: How many were left.
    gap_s: float | None  #: Until all others had finished that step; None where the run had ended, or it had not joined.
    kind: Kind = "member"  #: Who it was.


def plan_deaths(seed: int, count: int, *, steps: int, workers: int) -> Iterator[list[Death]]:
    """Yield the deaths of each run, in the order of their steps; the same for the same arguments everywhere."""
    room = last_step(steps, workers)
    number, left = 0, count
    while left:
        size = min(left, 1 + mix(seed, "live deaths", number) % (workers - 1))
        ranks = sorted(range(workers), key=lambda rank: mix(seed, "live rank", number, rank))
        chosen = sorted(range(2, room + 1), key=lambda step: mix(seed, "live step", number, step))[:size]
        yield [
            Death(
                step=step, rank=rank, aim=AIMS[(count - left + place) % len(AIMS)],
                delay_s=mix(seed, "live delay", number, place) % 1000 / 1000 * _DELAY_S,
            )
            for place, (step, rank) in enumerate(zip(sorted(chosen), ranks, strict=False))
        ]  # fmt: skip
        number, left = number + 1, left - size


def last_step(steps: int, workers: int) -> int:
    """Return the last step at which a death may be planned.

    Raises:
        ConfigError: The run is too short, or has one worker.
    """
    room = int(steps * _USED_SHARE)
    if workers < 2 or room <= workers:
        needed = int((workers + 1) / _USED_SHARE) + 1
        raise ConfigError(
            f"expected at least 2 workers and {needed} steps for --live, got {workers} workers and {steps} steps. "
            "Hint: -n 2, more --epochs."
        )
    return room


def plan_growing(seed: int, number: int, workers: int) -> Iterator[Death]:
    """Yield the deaths of a run that grows back, without end: each comes when the world is whole again.

    A second death has the place behind the first one, so that others have not recovered; it needs three workers.
    """
    place = 0
    while True:
        kind = _KINDS[mix(seed, "live kind", number, place) % len(_KINDS)]
        kind = "member" if kind == "second" and workers < 3 else kind
        width = {"member": _DELAY_S, "second": _SECOND_S, "guest": _GUEST_S}[kind]
        yield Death(
            rank=mix(seed, "live rank", number, place) % workers, kind=kind,
            aim="" if kind != "member" else AIMS[mix(seed, "live aim", number, place) % len(AIMS)],
            delay_s=mix(seed, "live delay", number, place) % 1000 / 1000 * width,
        )  # fmt: skip
        place += 1


def plan_on_hosts(seed: int, number: int, *, steps: int, workers: int) -> Iterator[Death]:
    """Yield the deaths of a run of so many workers on several hosts, without end: each kind in its turn."""
    room, step, place = last_step(steps, workers), 1, 0
    while True:
        step += 1 + mix(seed, "live step", number, place) % max(1, room // workers)
        kind = _OF_HOSTS[(number + place) % len(_OF_HOSTS)]
        yield Death(
            step=min(step, room), rank=mix(seed, "live rank", number, place) % workers, kind=kind,
            aim=AIMS[mix(seed, "live aim", number, place) % len(AIMS)],
            delay_s=mix(seed, "live delay", number, place) % 1000 / 1000 * _DELAY_S,
        )  # fmt: skip
        place += 1


def table_of(deaths: Sequence[Died], by: Literal["phase", "kind"] = "phase") -> list[tuple[str, int, float, float]]:
    """Return phase, deaths, median and longest gap in seconds, of each phase that was hit; or of each kind."""
    names = sorted({getattr(died, by) for died in deaths})
    gaps = {name: [died.gap_s for died in deaths if getattr(died, by) == name] for name in names}
    known = {name: [gap for gap in found if gap is not None] or [0.0] for name, found in gaps.items()}
    return [(name, len(gaps[name]), median(known[name]), max(known[name])) for name in names]


def spread_of(gaps: Sequence[float], undisturbed_s: float = 0.0) -> tuple[float, float] | None:
    """Return median and 99th percentile of the gaps beyond so much time; None where there are none."""
    beyond = sorted(gap - undisturbed_s for gap in gaps)
    return (median(beyond), beyond[min(len(beyond) - 1, int(_TAIL * len(beyond)))]) if beyond else None
