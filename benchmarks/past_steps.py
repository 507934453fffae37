"""Past steps computed again: replays, audits of forgeries, forks, and planted samples that blame has to find.

    python benchmarks/past_steps.py [--only replays] [--only audits] [--only forks] [--only poisons]

replays: steps drawn at random of runs on four workers, computed again on one, as `unisono replay` does; every ledger
line is compared. audits: eight kinds of forgery, of honest runs on 1 to 8 workers, by a forger who makes all hashes fit
that he can; and honest runs. forks: without a change, and with another learning rate. poisons: one sample of a data set
has a wrong label, an input ten times too large, or tokens drawn at random; where it stands in the ranking of
`unisono blame --epoch 2`, by each of its measures.
"""

import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from harness import ROOT, UNISONO, parser_of, run, save
from results import Bar, Result

sys.path.append(str(ROOT / "tests"))
from experiments.past import forger
from unisono.experiments.past.audit import audit
from unisono.experiments.past.examine import epoch_of, examine
from unisono.experiments.past.fork import fork
from unisono.experiments.past.replay import replay
from unisono.observe.ledger import read_lines
from unisono.observe.suspects import MEASURES, order
from unisono.report.comparison.run_diff import compare_runs

JOB = ROOT / "benchmarks" / "past_job.py"
SEEDS = range(1000, 1020)
"""Of the runs with a poison, fixed before any was looked at; the default order was chosen on 0 to 19."""
PARTS = ("replays", "audits", "forks", "poisons")


def train(folder: Path, job: str, *words: str, workers: int = 1) -> Path:
    """Train a job of past_job.py, or the recipe for texts, and return its run directory."""
    out = folder / "-".join([job, *words]).replace("--", "")
    if job == "text":
        rows = (f"{'good' if n % 2 else 'bad'},a film that was {n % 7} times {'fine' if n % 3 else 'dull'} in {n % 11}"
                for n in range(320))  # fmt: skip
        (folder / "texts.csv").write_text("\n".join(["label,text", *rows]) + "\n")
        given = ["train", "text", "--data", folder / "texts.csv", "--model", "gcnn", "--batch-size", "16"]
        given += ["--epochs", words[1], "--keep-sparse", "10", "--out", out]
    else:
        given = ["run", JOB, job, "--out", out, *words]
    run([*UNISONO, given[0], "-n", str(workers), *map(str, given[1:])])
    return out


def replays(folder: Path, quick: bool) -> Iterator[Result]:
    """Replay steps drawn at random, alternating between the jobs."""
    jobs = {job: train(folder, job, "--epochs", "1" if quick else "5", workers=4)
            for job in (("transformer",) if quick else ("transformer", "cnn", "text"))}  # fmt: skip
    draws, seconds = random.Random(0), {job: [] for job in jobs}
    equal, lines = dict.fromkeys(jobs, 0), dict.fromkeys(jobs, 0)
    for number in range(1 if quick else 102):
        job = [*jobs][number % len(jobs)]
        step = draws.randint(1, len(read_lines(jobs[job] / "ledger.jsonl")))
        began = time.perf_counter()
        done = replay(str(jobs[job]), step=step)
        seconds[job].append(time.perf_counter() - began)
        equal[job] += done.first_other is None
        lines[job] += done.step - done.start
    for job, taken in seconds.items():
        yield Result.of(
            f"replay-{job}", taken, topic="Past steps", what=f"one step replayed on one worker, {job}", unit="s",
            settings={"replays": len(taken), "equal": equal[job], "lines compared": lines[job], "trained on": 4},
        )  # fmt: skip
    yield share("replays-equal", sum(equal.values()), sum(map(len, seconds.values())),
                "replays whose ledger lines are equal, of runs on 4 workers, on 1")  # fmt: skip


def share(name: str, good: int, count: int, what: str, at_least: float | None = 1.0, **settings) -> Result:
    """Return how many of how many as a record."""
    return Result.of(
        name, [good / count], topic="Past steps", what=what, unit="of all",
        bar=None if at_least is None else Bar(at_least=at_least),
        settings={"good": good, "of": count, **settings},
    )  # fmt: skip


def honest(folder: Path, workers: int, seed: int = 0) -> Path:
    """Train the forger's program honestly."""
    folder.mkdir()
    text = forger.PROGRAM.replace('"seed": 0', f'"seed": {seed}').replace("replicas=4", "replicas=8")
    (folder / "train.py").write_text(text)
    run([*UNISONO, "run", "-n", str(workers), "train.py", "run"], cwd=folder)
    return folder / "run"


def forged_elsewhere(**said) -> Callable[[Path], Path]:
    """Return a forger who trains something else, and says that it was the honest run."""

    def forge(home: Path) -> Path:
        text = (home.parent / "train.py").read_text()
        other = home.parent / "other"
        other.mkdir()
        (other / "train.py").write_text(text)
        run([sys.executable, "train.py", "run"], cwd=other, env=forger.os.environ | {"FORGED": repr(said)})
        for name in ("score.json", "program.json"):
            shutil.copy(home / name, other / "run" / name)
        return forger.seal(other / "run")

    return forge


def line(home: Path) -> Path:
    """Tell another loss in one line."""
    forger.change_lines(home, lambda it: it | {"loss": (0.5).hex()} if it["step"] == 7 else it)
    return forger.seal(home)


def weights(home: Path) -> Path:
    """Change a kept state."""
    forger.change_weights(home, 10)
    return forger.seal(home)


def tuned(home: Path) -> Path:
    """Insert other weights at step 5, and train honestly from there."""
    for step, place in forger.list_steps(home / "checkpoints"):
        if step > 5:
            shutil.rmtree(place)
    forger.change_weights(home, 5)
    forger.change_lines(home, lambda entry: entry if entry["step"] <= 5 else None)
    forger.seal(home)
    run([sys.executable, "train.py", "run"], cwd=home.parent)
    return forger.seal(home)


def shorter(home: Path) -> Path:
    """Leave out the last epoch."""
    forger.change_lines(home, lambda entry: entry if entry["step"] <= 10 else None)
    return forger.seal(home)


def code(home: Path) -> Path:
    """Train by other code than the one that is shown."""
    program = home.parent / "train.py"
    text = program.read_text()
    program.write_text(text.replace("Dropout(0.3)", "Dropout(0.2)"))
    shutil.rmtree(home)
    run([sys.executable, "train.py", "run"], cwd=home.parent)
    program.write_text(text)
    return forger.seal(home)


FORGERIES: dict[str, Callable[[Path], Path]] = {
    "a line of the ledger": line,
    "a kept state": weights,
    "an inserted fine-tuning": tuned,
    "another data set": forged_elsewhere(data=2),
    "another learning rate": forged_elsewhere(lr=0.2),
    "another seed": forged_elsewhere(seed=5),
    "a shortened run": shorter,
    "other code": code,
}


def audits(folder: Path, quick: bool) -> Iterator[Result]:
    """Audit forgeries with all segments drawn, and honest runs with one."""
    runs = [honest(folder / f"honest-{workers}", workers, seed=workers) for workers in ((1,) if quick else range(1, 9))]
    caught, how = 0, {}
    kinds = [*FORGERIES.items()][: 1 if quick else None]
    for number, (kind, forge) in enumerate(kinds):
        there = shutil.copytree(runs[number % len(runs)].parent, folder / f"forged-{number}") / "run"
        found = audit(str(forge(there)), segments=9, script=str(there.parent / "train.py"), args=("run",))
        caught += not found.is_passed
        problems = [*found.problems, *(one.problem for one in found.segments if one.problem)]
        how[kind] = problems[0][:60] if problems else "not found"
    print(json.dumps(how, indent=1))
    yield share("forgeries-caught", caught, len(kinds), "forgeries caught where all segments are drawn",
                **how)  # fmt: skip
    blamed, seconds = 0, []
    for number in range(1 if quick else 100):
        began = time.perf_counter()
        found = audit(str(runs[number % len(runs)]), segments=1, seed=number)
        seconds.append(time.perf_counter() - began)
        blamed += not found.is_passed
    yield share("honest-audits", len(seconds) - blamed, len(seconds), "audits of honest runs that blame nothing")
    yield Result.of("audit-time", seconds, topic="Past steps", what="an audit of one segment of 5 steps", unit="s")


def forks(folder: Path, quick: bool) -> Iterator[Result]:
    """Fork a run at every few steps: without a change, and with another learning rate."""
    parent = honest(folder / "parent", 2)
    count, equal, seconds = 1 if quick else 50, 0, []
    for number in range(count):
        began = time.perf_counter()
        fork(str(parent), str(out := folder / f"fork-{number}"), step=1 + number % 14)
        seconds.append(time.perf_counter() - began)
        equal += compare_runs(parent, out).equal
    yield share("null-forks", equal, count, "forks that change nothing and differ in nothing")
    yield Result.of("fork-time", seconds, topic="Past steps", what="a fork of a run of 15 steps", unit="s")
    if quick:
        return
    parent, good, tried = train(folder, "transformer", "--epochs", "2"), 0, 5
    was = read_lines(parent / "ledger.jsonl")
    for step in range(3, 3 * tried + 1, 3):
        out = folder / f"rate-{step}"
        words = ("transformer", "--out", str(out), "--epochs", "2", "--lr", "0.001")
        fork(str(parent), str(out), words, step=step)
        now = read_lines(out / "ledger.jsonl")
        good += now[:step] == was[:step] and now[step]["lr"] != was[step]["lr"] and now[step + 1] != was[step + 1]
    yield share("rate-forks", good, tried, "forks with another learning rate whose lines up to step N are the parent's")


def poisons(folder: Path, quick: bool) -> Iterator[Result]:
    """Train two epochs on data with one spoilt sample, and rank the second."""
    kinds = (("label", "digits", 1437), ("tenfold", "digits", 1437), ("tokens", "language", 1280))
    for kind, job, size in kinds[1:2] if quick else kinds:
        ranks: dict[str, list[int]] = {name: [] for name in MEASURES}
        for number in SEEDS[: 1 if quick else None]:
            victim = random.Random(number).randrange(size)
            words = ("--seed", str(number), "--epochs", "2", "--poison", kind, "--victim", str(victim))
            home = train(folder, job, *words)
            first, last = epoch_of(str(home), 2, None)
            found = [one for step in examine(str(home), step=last, first=first).steps for one in step["samples"]]
            for name, places in ranks.items():
                ranked = sorted(found, key=lambda one, by=name: order(one, by))
                places.append(1 + next(at for at, one in enumerate(ranked) if one["index"] == victim))
            shutil.rmtree(home)
        for name, places in ranks.items():
            print(kind, name, places)
            top, what = sum(place <= 3 for place in places), f"planted sample ({kind}) among the first 3, by {name}"
            yield share(
                f"poison-{kind}-{name}", top, len(places), what, 0.9 if name == "suspect" else None,
                places=" ".join(map(str, places)), samples=len(found),
                seeds=f"{SEEDS[0]} to {SEEDS[-1]}, not looked at before",
            )  # fmt: skip


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; repeatable")
    given = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.only or PARTS:
            (place := Path(scratch) / name).mkdir()
            found += globals()[name](place, given.quick)
    save(given, found)


if __name__ == "__main__":
    main()
