"""How long the training thread waits for a checkpoint: saving beside the training against ``torch.save``.

    python benchmarks/checkpoint_stall.py [--mb 400] [--rounds 7] [--dir DIR]

One process, one state (weights and Adam's two moments, tensors of 4 MB), both ways in turn. The waiting of ours is all
of `Checkpoints.save` after the buffer has been reserved, as a run does it in its first step; `settle`, which a run does
before its next save, is shown beside it, as is our save without a thread. ``torch.save`` writes to a file in the same
directory and does not sync it; ours is synced, hashed, and read back. Wall time, and the CPU time of the training
thread, which other work on the machine disturbs less.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.loopback import LoopbackTransport
from unisono.train.run_directory.checkpoints import Checkpoints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dir", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    count = given.mb // 12
    tensors = {
        "model": {f"layer{i}.weight": torch.randn(1 << 20) for i in range(count)},
        "optimizer": {f"layer{i}.weight/{key}": torch.randn(1 << 20) for i in range(count) for key in ("m", "v")},
    }
    state = State(tensors=tensors, values={"step": 1})
    with tempfile.TemporaryDirectory(prefix="unisono-stall-", dir=given.dir) as scratch:
        times = measure(Path(scratch), state, given.rounds)
    size = sum(tensor.nbytes for part in tensors.values() for tensor in part.values()) / 1e6
    print(f"{size:.0f} MB, {given.rounds} rounds in turn, 1 thread, load {os.getloadavg()[0]:.1f}; median (quartiles)")
    for name, pairs in times.items():
        low, middle, high = statistics.quantiles([wall for wall, _ in pairs], n=4)
        busy = statistics.median(cpu for _, cpu in pairs)
        print(
            f"{name:<34} {middle * 1e3:8.1f} ms  ({low * 1e3:.1f}-{high * 1e3:.1f}), of them {busy * 1e3:.1f} computing"
        )
    both = list(zip(times["waiting, beside the training"], times["torch.save"], strict=True))
    for index, kind in enumerate(("wall time", "CPU time")):
        ratios = sorted(ours[index] / theirs[index] for ours, theirs in both)
        print(f"waiting / torch.save, {kind}: {statistics.median(ratios):.1%} ({ratios[0]:.1%}-{ratios[-1]:.1%})")


def measure(scratch: Path, state: State, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return the seconds of each way, round by round; one round before them warms up."""
    beside = open_at(scratch / "beside", in_background=True)
    inline = open_at(scratch / "inline", in_background=False)
    beside.reserve(lambda: state)
    beside.settle()
    names = ("torch.save", "waiting, beside the training", "until it is committed and verified", "without a thread")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for step in range(1, rounds + 2):
        values = [
            timed(lambda: torch.save(state.tensors, scratch / "plain.pt")),
            timed(lambda step=step: beside.save(step, lambda: state)),
            timed(beside.settle),
            timed(lambda step=step: inline.save(step, lambda: state)),
        ]
        values[2] = (values[1][0] + values[2][0], values[1][1] + values[2][1])
        if step > 1:
            for name, value in zip(names, values, strict=True):
                times[name].append(value)
    shutil.rmtree(scratch / "beside")
    return times


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
