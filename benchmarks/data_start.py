"""How long data takes to be there: IMDB with a cold and a warm cache, and MNIST, each start in a fresh process.

    python benchmarks/data_start.py --imdb ARCHIVE --mnist DIRECTORY --repeats 5

A start is the time from launching Python to a first training batch of 128 samples in memory, imports included. Cold is
an empty cache directory (the archive itself may be in the page cache). Bars: first batch 3 s warm, all of IMDB 15 s
cold. CPU seconds are of all processes of a start: what is left of the seconds on a busy machine.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
    began, cpu = time.perf_counter(), cpu_of_children()
    done = subprocess.run(
        [sys.executable, __file__, "--child", kind, str(data), str(cache)], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.stderr)
    parts: dict[str, float] = json.loads(done.stdout)
    return parts | {"all": seconds, "cpu": cpu_of_children() - cpu}


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--imdb", type=Path)
    parser.add_argument("--mnist", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        kind, data, cache = given.child
        print(json.dumps(first_batch(kind, Path(data), Path(cache))))
        return
    starts: dict[str, list[dict[str, Any]]] = {}
    loads = [os.getloadavg()[0]]
    for _ in range(given.repeats):
        with tempfile.TemporaryDirectory() as folder:
            if given.imdb:
                starts.setdefault("IMDB, cold", []).append(start("imdb", given.imdb, Path(folder)))
                starts.setdefault("IMDB, warm", []).append(start("imdb", given.imdb, Path(folder)))
            if given.mnist:
                starts.setdefault("MNIST", []).append(start("mnist", given.mnist, Path(folder)))
        loads.append(os.getloadavg()[0])
    print(
        "| start | first batch after, s: median | least to most | imports | data | batch | CPU | bar |\n"
        + "|---" * 8
        + "|"
    )
    for name, found in starts.items():
        middle = {part: statistics.median(each[part] for each in found) for part in found[0]}
        waits = [each["all"] for each in found]
        parts = " | ".join(f"{middle[part]:.2f}" for part in ("imports", "data", "batch", "cpu"))
        print(f"| {name} | {middle['all']:.2f} | {min(waits):.2f} to {max(waits):.2f} | {parts} | {BARS[name]:.0f} |")
    print(f"load of the machine: {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    main()
