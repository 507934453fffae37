"""How long the training thread waits for a checkpoint: saving beside the training against ``torch.save``.

    python benchmarks/checkpoint_stall.py [--mb 400] [--rounds 7] [--dir DIR] [--quick] [--out DIR]

One process, one state (weights and Adam's two moments, tensors of 4 MB), both ways in turn. The waiting of ours is all
of `Checkpoints.save` after the buffer has been reserved, as a run does it in its first step; `settle`, which a run does
before its next save, is shown beside it, as is our save without a thread. ``torch.save`` writes to a file in the same
directory and does not sync it; ours is synced, hashed, and read back. Wall time, and the CPU time of the training
thread, which other work on the machine disturbs less.
"""

import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from harness import in_turn, parser_of, rounds_of, save
from results import Bar, Result

from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.loopback import LoopbackTransport
from unisono.train.run_directory.checkpoints import Checkpoints

PLAIN, WAITING, VERIFIED, INLINE = "torch.save", "waiting", "verified", "inline"


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--mb", type=int, default=None, help="size of the state (400)")
    parser.add_argument("--dir", type=Path, default=None, help="where the checkpoints go")
    given = parser.parse_args()
    torch.set_num_threads(1)
    count = (given.mb or (12 if given.quick else 400)) // 12
    tensors = {
        "model": {f"layer{i}.weight": torch.randn(1 << 20) for i in range(count)},
        "optimizer": {f"layer{i}.weight/{key}": torch.randn(1 << 20) for i in range(count) for key in ("m", "v")},
    }
    state = State(tensors=tensors, values={"step": 1})
    with tempfile.TemporaryDirectory(prefix="unisono-stall-", dir=given.dir) as scratch:
        times = measure(Path(scratch), state, rounds_of(given))
    size = sum(tensor.nbytes for part in tensors.values() for tensor in part.values()) / 1e6
    wall = {name: [1e3 * each for each, _ in pairs] for name, pairs in times.items()}
    share, busy_share = (
        [100 * ours[clock] / theirs[clock] for ours, theirs in zip(times[WAITING], times[PLAIN], strict=True)]
        for clock in (0, 1)
    )
    common = {"topic": "Checkpoints", "settings": {"MB": round(size)}}
    save(
        given,
        [
            Result.of(
                "waiting-share",
                share,
                what="the training waits for a checkpoint, of torch.save's time",
                unit="%",
                bar=Bar(at_most=10),
                **common,
            ),
            Result.of("waiting-share-cpu", busy_share, what="the same by CPU time of the thread", unit="%", **common),
            Result.of(
                "waiting",
                wall[WAITING],
                what="the training waits for a checkpoint",
                unit="ms",
                peer="torch.save",
                against=wall[PLAIN],
                **common,
            ),
            Result.of(
                "verified", wall[VERIFIED], what="until it is committed, read back and verified", unit="ms", **common
            ),
            Result.of(
                "inline",
                wall[INLINE],
                what="saved without a thread",
                unit="ms",
                peer="torch.save",
                against=wall[PLAIN],
                **common,
            ),
        ],
    )


def measure(scratch: Path, state: State, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each way, round by round."""
    beside = open_at(scratch / "beside", in_background=True)
    inline = open_at(scratch / "inline", in_background=False)
    beside.reserve(lambda: state)
    beside.settle()
    steps = itertools.count(1)

    def save_with(checkpoints: Checkpoints) -> tuple[float, float]:
        return timed(lambda: checkpoints.save(next(steps), lambda: state))

    def beside_training() -> tuple[tuple[float, float], tuple[float, float]]:
        waited, settled = save_with(beside), timed(beside.settle)
        return waited, (waited[0] + settled[0], waited[1] + settled[1])

    times = in_turn({
        PLAIN: lambda: timed(lambda: torch.save(state.tensors, scratch / "plain.pt")),
        WAITING: beside_training,
        INLINE: lambda: save_with(inline),
    }, rounds)  # fmt: skip
    shutil.rmtree(scratch / "beside")
    waited, verified = zip(*times[WAITING], strict=True)
    return {**times, WAITING: waited, VERIFIED: verified}


def open_at(path: Path, *, in_background: bool) -> Checkpoints:
    checkpoints = Checkpoints(path, LoopbackTransport(), CheckpointPolicy(keep=1, in_background=in_background))
    checkpoints.facts = Facts(run="0" * 32)
    return checkpoints


def timed(act: Callable[[], object]) -> tuple[float, float]:
    started, busy = time.perf_counter(), time.thread_time()
    act()
    return time.perf_counter() - started, time.thread_time() - busy


if __name__ == "__main__":
    main()
