"""Draw the README's picture from real runs: one job on 1 to 4 workers, killed and resumed, beside plain DDP.

    python benchmarks/proof_picture.py [DIR] [--quick] [--out DIR]

runs proof_job.py nine times or so (a minute), keeps the runs in DIR, and writes docs/pictures/proof.svg. Exits with 1,
and writes nothing, where the fingerprints of the exact runs differ. With --quick one epoch on 1 worker and a
killed run, and no picture.
"""

import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from harness import UNISONO, parser_of, save
from results import Bar, Result

from unisono.observe.phases import read_phases
from unisono.report.svg import DARK_DRAWING

HERE = Path(__file__).parent
PICTURE = HERE.parent / "docs" / "pictures" / "proof.svg"
LIVES = ((4, 97), (2, 171), (3, None))
"""The disturbed run: workers of each life, and the step in which one of them is killed."""

INK, FAINT, RULE, ALARM = "#222222", "#6b6b6b", "#c9c9c9", "#b00020"
BLUES = {1: "#9ecae9", 2: "#4f9bd0", 3: "#1f6fab", 4: "#0b4a7a"}
WIDTH, LEFT, RIGHT = 460, 112, 444
TOP, LANE = 64, 50
"""Where the first lane begins, and how far the next one is from it."""


def run_job(workers: int, out: Path, *options: str, dies: bool = False) -> None:
    """Run the job, which ends well or is killed."""
    program = [*UNISONO, "run", "-n", str(workers), str(HERE / "proof_job.py"), "--out", str(out), *options]
    code = subprocess.run(program, check=False, stderr=subprocess.DEVNULL).returncode
    assert code == (128 + 9 if dies else 0), f"{out.name} on {workers} workers ended with code {code}"


def run_all(folder: Path, workers: Sequence[int], lives: Sequence[tuple[int, int | None]], epochs: int) -> None:
    """Run what is not there yet."""
    length = ("--epochs", str(epochs))
    for count in workers:
        for strategy in ("exact", "ddp"):
            if not (folder / f"{strategy}-{count}" / "result.json").exists():
                run_job(count, folder / f"{strategy}-{count}", "--strategy", strategy, *length)
    if not (folder / "killed" / "result.json").exists():
        for count, step in lives:
            dying = () if step is None else ("--die-at", str(step))
            run_job(count, folder / "killed", *dying, *length, dies=step is not None)


def losses(run: Path) -> list[float]:
    """Return the loss of each step, exactly."""
    return [float.fromhex(json.loads(line)["loss"]) for line in (run / "ledger.jsonl").read_text().splitlines()]


def fingerprint(run: Path) -> str:
    return json.loads((run / "result.json").read_text())["fingerprint"]


def text(
    x: float, y: float, words: str, *, size: float = 14, fill: str = INK, anchor: str = "start", more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} font-size="{size}" fill="{fill}"{more}>{escape(words)}</text>'


def lanes(folder: Path, steps: int, names: Sequence[str], lives: Sequence[tuple[int, int | None]]) -> list[str]:
    """Return a lane for each exact run: who computed which steps, and the fingerprint at its end."""
    parts = [text(16, 30, f"{len(names)} runs end with the same weights", size=17, more=' font-weight="600"')]
    parts.append(text(16, 51, f"{steps} steps each; below a bar: SHA-256 of its weights", fill=FAINT))
    scale = (RIGHT - LEFT) / steps
    for row, name in enumerate(names):
        y = TOP + LANE * row
        count = name.rpartition("-")[2]
        label = "killed twice" if name == "killed" else f"{count} worker{'s' if count != '1' else ''}"
        parts.append(text(16, y + 17, label))
        found = [record for record in read_phases(folder / name) if record.rank == 0]
        played = {record.launch: record.world_size for record in found}  # as the run itself has recorded it
        ends = [step - 1 for _, step in lives if step is not None] if name == "killed" else []
        for workers, first, end in zip(played.values(), [0, *ends], [*ends, steps], strict=True):
            parts.append(
                f'<rect x="{LEFT + first * scale:.1f}" y="{y}" width="{(end - first) * scale - 2:.1f}" height="24" '
                f'rx="3" fill="{BLUES[workers]}"/>'
            )
            if name == "killed":
                middle = LEFT + (first + end) / 2 * scale
                parts.append(text(middle, y + 17, f"{workers} workers", fill="white", anchor="middle"))
        for end in ends:
            x = LEFT + end * scale - 1
            parts.append(f'<path d="M{x - 7:.1f} {y + 4}l14 16m0 -16l-14 16" stroke="{ALARM}" stroke-width="4"/>')
        parts.append(text(LEFT, y + 40, fingerprint(folder / name)[:32] + "...", more=' font-family="monospace"'))
    return parts


def drift(folder: Path, steps: int, names: Sequence[str]) -> list[str]:
    """Return the lower half: how far each run's loss is from the same way of training on one worker."""
    begin = TOP + LANE * len(names) + 34
    top, bottom = begin + 90, begin + 270
    low, high = -4, 0
    title = "DDP's loss depends on the number of workers"
    parts = [text(16, begin, title, size=16, more=' font-weight="600"')]
    notes = ("distance from the loss on one worker, log scale;", "same data, batches and seed")
    parts += [text(16, begin + 21 + 19 * row, note, fill=FAINT) for row, note in enumerate(notes)]

    def height(value: float) -> float:
        return bottom - (math.log10(value) - low) / (high - low) * (bottom - top)

    scale = (RIGHT - LEFT) / steps
    for power in (-4, -3, -2, -1, 0):
        y = height(10.0**power)
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{RIGHT}" y2="{y:.1f}" stroke="{RULE}" stroke-width="0.8"/>')
        parts.append(text(LEFT - 10, y + 5, f"{10.0**power:g}", fill=FAINT, anchor="end"))
    alone = losses(folder / "ddp-1")
    for workers, colour in ((2, "#8a6d00"), (3, "#b3500b"), (4, ALARM)):
        if f"exact-{workers}" not in names:
            continue
        apart = [abs(a - b) for a, b in zip(losses(folder / f"ddp-{workers}"), alone, strict=True)]
        worst = [max(apart[max(0, at - 4) : at + 1]) for at in range(len(apart))]
        points = [f"{LEFT + at * scale:.1f},{height(value):.1f}" for at, value in enumerate(worst) if value > 10.0**low]
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(text(16 + 140 * (workers - 2), begin + 70, f"DDP, {workers} workers", fill=colour))
    whole = losses(folder / "exact-1")
    for name in names:
        assert losses(folder / name) == whole, f"{name} has other losses"
    zero = bottom + 22
    parts.append(f'<line x1="{LEFT}" y1="{zero}" x2="{RIGHT}" y2="{zero}" stroke="{BLUES[3]}" stroke-width="3"/>')
    parts.append(text(LEFT - 10, zero + 5, "0", fill=FAINT, anchor="end"))
    parts.append(text(LEFT, zero + 22, "first step", fill=FAINT))
    parts.append(text(RIGHT, zero + 22, f"step {steps}", fill=FAINT, anchor="end"))
    parts.append(text(16, zero + 46, "unisono, on the line at 0 in every step:", fill=BLUES[4]))
    for row, name in enumerate(names):  # a mark of each on the line in turn, which all of them would cover
        count = name.rpartition("-")[2]
        is_killed = name == "killed"
        x, y = 16 + 140 * (row % 3), zero + 63 + 23 * (row // 3)
        parts += [_mark(x + 6, y, row, is_killed=is_killed)]
        words = "killed twice" if is_killed else f"{count} worker{'s' if count != '1' else ''}"
        parts.append(text(x + 18, y + 5, words))
        parts += [
            _mark(LEFT + (at + 0.5) * (RIGHT - LEFT) / 20, zero, row, is_killed=is_killed)
            for at in range(row, 20, len(names))
        ]
    return parts


def _mark(x: float, y: float, row: int, *, is_killed: bool) -> str:
    """Return a run's mark: a dot in the colour of its lane, or a cross."""
    if is_killed:
        return f'<path d="M{x - 5:.1f} {y - 5}l10 10m0 -10l-10 10" stroke="{ALARM}" stroke-width="3"/>'
    return f'<circle cx="{x:.1f}" cy="{y}" r="6" fill="{BLUES[row + 1]}" stroke="white"/>'


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="where the runs stay")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    workers, lives = ((1,), ((2, 15), (1, None))) if given.quick else ((1, 2, 3, 4), LIVES)
    run_all(folder, workers, lives, 1 if given.quick else 10)
    names = [*(f"exact-{count}" for count in workers), "killed"]
    found = {name: fingerprint(folder / name) for name in names}
    for name, value in found.items():
        print(f"{name:8} {value}")
    save(
        given,
        [
            Result.of(
                "fingerprints",
                [len(set(found.values()))],
                what=f"fingerprints of {len(names)} runs of one job, one of them killed",
                unit="fingerprints",
                topic="Faults and recovery",
                bar=Bar(at_most=1),
                settings={"workers": ", ".join(map(str, workers))},
            )
        ],
    )
    if len(set(found.values())) > 1:
        print("DIFFERENT")
        return 1
    if given.quick:  # a life of a second leaves no record of its phases to draw
        if given.folder is None:
            shutil.rmtree(folder)
        return 0
    steps = len(losses(folder / "exact-1"))
    height = TOP + LANE * len(names) + 34 + 270 + 22 + 104
    label = "Five runs of one job with one fingerprint, and how far the losses of plain DDP drift apart"
    picture = "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{label}">{DARK_DRAWING}',
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="white"/>',
        *lanes(folder, steps, names, lives), *drift(folder, steps, names), "</svg>", "",
    ])  # fmt: skip
    if given.folder is None:
        shutil.rmtree(folder)
    PICTURE.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
