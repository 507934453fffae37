"""The pictures of docs/scaling.md: digits, MNIST and IMDB on 1, 2 and 4 workers.

    python benchmarks/scaling_pictures.py [digits] [mnist] [imdb]

Data of MNIST and IMDB is looked for in ../shared/data, else downloaded. Results stay in build/scaling-NAME; the picture
is copied to docs/pictures/scaling-NAME.svg. Take them on a quiet machine: the load stands in the picture.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DATA = {"mnist": "mnist", "imdb": "imdb/aclImdb_labelled_50k.tar.gz"}
HOW = {
    "digits": ["--repeat", "5", "--steps", "110"],
    "mnist": ["--repeat", "3", "--steps", "60"],
    "imdb": ["--repeat", "3", "--steps", "60"],
}


def main() -> None:
    for name in sys.argv[1:] or HOW:
        here = ROOT.parent / "shared" / "data" / DATA[name] if name in DATA else None
        data = ["--data", str(here)] if here is not None and here.exists() else []
        out = ROOT / "build" / f"scaling-{name}"
        command = ["bench", "scaling", name, "--workers", "1,2,4", *HOW[name], *data, "-o", str(out)]
        subprocess.run([sys.executable, "-m", "unisono", *command], check=True)
        shutil.copy(out / "scaling.svg", ROOT / "docs" / "pictures" / f"scaling-{name}.svg")


if __name__ == "__main__":
    main()
