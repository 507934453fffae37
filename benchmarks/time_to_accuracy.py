"""unisono against the mission's own scripts (repaired), accelerate and Lightning: speed, and time to accuracy.

    python benchmarks/time_to_accuracy.py system   --job imdb  --data ARCHIVE   --others PYTHON
    python benchmarks/time_to_accuracy.py accuracy --job mnist --data DIRECTORY --others PYTHON
    python benchmarks/time_to_accuracy.py seeds    --job imdb  --data ARCHIVE
    python benchmarks/time_to_accuracy.py report
    python benchmarks/time_to_accuracy.py --picture            # writes docs/pictures/time-to-accuracy.svg

All read the same files, on two processes of one thread each, over gloo (baselines) or shared memory (unisono). Seconds
are of training; evaluation, start and reading are left out for all alike.

``system`` compares samples per second at equal model, batch, optimizer and epochs. ``accuracy`` asks how long each
takes to a test accuracy: 0.85 for IMDB; for MNIST, the median of the script's after its 10 epochs. ``seeds`` compares
test accuracy at equal settings.

Runs are taken in turn, round by round, so that a ratio compares neighbours. Each finished run is one line of
``build/time_to_accuracy/KIND-JOB.jsonl`` (or below ``--lines``), with the load before and after; a call goes on where
the last one stopped and starts nothing that would not end within ``--minutes``. ``--only NAME`` takes one contestant
alone. ``report`` reads the files, and prints and writes the records; ``--picture`` draws
the records and measures nothing. ``--quick`` compares two contestants on a
few invented reviews.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from accuracy_tables import draw, report
from harness import UNISONO, make_reviews, parser_of, save
from results import RESULTS, ROOT, read

from unisono.recipes.catalog import find

HERE = Path(__file__).parent
PICTURE = ROOT / "docs" / "pictures" / "time-to-accuracy.svg"
JOBS: dict[str, dict[str, Any]] = {
    "imdb": {"equal": "article", "batch_size": 256, "model": "gcnn", "epochs": 6, "seed_epochs": 2},
    "mnist": {"equal": "tutorial", "batch_size": 128, "model": "cnn", "epochs": 10, "seed_epochs": 2},
}
SCRIPTS = {
    "DDP": ("ddp.py", ()),
    "DDP, tokenised once": ("ddp.py", ("--tokenised",)),
    "accelerate": ("with_accelerate.py", ()),
    "Lightning": ("with_lightning.py", ()),
}

Lines = list[dict[str, Any]]


def arguments() -> argparse.Namespace:
    parser = parser_of(__doc__)
    parser.add_argument("kind", choices=["system", "accuracy", "seeds", "report"], nargs="?")
    parser.add_argument("--job", choices=JOBS)
    parser.add_argument("--data", help="the archive (imdb) or the directory (mnist)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, or seeds")
    parser.add_argument("--limit", type=int, help="samples of the training set, spread over it")
    parser.add_argument("--epochs", type=int, help="instead of the kind's")
    parser.add_argument("--others", help="Python that has accelerate and Lightning, see baselines/requirements.txt")
    parser.add_argument("--only", action="append", metavar="NAME", help="one contestant; may be given again")
    parser.add_argument("--minutes", type=float, default=14.0, help="start nothing that would end later")
    parser.add_argument(
        "--lines", type=Path, metavar="DIR", default=ROOT / "build" / "time_to_accuracy", help="the runs"
    )
    parser.add_argument("--picture", action="store_true", help="draw the records, measure nothing")
    given = parser.parse_args()
    if given.picture:
        return given
    if not given.kind and not given.quick:
        parser.error("expected system, accuracy, seeds or report, or --quick")
    if not given.quick and given.kind != "report" and not (given.job and given.data):
        parser.error(f"{given.kind} needs --job and --data")
    return given


def contestants(given: argparse.Namespace) -> list[str]:
    """Who takes part, in their turn."""
    others = ["accelerate", "Lightning"] if given.others else []
    tokenised = ["DDP, tokenised once"] if given.job == "imdb" else []
    everyone = {
        "system": ["DDP", "unisono, 2 replicas", *tokenised, "unisono, 8 replicas", *others],
        "accuracy": ["unisono, fast", "DDP", *others, "unisono, best"],
        "seeds": ["DDP", "unisono, 2 replicas"],
    }[given.kind]
    for name in given.only or []:
        if name not in everyone:
            raise SystemExit(f"expected --only to name one of {', '.join(map(repr, everyone))}, got {name!r}.")
    return [name for name in everyone if not given.only or name in given.only]


def command_of(given: argparse.Namespace, name: str, seed: int) -> list[str]:
    """Return how a contestant is started."""
    job = JOBS[given.job]
    epochs = given.epochs or {"system": 1, "accuracy": job["epochs"], "seeds": job["seed_epochs"]}[given.kind]
    if name in SCRIPTS:
        script, more = SCRIPTS[name]
        python = given.others if name in ("accelerate", "Lightning") else sys.executable
        command = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                   str(HERE / "baselines" / script), given.job, "--data", given.data, "--epochs", str(epochs),
                   "--seed", str(1234 + seed), *more]  # fmt: skip
        return [*command, *(["--limit", str(given.limit)] if given.limit else [])]
    how = name.removeprefix("unisono, ")
    options = {
        "recipe": given.job, "model": job["model"], "data": given.data, "limit": given.limit, "seed": seed,
        "preset": job["equal"], "epochs": epochs, "batch_size": job["batch_size"], "replicas": 2,
    }  # fmt: skip
    if how in ("fast", "best"):
        preset = find(given.job).preset(how)  # as `unisono train` runs it
        options |= {"preset": how, "batch_size": preset.batch_size, "epochs": preset.epochs}
    else:
        options["replicas"] = int(how.split()[0])
    run = [*UNISONO, "run", "-n", "2", "--output", "leader"]
    return [*run, str(HERE / "timed_recipe.py"), json.dumps(options)]


def take(given: argparse.Namespace, name: str, index: int) -> dict[str, Any]:
    """Run one contestant and return its line."""
    command = command_of(given, name, seed=index if given.kind == "seeds" else 0)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD_SIZE"))}
    more = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(HERE / "baselines")}
    began, load = time.monotonic(), os.getloadavg()[0]
    done = subprocess.run(command, capture_output=True, text=True, env=clean | more, check=False)
    epochs: Lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not epochs:
        raise SystemExit(f"{' '.join(command)}\nended with {done.returncode}\n{done.stderr[-3000:]}")
    return {
        "name": name, "round": index, "limit": given.limit, "epochs": epochs,
        "wall_s": round(time.monotonic() - began, 1), "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }  # fmt: skip


def take_missing(given: argparse.Namespace) -> None:
    """Take what is missing, as far as the time goes."""
    given.lines.mkdir(parents=True, exist_ok=True)
    path = given.lines / f"{given.kind}-{given.job}.jsonl"
    found: Lines = []
    with contextlib.suppress(FileNotFoundError):
        found = [json.loads(line) for line in path.read_text().splitlines()]
    if any(line["limit"] != given.limit for line in found):
        raise SystemExit(f"{path} was taken with --limit {found[0]['limit']}. Hint: another --lines, or delete it.")
    done = {(line["name"], line["round"]) for line in found}
    todo = [(name, index) for index in range(given.repeats) for name in contestants(given) if (name, index) not in done]
    began = time.monotonic()
    for number, (name, index) in enumerate(todo):
        expected = max((line["wall_s"] for line in found if line["name"] == name), default=0.0)
        if number and time.monotonic() - began + expected > 60 * given.minutes:
            print(f"{len(todo) - number} runs are left. Call it again to go on.", file=sys.stderr)
            return
        line = take(given, name, index)
        found.append(line)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")
        last = line["epochs"][-1]
        print(
            f"round {index}, {name}: {last['samples_per_s']:.0f} samples/s, accuracy {last['accuracy']:.4f}, "
            f"{line['wall_s']:.0f} s with start and evaluation, load {line['load']}", file=sys.stderr,
        )  # fmt: skip


def main() -> None:
    given = arguments()
    if given.picture:
        draw(read((given.out or RESULTS) / "time_to_accuracy.json"), PICTURE)
        return
    with tempfile.TemporaryDirectory() as scratch:
        if given.quick:
            given.kind, given.job, given.data = "system", "imdb", str(make_reviews(Path(scratch)))
            given.limit, given.repeats, given.only = 32, 1, ["DDP", "unisono, 2 replicas"]
            given.lines = Path(scratch) / "lines"
        if given.kind != "report":
            take_missing(given)
        save(given, report(given.lines))


if __name__ == "__main__":
    main()
