"""How much faster digits, MNIST and IMDB are on 2 and 4 workers, and the picture of it in docs/scaling.md.

    python benchmarks/scaling_pictures.py [digits] [mnist] [imdb] [--picture] [--quick] [--out DIR]

Data of MNIST and IMDB is looked for in ../shared/data, else downloaded. Results stay in build/scaling-NAME. Take them
on a quiet machine: the load stands in the picture. With --picture docs/pictures/scaling.svg is drawn of the records,
and nothing is measured. With --quick digits on 1 and 2 workers.
"""

import json
import tempfile
from pathlib import Path

from harness import UNISONO, parser_of, range_of, run, save
from results import RESULTS, ROOT, Result, read

from unisono.report.charts import Series
from unisono.report.content import Section, line_view
from unisono.report.picture import draw_section

PICTURE = ROOT / "docs" / "pictures" / "scaling.svg"

DATA = {"mnist": "mnist", "imdb": "imdb/aclImdb_labelled_50k.tar.gz"}
HOW = {
    "digits": ["--repeat", "5", "--steps", "110"],
    "mnist": ["--repeat", "3", "--steps", "60"],
    "imdb": ["--repeat", "3", "--steps", "60"],
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", choices=[*HOW, []], metavar="NAME", help="digits, mnist, imdb (all)")
    parser.add_argument("--picture", action="store_true", help="draw the records, measure nothing")
    given = parser.parse_args()
    if given.picture:
        draw(read((given.out or RESULTS) / "scaling_pictures.json"), PICTURE)
        return
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names or (["digits"] if given.quick else HOW):
            out = Path(scratch) if given.quick else ROOT / "build" / f"scaling-{name}"
            found += measure(
                name, out, ["--repeat", "1", "--warmup", "1", "--steps", "4"] if given.quick else HOW[name]
            )
    save(given, found)


def measure(name: str, out: Path, how: list[str]) -> list[Result]:
    """Return how much faster several workers are than one, run by run."""
    here = ROOT.parent / "shared" / "data" / DATA[name] if name in DATA else None
    data = ["--data", str(here)] if here is not None and here.exists() else []
    workers = "1,2" if "1" in how[:2] else "1,2,4"
    run([*UNISONO, "bench", "scaling", name, "--workers", workers, *how, *data, "-o", str(out)])
    steps: dict[int, list[float]] = {}
    for trial in json.loads((out / "scaling.json").read_text())["trials"]:
        steps.setdefault(trial["workers"], []).append(1e3 * trial["step_s"])
    return [
        Result.of(f"{name}-{count}", taken, against=steps[1], peer="1 worker", unit="ms a step", topic="Scaling",
                  what=f"{name} on {count} workers", settings={"workers": count})
        for count, taken in steps.items() if count > 1
    ]  # fmt: skip


def draw(records: list[Result], path: Path) -> None:
    """Draw the speed-up of each job over the workers, beside what the cores allow."""
    jobs: dict[str, list[Result]] = {}
    for row in records:
        jobs.setdefault(row.name.rpartition("-")[0], []).append(row)
    cores = int(records[0].settings.get("cores", 2))
    full = [float(row.ratio or 0) for row in records if row.settings["workers"] == cores]
    counts = sorted({1, *(int(row.settings["workers"]) for row in records)})
    series = [
        Series(name=f"{job if job == 'digits' else job.upper()} ({rows[0].peer_median:g} ms)",
               points=[(1, 1.0), *((int(row.settings["workers"]), float(row.ratio or 0)) for row in rows)])
        for job, rows in jobs.items()
    ]  # fmt: skip
    series.append(Series(name=f"{cores} cores", points=[(x, min(x, cores)) for x in counts], is_limit=True))
    chart = line_view(
        "Speed-up", series, "workers", "{:g}".format, "{:.3g}x".format, ticks_at_points=True,
        alarms=frozenset(count for count in counts if count > cores), y_label="times as fast as one worker",
        finding="The longer a step, the more a second core helps. In brackets: a step on one worker.",
        note="Red: more workers than cores.",
    )  # fmt: skip
    loads = [load for row in records for load in row.load]
    title = f"{cores} workers on {cores} cores: {range_of(full, '.1f')} times as fast as one"
    where = f"{records[0].machine.partition(',')[0]}, load {min(loads)} to {max(loads)}, {records[0].date}."
    lines = [f"{counts[-1]} workers on {cores} cores take turns: slower than {cores}.", where]
    draw_section(Section(title=title, lines=lines, charts=[chart]), path)


if __name__ == "__main__":
    main()
