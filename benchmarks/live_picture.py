"""The picture of `live_kills.py`: one of three workers is killed, the others finish the step, another one joins.

It is drawn of one real run: each worker's heartbeat page is looked at a thousand times a second. Below it stand the
medians of the records, which other pages quote too: one run is no measurement.
"""

import argparse
import itertools
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import kills_stage
import quoted
from results import RESULTS, ROOT, Result

from unisono.experiments.chaos.live_run import LiveRun
from unisono.report.svg import DARK_DRAWING, LIGHT, width_of
from unisono.system.heartbeat import HeartbeatPage

HERE = Path(__file__).parent
PICTURE = ROOT / "docs" / "pictures" / "live.svg"


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
    text = draw(tracks, killed, step, medians(quoted.Records(RESULTS)))
    if not given.quick:
        PICTURE.write_text(text)
    return []


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
        is_inside = first is not None and first.step >= steps // 3 and first.phase == "compute"
        if is_inside and not killed and now - tracks[1].spans[-1][0] > 0.01:
            os.kill(first.pid, signal.SIGKILL)
            tracks[1].died, killed, step = now, now, first.step
        time.sleep(0.0005)
    return tracks, killed, step


WIDTH, LEFT, ROW, TOP, SIZE, LINE = 480, 84, 36, 106, 15, 21
INK, FAINT, ALARM = LIGHT["ink"], LIGHT["faint"], LIGHT["alarm"]
STEPS, INTERRUPTED, WAITING, JOINING = (LIGHT["c0"], LIGHT["c4"]), LIGHT["c1"], "#c3c7cc", LIGHT["c2"]
WAITS = ("record", "save", "between steps")
"""Phases in which a worker writes its line or its state, and waits for whoever joins."""


def medians(records: quoted.Records) -> list[str]:
    """Return what all records say of the two times that one run shows."""
    late, joined = (sentence.format(*values) for _, sentence, values in quoted.live_medians(records))
    return ["This is one run. Medians of many:", late, joined]


def text(
    x: float, y: float, words: str, *, size: float = SIZE, fill: str = INK, at: str = "start", more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{at}"'
    return f'<text {place} font-size="{size:g}" fill="{fill}"{more}>{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"/>'


def draw(tracks: dict[int, Track], killed: float, step: int, told: list[str]) -> str:
    """Return the time line as SVG: a row a worker, a block a step with its number; below it what is told."""
    done = max(span[1] for track in tracks.values() for span in track.spans if span[3] == step)
    joined = min(span[0] for number, track in tracks.items() if number > 2 for span in track.spans if span[3])
    begin, end = killed - 0.12, min(max(done, joined) + 0.16, killed + 4)
    scale = (WIDTH - LEFT - 12) / (end - begin)
    place = lambda at: LEFT + (at - begin) * scale  # noqa: E731
    parts = list(_rows(tracks, begin, end, step, place))
    bottom = TOP + ROW * len(tracks)
    marks = ((killed, "SIGKILL", ALARM, "middle"), (done, f"step {step} done", INK, "start"))
    for at, words, colour, anchor in marks:
        line = f'x1="{place(at):.1f}" x2="{place(at):.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{colour}"'
        parts += [f'<line {line} stroke-width="2"/>', text(place(at), TOP - 12, words, fill=colour, at=anchor)]
    every = 0.1 * math.ceil((end - killed) / 0.4)  # at most four ticks
    ticks = range(int((end - killed - 40 / scale) / every) + 1)  # the last one's words end on the sheet
    parts += [
        text(place(killed + number * every), bottom + 18, f"{number * every:.1f} s", fill=FAINT, at="middle")
        for number in ticks
    ]
    top = bottom + 32
    legend = {f"step {step}, interrupted": INTERRUPTED, "other steps": STEPS[0],
              "waits for others": WAITING, "joins: gets the state": JOINING}  # fmt: skip
    for number, (words, colour) in enumerate(legend.items()):
        x, y = (16, 230)[number % 2], top + 24 * (number // 2)
        parts += [box(x, y, 14, 14, colour), text(x + 22, y + 13, words)]
    top += 24 * 2 + 22
    parts += [text(16, top + LINE * number, words, fill=FAINT) for number, words in enumerate(told)]
    height = top + LINE * (len(told) - 1) + 14
    title = (f"Worker 1 is killed: step {step} is done {done - killed:.2f} s later,",
             f"a new worker has joined after {joined - killed:.2f} s")  # fmt: skip
    size = f'width="{WIDTH}" height="{height:.0f}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="system-ui, sans-serif" role="img"><title>{" ".join(title)}</title>{DARK_DRAWING}'
        f'<rect {size} fill="#ffffff"/>',
        *(text(16, 28 + 24 * number, line, size=17, more=' font-weight="600"') for number, line in enumerate(title)),
        *parts, "</svg>\n",
    ])  # fmt: skip


def _rows(
    tracks: dict[int, Track], begin: float, end: float, step: int, place: Callable[[float], float]
) -> Iterator[str]:
    """Yield each worker's blocks: steps in turn in two blues, with their numbers where there is room."""
    for row, (number, track) in enumerate(sorted(tracks.items())):
        y = TOP + ROW * row
        yield text(12, y + 23, f"worker {number}")
        for (phase, which), spans in itertools.groupby(_blocks(track), key=lambda block: block[2:]):
            found = list(spans)
            start, until = found[0][0], track.died if track.died and found[-1][1] > track.died else found[-1][1]
            if until < begin or start > end:
                continue
            left, right = place(max(start, begin)), place(min(until, end))
            fill = {"joins": JOINING, "waits": WAITING}.get(phase) or (
                INTERRUPTED if which == step else STEPS[which % 2]
            )
            yield box(left, y + 4, max(right - left, 0.5), ROW - 8, fill)
            words = str(which) if phase == "step" else phase
            if width_of(words, SIZE) + 4 < right - left:
                ink = INK if phase == "waits" else "white"
                yield text((left + right) / 2, y + 23, words, fill=ink, at="middle", more=' font-weight="600"')


def _blocks(track: Track) -> Iterator[tuple[float, float, str, int]]:
    """Yield from, to, what and step; a look lasts until the next one, and short waits belong to their step."""
    ends = [*(span[0] for span in track.spans[1:]), track.spans[-1][1]]
    for (start, _, phase, step), until in zip(track.spans, ends, strict=True):
        if phase == "joining":
            yield start, until, "joins", 0
        else:
            yield start, until, "waits" if phase in WAITS and until - start > 0.03 else "step", step
