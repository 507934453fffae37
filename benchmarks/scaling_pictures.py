"""The pictures of docs/scaling.md: digits, MNIST and IMDB on 1, 2 and 4 workers.

    python benchmarks/scaling_pictures.py [digits] [mnist] [imdb] [--quick] [--out DIR]

Data of MNIST and IMDB is looked for in ../shared/data, else downloaded. Results stay in build/scaling-NAME; the picture
is copied to docs/pictures/scaling-NAME.svg. Take them on a quiet machine: the load stands in the picture. With --quick
digits on 1 and 2 workers, and no picture.
"""

import json
import shutil
import tempfile
from pathlib import Path

from harness import UNISONO, parser_of, run, save
from results import ROOT, Result

DATA = {"mnist": "mnist", "imdb": "imdb/aclImdb_labelled_50k.tar.gz"}
HOW = {
    "digits": ["--repeat", "5", "--steps", "110"],
    "mnist": ["--repeat", "3", "--steps", "60"],
    "imdb": ["--repeat", "3", "--steps", "60"],
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("names", nargs="*", choices=[*HOW, []], metavar="NAME", help="digits, mnist, imdb (all)")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.names or (["digits"] if given.quick else HOW):
            out = Path(scratch) if given.quick else ROOT / "build" / f"scaling-{name}"
            found += measure(
                name, out, ["--repeat", "1", "--warmup", "1", "--steps", "4"] if given.quick else HOW[name]
            )
            if not given.quick:
                shutil.copy(out / "scaling.svg", ROOT / "docs" / "pictures" / f"scaling-{name}.svg")
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


if __name__ == "__main__":
    main()
