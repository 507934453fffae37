"""Which fault comes at which step: a pure function of one whole number.

In: a seed and the size of the run. Out: `Fault`s in the order of their steps. Touches no process.
"""

from dataclasses import dataclass

from unisono.determinism.seeding import mix
from unisono.errors import ConfigError

KINDS = {
    "kill-worker": "SIGKILL one worker",
    "kill-all": "SIGKILL all workers at once",
    "kill-launcher": "SIGKILL the launcher, and start the same command again at once",
    "stop": "SIGSTOP one worker for a moment, then SIGCONT",
    "resize": "SIGTERM the launcher, and go on with another number of workers",
}
# Of 20 draws, when all kinds are allowed.
_WEIGHTS = {"kill-worker": 9, "kill-all": 3, "kill-launcher": 3, "stop": 2, "resize": 3}
# A fault comes a little late on a busy machine; the last ones must still find the run going.
_USED_SHARE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One planned fault."""

    number: int  #: From 1 on.
    kind: str  #: One of `KINDS`.
    step: int  #: It comes when this step (1-based) is in progress, or as soon after as can be.
    rank: int  #: The worker that is hit, where it is one.
    workers: int  #: Number of workers from here on.
    hold_s: float  #: How long a stopped worker stays so.


def plan_faults(
    seed: int, count: int, *, steps: int, workers: int, kinds: tuple[str, ...] = tuple(KINDS)
) -> list[Fault]:
    """Return `count` faults at different steps, the same for the same arguments everywhere."""
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        raise ConfigError(f"expected kinds of faults out of {', '.join(KINDS)}, got {', '.join(unknown) or 'none'}.")
    room = int(steps * _USED_SHARE)
    if count > room:
        raise ConfigError(
            f"expected at most {room} faults for a run of {steps} steps, got {count}. "
            "Hint: fewer --kills, or more steps (--epochs)."
        )
    chosen = sorted(sorted(range(1, room + 1), key=lambda step: mix(seed, "fault step", step))[:count])
    usable = [kind for kind in kinds if kind != "resize" or workers > 1]
    urn = [kind for kind in usable for _ in range(_WEIGHTS[kind])]
    if not urn:
        raise ConfigError("resize needs at least 2 workers, got 1. Hint: -n 2, or other kinds of faults.")
    faults = []
    now = workers
    for number, step in enumerate(chosen, start=1):
        kind = urn[mix(seed, "fault kind", number) % len(urn)]
        rank = mix(seed, "fault rank", number) % now
        if kind == "resize":
            others = [size for size in range(1, workers + 1) if size != now]
            now = others[mix(seed, "fault workers", number) % len(others)]
        hold_s = 0.2 + mix(seed, "fault hold", number) % 1000 / 1000
        faults.append(Fault(number=number, kind=kind, step=step, rank=rank, workers=now, hold_s=hold_s))
    return faults
