"""From SIGKILL of a worker to the first new step: `unisono run --max-restarts` beside torchrun, in turn.

    python benchmarks/restart_time.py [--rounds 7] [--quick] [--out DIR]

The same model, batch and number of processes (2, one thread each), both with a checkpoint every 10 steps and a resume
from it: unisono's own, and ``torch.save`` by rank 0 under DistributedDataParallel with gloo. Every worker writes down
when it has finished a step; the parent kills rank 1 after step 25 and waits for the first step of a new process.
A run that is not back after two minutes, or gives up, counts as never back
(seen with torchrun: both new workers waiting for each other in ``init_process_group``). With --quick unisono alone.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from math import inf, isinf
from pathlib import Path

from harness import UNISONO, in_turn, leave_group, parser_of, rounds_of, save
from results import Bar, Result

STEPS, KILLED_AFTER, EVERY, BATCH = 60, 25, 10, 64
PATIENCE_S = 120


def note(folder: Path, step: int) -> None:
    """Write down that this process has finished a step."""
    with (folder / f"steps-{os.environ['RANK']}").open("a") as file:
        file.write(f"{time.monotonic()} {os.getpid()} {step}\n")


def train_unisono(folder: Path) -> None:
    """Train under unisono."""
    import torch
    from torch.nn import functional as F

    import unisono
    from unisono.recipes.mnist import SimpleCNN

    with unisono.Run(seed=0, replicas=2, out=folder / "run", checkpoint_every=EVERY) as run:
        model = SimpleCNN()
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5))
        data = unisono.ArrayDataset(torch.randn(BATCH * STEPS, 1, 28, 28), torch.randint(0, 10, (BATCH * STEPS,)))
        for batch in run.steps(run.loader(data, batch_size=BATCH), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            note(folder, batch.step)


def train_torchrun(folder: Path) -> None:
    """Train under torchrun, as its documentation shows it."""
    import torch
    import torch.distributed as dist
    from torch.nn import functional as F
    from torch.nn.parallel import DistributedDataParallel

    from unisono.recipes.mnist import SimpleCNN

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(SimpleCNN())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    snapshot, first = folder / "snapshot.pt", 1
    if snapshot.exists():
        state = torch.load(snapshot, weights_only=True)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1
    share = BATCH // dist.get_world_size()
    x, y = torch.randn(share * STEPS, 1, 28, 28), torch.randint(0, 10, (share * STEPS,))
    for step in range(first, STEPS + 1):
        part = slice((step - 1) * share, step * share)
        optimizer.zero_grad()
        F.cross_entropy(model(x[part]), y[part]).backward()
        optimizer.step()
        note(folder, step)
        if step % EVERY == 0 and dist.get_rank() == 0:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, snapshot.with_suffix(".part"))
            snapshot.with_suffix(".part").replace(snapshot)
    leave_group()


def command(kind: str, folder: Path) -> list[str]:
    """Return the command line of a launcher."""
    program = [__file__, "--play", kind, str(folder)]
    if kind == "unisono":
        return [*UNISONO, "run", "-n", "2", "--max-restarts", "3", *program]
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*start, "--max-restarts", "3", *program]


def measure(kind: str) -> tuple[float, float]:
    """Make one run; returns seconds from its start to the first step, and from the kill to the first new step."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, began = Path(scratch), time.monotonic()
        launcher = subprocess.Popen(
            command(kind, folder), env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _, old, _ = wait(folder, launcher, lambda line: line[2] >= KILLED_AFTER)
            killed = time.monotonic()
            os.kill(old, signal.SIGKILL)
            try:
                new = wait(folder, launcher, lambda line: line[1] != old)[0]
            except (TimeoutError, RuntimeError):
                return read(folder)[0][0] - began, inf
            if launcher.wait() != 0:
                raise RuntimeError(f"{kind} did not end well")
            lines = read(folder)
            return lines[0][0] - began, new - killed
        finally:
            if launcher.poll() is None:
                launcher.terminate()  # it ends its workers
                launcher.wait()


def wait(
    folder: Path, launcher: subprocess.Popen[bytes], is_it: Callable[[tuple[float, int, int]], bool]
) -> tuple[float, int, int]:
    """Return the first line of rank 1 for which `is_it` holds."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if found := next(filter(is_it, read(folder)), None):
            return found
        if launcher.poll() is not None:
            raise RuntimeError(f"the launcher ended early, with code {launcher.returncode}")
        time.sleep(0.002)
    raise TimeoutError(f"no such step within {PATIENCE_S} s")


def read(folder: Path) -> list[tuple[float, int, int]]:
    """Return what rank 1 has noted: time, process, step."""
    path = folder / "steps-1"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(float(at), int(pid), int(step)) for at, pid, step in (line.split() for line in lines)]


def main() -> None:
    """Measure both in turn."""
    parser = parser_of(__doc__, rounds=7)
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        kind, folder = given.play
        {"unisono": train_unisono, "torchrun": train_torchrun}[kind](Path(folder))
        return
    kinds = ("unisono",) if given.quick else ("unisono", "torchrun")  # a worker of torchrun may never come back
    times = in_turn({kind: partial(measure, kind) for kind in kinds}, rounds_of(given, quick=1), warm_up=0)
    found = []
    for key, what, bar in (("start", "from the start to the first step", None),
                           ("restart", "from SIGKILL of a worker to the next step", Bar(at_most=5))):  # fmt: skip
        samples = {kind: [pair[key == "restart"] for pair in pairs] for kind, pairs in times.items()}
        theirs = samples.get("torchrun", [])
        lost = {kind: sum(map(isinf, taken)) for kind, taken in samples.items() if any(map(isinf, taken))}
        found.append(
            Result.of(
                key,
                [value for value in samples["unisono"] if not isinf(value)],
                unit="s",
                what=what,
                bar=bar,
                topic="Faults and recovery",
                peer="torchrun with DDP" if theirs and not lost else None,
                against=None if lost else theirs,
                settings={"processes": 2},
                note=", ".join(
                    f"{kind} never back in {count} of {len(times[kind])} rounds" for kind, count in lost.items()
                ),
            )
        )
    save(given, found)


if __name__ == "__main__":
    main()
