"""What `live_kills.py` has beside its kills: the cost of an undisturbed step, restarts beside it, and a picture.

A picture is drawn of one real run: each worker's heartbeat page is looked at a thousand times a second while one of
three is killed and another one joins.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from html import escape
from importlib.metadata import PackageNotFoundError, version
from math import inf, isinf
from pathlib import Path

import kills_stage
import live_job
import restart_time
from harness import UNISONO, rounds_of
from origin import commit
from results import ROOT, Bar, Result

from unisono.experiments.chaos.live_run import LiveRun
from unisono.report.svg import DARK_DRAWING, LIGHT
from unisono.system.heartbeat import HeartbeatPage

HERE = Path(__file__).parent
PICTURE = ROOT / "docs" / "pictures" / "live.svg"
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


def _live_gap() -> float:
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        temporary = Path(scratch, "tmp")
        temporary.mkdir()
        program = [str(HERE / "live_kills.py"), "--play", "live", scratch]
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
        program = [str(HERE / "live_kills.py"), "--play", kind, scratch]
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


@dataclass
class Track:
    """What one worker has been seen doing: from, to, phase, step; in seconds."""

    spans: list[tuple[float, float, str, int]] = field(default_factory=list)
    died: float | None = None

    def see(self, now: float, phase: str, step: int) -> None:
        """Take one look into account."""
        if self.spans and self.spans[-1][2:] == (phase, step):
            self.spans[-1] = (self.spans[-1][0], now, phase, step)
        else:
            self.spans.append((now, now, phase, step))


def picture(given: argparse.Namespace) -> list[Result]:
    """Draw one run on three workers, of which one is killed in the midst of a step, and another one joins."""
    with tempfile.TemporaryDirectory(prefix="live-") as scratch:
        kills_stage.warm_up()
        folder = Path(scratch)
        tracks, killed, step = _watch(folder, QUICK if given.quick else 120)
    text = draw(tracks, killed, step)
    if not given.quick:
        PICTURE.write_text(text)
    last = max(span[1] for track in tracks.values() for span in track.spans if span[3] == step)
    return [
        Result.of(
            "live-picture", [last - killed], unit="s", topic=TOPIC, command=f"{COMMAND}picture",
            what="from SIGKILL to the end of the interrupted step in the run that is drawn (SimpleCNN, 3 workers)",
        )
    ]  # fmt: skip


QUICK = 60


def _watch(folder: Path, steps: int) -> tuple[dict[int, Track], float, int]:
    """Return what was seen of each worker, when one was killed, and in which step."""
    from live_kills import Forked

    launcher = Forked(kills_stage.start_launcher(
        HERE / "live_job.py", ["cnn", str(folder / "run"), str(steps)], workers=3, folder=folder,
        temporary=folder / "tmp", live="auto",
    ))  # fmt: skip
    run, tracks = LiveRun(launcher, folder / "tmp", 3, steps), dict[int, Track]()
    pages: dict[int, HeartbeatPage] = {}
    killed, step, looked = 0.0, 0, 0.0
    while launcher.poll() is None:
        now = time.monotonic()
        if now > looked + 0.01:
            pages, looked = {**pages, **run.members(), **run.guests()}, now
        for number, page in pages.items():
            seen = page.read()
            track = tracks.setdefault(number, Track())
            if track.died is None and seen.pid:
                track.see(now, seen.phase if seen.step else "joining", seen.step)
        first = pages[1].read() if 1 in pages else None
        if first is not None and not killed and first.step >= steps // 3 and first.phase == "compute":
            os.kill(first.pid, signal.SIGKILL)
            tracks[1].died, killed, step = now, now, first.step
        time.sleep(0.0005)
    return tracks, killed, step


COLOURS = {
    "data": LIGHT["c0"], "compute": LIGHT["c1"], "reduce": LIGHT["c3"], "update": LIGHT["c4"], "record": "#9aa0a6",
    "save": LIGHT["c6"], "evaluate": LIGHT["c7"], "between steps": "#e6e6e6", "joining": "#c8d8c8",
}  # fmt: skip
"""Of the phases of a step, as in a report; there ``compute`` is cut into forward and backward."""
WIDTH, LEFT, ROW, TOP = 900, 110, 34, 78


def draw(tracks: dict[int, Track], killed: float, step: int) -> str:
    """Return the time line as SVG: a row a worker, a colour a phase."""
    ends = [span[1] for track in tracks.values() for span in track.spans if span[3] == step]
    joins = [span[0] for number, track in tracks.items() if number > 2 for span in track.spans if span[3]]
    begin = killed - 0.15
    end = min(max([*ends, *joins[:1]]) + 0.25, killed + 4)
    scale = (WIDTH - LEFT - 20) / (end - begin)
    place = lambda at: LEFT + (at - begin) * scale  # noqa: E731
    parts = list(_rows(tracks, begin, end, place))
    bottom = TOP + ROW * len(tracks)
    for at, told, colour in ((killed, "SIGKILL", "#b00020"), (max(ends), f"step {step} is done", "#222222")):
        parts.append(
            f'<line x1="{place(at):.1f}" x2="{place(at):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{colour}"/>'
        )
        anchor = "end" if at == killed else "start"
        parts.append(f'<text x="{place(at):.1f}" y="{TOP - 14}" text-anchor="{anchor}" fill="{colour}">{told}</text>')
    parts += _legend(bottom)
    for number in range(int((end - killed) * 5) + 1):
        parts.append(f'<text x="{place(killed + number / 5):.1f}" y="{bottom + 16}" text-anchor="middle" '
                     f'fill="#6b6b6b">{200 * number} ms</text>')  # fmt: skip
    height = bottom + 64
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img">'
        f"<title>Three workers; one is killed, the others finish the step, a fourth joins</title>{DARK_DRAWING}"
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    )
    found = f"Worker 1 is killed. The two others finish step {step}, {1000 * (max(ends) - killed):.0f} ms later"
    found += f"; worker 3 joins {1000 * (min(joins) - killed):.0f} ms after the kill." if joins else "."
    return "\n".join([head, f'<text x="8" y="20" font-size="15" font-weight="600" fill="#222222">{found}</text>',
                      '<text x="8" y="40" fill="#6b6b6b">Time since the kill; each row is a worker.</text>',
                      *parts, "</svg>\n"])  # fmt: skip


def _rows(tracks: dict[int, Track], begin: float, end: float, place) -> Iterator[str]:
    for row, (number, track) in enumerate(sorted(tracks.items())):
        y = TOP + ROW * row
        name = f"worker {number}" + (" (joins)" if number > 2 else "")
        yield f'<text x="8" y="{y + 20}" fill="#222222">{escape(name)}</text>'
        spans = [span for span in track.spans if span[1] >= begin and span[0] <= end]
        for (start, _, phase, _), following in zip(spans, [*(span[0] for span in spans[1:]), None], strict=True):
            until = following if following is not None else (track.died or min(end, track.spans[-1][1]))
            left, wide = place(max(start, begin)), place(min(until, end)) - place(max(start, begin))
            fill = COLOURS.get(phase, "#999999")
            if wide > 0:
                yield f'<rect x="{left:.1f}" y="{y + 4}" width="{wide:.1f}" height="{ROW - 8}" fill="{fill}"/>'


def _legend(bottom: float) -> Iterator[str]:
    x = float(LEFT)
    for phase, colour in COLOURS.items():
        yield f'<rect x="{x:.0f}" y="{bottom + 32}" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 16:.0f}" y="{bottom + 43}" fill="#222222">{escape(phase)}</text>'
        x += 30 + 6.2 * len(phase)
