"""Test accuracy with rounded gradients beside that without, same seeds, on real data.

    python benchmarks/rounded_accuracy.py --imdb ARCHIVE --mnist DIR [--rounds 2] [--quick] [--out DIR]

`unisono train` of both recipes, one epoch, eight replicas in one process: the number of processes changes no bit. A
round is a seed, which draws first weights and the order of samples. A sample is the accuracy after the epoch, and the
ratio is that over the accuracy without rounding. The bar: half a
percent below at most, in the median.

Without data, as in a quick look, it trains on digits.
"""

import json
import tempfile
from pathlib import Path

from harness import UNISONO, parser_of, rounds_of, run, save, slug
from results import Bar, Result

KINDS = ("none", "bf16", "int8")


def accuracy(recipe: str, data: Path | None, kind: str, seed: int) -> float:
    """Train, and return the test accuracy in percent."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        options = ["-n", "1", "--replicas", "8", "--epochs", "1", "--seed", str(seed), "--compress", kind]
        run([*UNISONO, "train", recipe, *options, *(["--data", data] if data else []), "--out", out])
        return 100 * json.loads((out / "result.json").read_text())["metrics"]["test_accuracy"]


def main() -> None:
    parser = parser_of(__doc__, rounds=2)
    parser.add_argument("--imdb", type=Path, help="archive of the reviews")
    parser.add_argument("--mnist", type=Path, help="directory of the digits")
    given = parser.parse_args()
    jobs = {"mnist": given.mnist, "imdb": given.imdb}
    if given.quick or not any(jobs.values()):
        jobs = {"digits": None}
    records = []
    for recipe, data in jobs.items():
        if recipe != "digits" and data is None:
            continue
        seeds = range(rounds_of(given, quick=1))
        found = {kind: [accuracy(recipe, data, kind, seed) for seed in seeds] for kind in KINDS}
        records += [
            Result.of(
                slug(f"{recipe} {kind}"), found[kind], against=found["none"], peer="no rounding", less_is_better=False,
                topic="Rounded gradients", what=f"test accuracy of {recipe} after one epoch, --compress {kind}",
                unit="%", bar=Bar(of="ratio", at_least=0.995), settings={"replicas": 8, "seeds": len(seeds)},
            )
            for kind in KINDS[1:]
        ]  # fmt: skip
    save(given, records)


if __name__ == "__main__":
    main()
