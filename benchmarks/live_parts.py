"""What `live_kills.py` has beside its kills: the cost of an undisturbed step, and restarts beside it."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from math import inf, isinf
from pathlib import Path

import live_job
import restart_time
from harness import UNISONO, rounds_of
from origin import commit
from results import Bar, Result

from unisono.experiments.chaos.live_run import LiveRun

HERE = Path(__file__).parent
TOPIC = "Faults and recovery"
COMMAND = "python benchmarks/live_kills.py --only "
COST_STEPS, WARM_UP = 600, 40
KILLED_AFTER, LAST = 25, 60


def play(kind: str, folder: Path) -> None:
    """Be a worker of `cost` or `restart`."""
    if kind == "cost":
        _play_steps(folder)
    elif kind == "live":
        live_job.train("cnn", str(folder / "run"), LAST)
    else:
        {"restart": restart_time.train_unisono, "torchrun": restart_time.train_torchrun}[kind](folder)


def _play_steps(folder: Path) -> None:
    """Train SimpleCNN, live recovery on and off by turns of a step each; write down what each step has taken."""
    import torch
    from torch.nn import functional as F

    import unisono
    from unisono.recipes.mnist import SimpleCNN

    with unisono.Run(seed=0, replicas=4, out=folder / "run") as run:
        model = SimpleCNN()
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5))
        data, lines = live_job.images(1, 640), []
        live = run._joined.live
        if live is None or live._boards is None:
            raise RuntimeError("this run has no live recovery over shared memory")
        for batch in run.steps(run.loader(data, batch_size=32), epochs=999, max_steps=COST_STEPS):
            is_on = batch.step % 4 in (0, 1)  # so of four: on, off, off, on
            live._boards.watch(is_on=is_on)
            run._stepper._live = live if is_on else None
            began = time.perf_counter()
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            lines.append(f"{1000 * (time.perf_counter() - began)}\n")
            live._boards.watch(is_on=True)
            run._stepper._live = live
        if run.world.is_leader:
            (folder / "steps").write_text("".join(lines))


def cost(given: argparse.Namespace) -> list[Result]:
    """Return what live recovery adds to an undisturbed step: the median of pairs in one run."""
    on: list[float] = []
    off: list[float] = []
    for _ in range(rounds_of(given, quick=1)):
        with tempfile.TemporaryDirectory() as scratch:
            program = [str(HERE / "live_kills.py"), "--play", "cost", scratch]
            command = [*UNISONO, "run", "-n", "2", "--threads", "1", "--live", "auto", *program]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            told = [float(line) for line in Path(scratch, "steps").read_text().splitlines()]
        for first in range(WARM_UP - 1, len(told) - 3, 4):  # step 1 is the first line
            begin, *between, end = told[first : first + 4]
            on.append((begin + end) / 2)
            off.append(sum(between) / 2)
    return [
        Result.of(
            "live-cost", on, what="an undisturbed step with live recovery (SimpleCNN, 2 workers, shared memory)",
            unit="ms", peer="live recovery off, steps by turns", against=off, bar=Bar(of="ratio", at_least=0.99),
            topic=TOPIC, command=f"{COMMAND}cost", settings={"pairs of two steps each": len(on)},
        )
    ]  # fmt: skip


def restart(given: argparse.Namespace) -> list[Result]:
    """Return the seconds from a kill to the next step: live recovery, a restart, torchrun; goes on where it was."""
    ways = {
        "live": _live_gap,
        "restart": partial(_restart_gap, "restart"),
        "torchrun": partial(_restart_gap, "torchrun"),
    }
    with contextlib.nullcontext(given.directory) if not given.quick else tempfile.TemporaryDirectory() as place:
        kept = Path(place, f"beside-{commit()}.jsonl")  # what different code has taken is not mixed
        times = _rounds(kept, ways, rounds_of(given, quick=1))
    try:
        peer = f"torchft {version('torchft')} is installed, and not measured"
    except PackageNotFoundError:
        peer = "torchft is not measured: see measurements"
    names = {
        "live": "with live recovery, to the end of the interrupted step",
        "restart": "with a restart, to the next step", "torchrun": "under torchrun with DDP, to the next step",
    }  # fmt: skip
    found = []
    for kind, samples in times.items():
        known = [value for value in samples if not isinf(value)]
        lost = len(samples) - len(known)
        note = f"{kind} never back in {lost} of {len(samples)} rounds" if lost else ""
        found.append(Result.of(
            f"live-beside-{kind}", known or [restart_time.PATIENCE_S], unit="s", topic=TOPIC,
            what=f"from SIGKILL of one of 2 workers that train SimpleCNN: {names[kind]}",
            command=f"{COMMAND}restart", settings={"rounds": len(samples)},
            note="; ".join(filter(None, (note, peer if kind == "torchrun" else ""))),
        ))  # fmt: skip
    return found


def _rounds(kept: Path, ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each way has given in so many rounds, every other one backwards; a file keeps whole ones."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    content = kept.read_text() if kept.exists() else ""
    done = [json.loads(line) for line in content[: content.rfind("\n") + 1].splitlines()][:rounds]
    for index in range(len(done), rounds):
        done.append({name: ways[name]() for name in (ways if index % 2 == 0 else reversed(ways))})
        print(f"{time.strftime('%T')} round {index + 1} of {rounds}: {done[-1]}", flush=True)
        with kept.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in done)
    return {name: [row[name] for row in done] for name in ways}


def _program(kind: str, folder: Path) -> list[str]:
    """Return the command of what is killed: a script as a user has it, which loads torch and sets no variable.

    A launcher forks the workers of such a script. `live_kills.py` itself sets variables, so each loads torch by itself.
    """
    script = folder / "job.py"
    lines = ("import sys", f"sys.path.insert(0, {str(HERE)!r})", "import torch, unisono", "import live_parts",
             "from pathlib import Path", "live_parts.play(sys.argv[1], Path(sys.argv[2]))")  # fmt: skip
    script.write_text("\n".join(lines))
    return [str(script), kind, str(folder)]


def _live_gap() -> float:
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        temporary = Path(scratch, "tmp")
        temporary.mkdir()
        program = _program("live", temporary)
        launcher = subprocess.Popen(
            [*UNISONO, "run", "-n", "2", "--threads", "1", "--live", "auto", "--max-restarts", "3", *program],
            env={**os.environ, "TMPDIR": str(temporary)}, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        from unisono.experiments.chaos.deaths import Death

        run = LiveRun(launcher, temporary, 2, LAST - 5)
        died = run.strike(Death(rank=1, aim="", delay_s=0.0, step=KILLED_AFTER), is_whole=True)
        if launcher.wait() or not died or died[0].gap_s is None:
            raise RuntimeError("the run under live recovery did not end well")
        return died[0].gap_s


def _restart_gap(kind: str) -> float:
    """Return the seconds from a kill to the first step of a new process; infinite where there is none."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        program = _program(kind, folder)
        start = [*UNISONO, "run", "-n", "2"]
        if kind == "torchrun":
            start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        launcher = subprocess.Popen(
            [*start, "--max-restarts", "3", *program], env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _, old, _ = restart_time.wait(folder, launcher, lambda line: line[2] >= KILLED_AFTER)
            killed = time.monotonic()
            os.kill(old, signal.SIGKILL)
            try:
                return restart_time.wait(folder, launcher, lambda line: line[1] != old)[0] - killed
            except (TimeoutError, RuntimeError):
                return inf
        finally:
            if launcher.poll() is None:
                launcher.terminate()
            launcher.wait()
