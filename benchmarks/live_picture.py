"""The picture of `live_kills.py`: one of three workers is killed, the others finish the step, another one joins.

It is drawn of one real run: each worker's heartbeat page is looked at a thousand times a second. Below it stand the
medians of the records, which other pages quote too: one run is no measurement.
"""

import argparse
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
WIDTH, LEFT, ROW, TOP, LINE = 560, 84, 34, 112, 19
INK, FAINT, ALARM = "#222222", "#6b6b6b", "#b00020"


def medians(records: quoted.Records) -> list[str]:
    """Return what all records say of the two times that one run shows."""
    late, joined = (sentence.format(*values) for _, sentence, values in quoted.live_medians(records))
    record = "Grey, record: a step's line is written, and whoever joins is waited for."
    return [late, "Worker 3 is forked from a process that has loaded torch, as all workers are:", joined, record]


def text(x: float, y: float, words: str, *, size: int = 14, fill: str = INK, at: str = "start", more: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{at}"'
    return f'<text {place} font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>'


def draw(tracks: dict[int, Track], killed: float, step: int, told: list[str]) -> str:
    """Return the time line as SVG: a row a worker, a colour a phase; below it what is told."""
    ends = [span[1] for track in tracks.values() for span in track.spans if span[3] == step]
    joined = min(span[0] for number, track in tracks.items() if number > 2 for span in track.spans if span[3])
    begin = killed - 0.15
    end = min(max(*ends, joined) + 0.2, killed + 4)
    scale = (WIDTH - LEFT - 16) / (end - begin)
    place = lambda at: LEFT + (at - begin) * scale  # noqa: E731
    parts = list(_rows(tracks, begin, end, place))
    bottom = TOP + ROW * len(tracks)
    done, until = max(ends), {number: 1000 * (at - killed) for number, at in enumerate((max(ends), joined))}
    marks = ((killed, "SIGKILL", ALARM, "end"), (done, f"step {step} is done", INK, "start"))
    for at, words, colour, anchor in marks:
        line = f'x1="{place(at):.1f}" x2="{place(at):.1f}" y1="{TOP - 8}" y2="{bottom}" stroke="{colour}"'
        parts += [f"<line {line}/>", text(place(at), TOP - 14, words, fill=colour, at=anchor)]
    every = 0.1 * math.ceil((end - killed) / 0.4)  # at most four ticks
    ticks = range(int((end - killed - 0.03 / scale * WIDTH) / every) + 1)  # the last one's words end on the sheet
    parts += [
        text(place(killed + number * every), bottom + 18, f"{1000 * number * every:.0f} ms", fill=FAINT, at="middle")
        for number in ticks
    ]
    legend, below = _legend(bottom + 34)
    parts += legend
    parts += [text(16, below + LINE * number, words, fill=FAINT) for number, words in enumerate(told)]
    height = below + LINE * len(told)
    name = "Three workers; one is killed, the others finish the step, a fourth joins"
    size = f'width="{WIDTH}" height="{height:.0f}"'
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height:.0f}" '
        f'font-family="system-ui, sans-serif" role="img"><title>{name}</title>{DARK_DRAWING}'
        f'<rect {size} fill="#ffffff"/>',
        text(16, 30, "Worker 1 is killed: the others finish the step,", size=18, more=' font-weight="600"'),
        text(16, 53, "and a new worker joins them", size=18, more=' font-weight="600"'),
        text(16, 76, f"One run: step {step} is done {until[0]:.0f} ms after the kill, worker 3 joins after "
             f"{until[1]:.0f} ms.", fill=FAINT),
        *parts, "</svg>\n",
    ])  # fmt: skip


def _rows(tracks: dict[int, Track], begin: float, end: float, place: Callable[[float], float]) -> Iterator[str]:
    for row, (number, track) in enumerate(sorted(tracks.items())):
        y = TOP + ROW * row
        yield text(16, y + 22, f"worker {number}")
        spans = [span for span in track.spans if span[1] >= begin and span[0] <= end]
        for (start, _, phase, _), following in zip(spans, [*(span[0] for span in spans[1:]), None], strict=True):
            until = following if following is not None else (track.died or min(end, track.spans[-1][1]))
            left, wide = place(max(start, begin)), place(min(until, end)) - place(max(start, begin))
            fill = COLOURS.get(phase, "#999999")
            if wide > 0:
                yield f'<rect x="{left:.1f}" y="{y + 4}" width="{wide:.1f}" height="{ROW - 8}" fill="{fill}"/>'


def _legend(top: float) -> tuple[list[str], float]:
    """Return the legend in rows, and where what comes below it may begin."""
    parts, x = [], 16.0
    for phase, colour in COLOURS.items():
        wide = 34 + width_of(phase, 14)
        if x + wide > WIDTH:
            x, top = 16.0, top + 22
        parts += [f'<rect x="{x:.0f}" y="{top:.0f}" width="13" height="13" fill="{colour}"/>']
        parts += [text(x + 18, top + 12, phase)]
        x += wide
    return parts, top + 42
