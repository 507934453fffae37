"""How long a training loop waits for a checkpoint: copied beside the next step, copied at once, against ``torch.save``.

    python benchmarks/checkpoint_stall.py [--mb 400] [--rounds 9] [--dir DIR] [--quick] [--out DIR]

One process, one thread, layers of 4 MB under Adam; the state is weights and two moments. Every turn is a way of saving,
then one step (forward, backward, update) that is longer than the copy; all ways in turn, each round backwards. The
waiting of ours is all that a run does in its training thread: `Checkpoints.save`, with packing the state, the look at
weights at the beginning of the step, and the wait before its update. ``lost`` is the turn's whole time over that of a
step without a save in the same round: it also holds what copying, hashing and writing beside the step cost the step on
these cores. ``torch.save`` writes the same tensors to a file in the same directory and does not sync it; ours is
synced, hashed and read back; ``verified`` is the time until then, steps not counted.
"""

import functools
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from harness import in_turn, parser_of, rounds_of, save
from results import Bar, Result
from torch import nn
from torch.nn import functional as F

from unisono.checkpoint.format import State, pack
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.loopback import LoopbackTransport
from unisono.determinism.switches import checksum
from unisono.train.run_directory.checkpoints import Checkpoints

PLAIN, LAZY, EAGER, INLINE, NONE = "torch.save", "beside the next step", "at once", "inline", "no save"


class Training:
    """A model under Adam, its step, and the ways to save it.

    Args:
        width: Of its square layers.
        count: Of its layers.
        scratch: Where checkpoints go.
        min_step_s: How long a step has to last; the batch grows until it does.
    """

    def __init__(self, width: int, count: int, scratch: Path, min_step_s: float) -> None:
        self.scratch, self.steps = scratch, itertools.count(1)
        self.model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(count)])
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=True)
        self.ways = {name: open_at(scratch / name, in_background=name != INLINE) for name in (LAZY, EAGER, INLINE)}
        self.batch = 16
        self.x = torch.randn(self.batch, width)
        self.step(NONE)
        while min(timed(lambda: self.step(NONE)) for _ in range(3)) < min_step_s:
            self.batch *= 2
            self.x = torch.randn(self.batch, width)
        for checkpoints in self.ways.values():
            checkpoints.reserve(self.state)
            checkpoints.settle()

    def state(self) -> State:
        return pack(self.model, self.optimizer, None, {"step": 1})

    def weights(self) -> list[nn.Parameter]:
        return list(self.model.parameters())

    def step(self, way: str) -> float:
        """Do one step, and return the seconds that it has waited for the copy of the state."""
        checkpoints, waited = self.ways.get(way), 0.0
        if checkpoints is not None:
            told = checksum(self.weights())  # for the ledger, at every step
            waited += timed(lambda: checkpoints.begin_step(told))
        self.optimizer.zero_grad()
        F.mse_loss(self.model(self.x), self.x).backward()
        if checkpoints is not None:
            waited += timed(checkpoints.release)
        self.optimizer.step()
        return waited

    def turn(self, way: str) -> dict[str, float]:
        """Save in one way and do a step; return the seconds waited for, of all, and until it is verified."""
        started = time.perf_counter()
        waited = 0.0
        if way == PLAIN:
            waited = timed(lambda: torch.save(self.state().tensors, self.scratch / "plain.pt"))
        elif way != NONE:
            recorded = self.weights if way == LAZY else None
            waited = timed(lambda: self.ways[way].save(next(self.steps), self.state, recorded=recorded))
        waited += self.step(way)
        whole = time.perf_counter() - started
        settled = timed(self.ways[way].settle) if way in self.ways else 0.0
        return {"waited": waited, "whole": whole, "verified": whole + settled}


def main() -> None:
    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--mb", type=int, default=None, help="size of the state (400)")
    parser.add_argument("--dir", type=Path, default=None, help="where the checkpoints go")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    width = 256 if given.quick else 1024
    count = max(1, round((given.mb or (12 if given.quick else 400)) * 1e6 / (12 * width * width)))
    with tempfile.TemporaryDirectory(prefix="unisono-stall-", dir=given.dir) as scratch:
        training = Training(width, count, Path(scratch), 0.02 if given.quick else 0.3)
        ways = {way: functools.partial(training.turn, way) for way in (PLAIN, LAZY, EAGER, INLINE, NONE)}
        found = in_turn(ways, rounds_of(given))
        for checkpoints in training.ways.values():
            checkpoints.close()
    step = [turn["whole"] for turn in found[NONE]]
    settings = {"MB": round(count * width * width * 12 / 1e6)}
    save(given, list(records(found, step, settings)))


def records(
    found: dict[str, list[dict[str, float]]], step: list[float], settings: dict[str, float]
) -> Iterator[Result]:
    """Make the records of all turns; `step` holds the seconds of a step without a save, round by round."""
    of = functools.partial(Result.of, topic="Checkpoints", settings=settings)
    ms = {way: [1e3 * turn["waited"] for turn in turns] for way, turns in found.items()}
    lost = {
        way: [1e3 * (turn["whole"] - plain) for turn, plain in zip(turns, step, strict=True)]
        for way, turns in found.items()
    }
    plain = ms[PLAIN]
    for name, way, bar in (("waiting", LAZY, Bar(at_most=2)), ("waiting-at-once", EAGER, None)):
        what = f"the training waits for a checkpoint, copied {way}"
        share = [100 * ours / theirs for ours, theirs in zip(ms[way], plain, strict=True)]
        yield of(f"{name}-share", share, what=f"{what}, of torch.save's time", unit="%", bar=bar)
        yield of(name, ms[way], what=what, unit="ms", peer="torch.save", against=plain)
    for name, way in (("lost", LAZY), ("lost-at-once", EAGER)):
        what = f"a checkpoint lengthens its step, copied {way}"
        yield of(name, lost[way], what=what, unit="ms", peer="torch.save", against=lost[PLAIN])
    verified = [1e3 * (turn["verified"] - plain) for turn, plain in zip(found[LAZY], step, strict=True)]
    yield of("verified", verified, what="until it is committed, read back and verified, beyond a step", unit="ms")
    yield of("inline", ms[INLINE], what="saved without a thread", unit="ms", peer="torch.save", against=plain)
    yield of("step", [1e3 * each for each in step], what="the step beside which it is copied", unit="ms")


def open_at(path: Path, *, in_background: bool) -> Checkpoints:
    checkpoints = Checkpoints(path, LoopbackTransport(), CheckpointPolicy(keep=1, in_background=in_background))
    checkpoints.facts = Facts(run="0" * 32)
    return checkpoints


def timed(act: Callable[[], object]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
