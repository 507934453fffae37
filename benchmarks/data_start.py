"""How long data takes to be there: IMDB with a cold and a warm cache, and MNIST, each start in a fresh process.

    python benchmarks/data_start.py --imdb ARCHIVE --mnist DIRECTORY [--rounds 5] [--out DIR]
    python benchmarks/data_start.py --quick     # some invented reviews

A start is the time from launching Python to a first training batch of 128 samples in memory, imports included. Cold is
an empty cache directory (the archive itself may be in the page cache). Bars: first batch 3 s warm, all of IMDB 15 s
cold. CPU seconds are of all processes of a start: what is left of the seconds on a busy machine.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from harness import make_reviews, parser_of, rounds_of, run, save, slug
from results import Bar, Result

BARS = {"IMDB, cold": 15.0, "IMDB, warm": 3.0, "MNIST": 3.0}


def first_batch(kind: str, data: Path, cache: Path) -> dict[str, float]:
    """Prepare one data set and fetch a batch; returns the seconds of its parts."""
    began = time.perf_counter()
    import numpy as np
    import torch  # noqa: F401 - its import is part of a start

    from unisono.data.sampler import ExactSampler
    from unisono.data.sets.imdb import load_imdb
    from unisono.data.sets.mnist import MEAN, STD, load_mnist
    from unisono.data.sets.pictures import Pictures
    from unisono.data.sets.texts import Texts

    imported = time.perf_counter()
    dataset: Texts | Pictures
    if kind == "mnist":
        splits = load_mnist(data, cache=cache)
        dataset = Pictures(splits.train_images, splits.train_labels, mean=MEAN, std=STD)
    else:
        found = load_imdb(data, cache=cache)
        dataset = Texts(found.train, length_pool=1, content=found.key)
    loaded = time.perf_counter()
    for part in ExactSampler(len(dataset), 128, 2, seed=0).micro_batches(1):
        dataset.fetch_micro_batch(np.asarray(part))
    fetched = time.perf_counter()
    return {"imports": imported - began, "data": loaded - imported, "batch": fetched - loaded}


def start(kind: str, data: Path, cache: Path) -> dict[str, float]:
    """Run `first_batch` in a fresh process; ``all`` is what the caller has waited, ``cpu`` what was computed."""
    wall, cpu, told = run([sys.executable, __file__, "--child", kind, str(data), str(cache)])
    return json.loads(told) | {"all": wall, "cpu": cpu}


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--imdb", type=Path)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, data, cache = given.child
        print(json.dumps(first_batch(kind, Path(data), Path(cache))))
        return
    if not (given.imdb or given.mnist or given.quick):
        parser.error("expected --imdb ARCHIVE, --mnist DIRECTORY or --quick")
    starts: dict[str, list[dict[str, float]]] = {}
    for _ in range(rounds_of(given)):
        with tempfile.TemporaryDirectory() as folder:
            imdb = make_reviews(Path(folder)) if given.quick else given.imdb
            if imdb:
                starts.setdefault("IMDB, cold", []).append(start("imdb", imdb, Path(folder)))
                starts.setdefault("IMDB, warm", []).append(start("imdb", imdb, Path(folder)))
            if given.mnist:
                starts.setdefault("MNIST", []).append(start("mnist", given.mnist, Path(folder)))
    found = []
    for name, rows in starts.items():
        settings = {part: f"{statistics.median(each[part] for each in rows):.2f} s"
                    for part in ("imports", "data", "batch", "cpu")}  # fmt: skip
        found.append(Result.of(
            slug(name), [each["all"] for each in rows], topic="Start and data", settings=settings, unit="s",
            what=f"{name}: from launching Python to the first batch of 128", bar=Bar(at_most=BARS[name]),
        ))  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    main()
