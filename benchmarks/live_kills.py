"""A thousand kills that the others live through: trainings that lose workers and grow back, equal to undisturbed ones?

    python benchmarks/live_kills.py [DIRECTORY] [--kills 1000] [--minutes M]    # goes on where it was
    python benchmarks/live_kills.py --only cost [--rounds 6]      # an undisturbed step with live recovery on and off
    python benchmarks/live_kills.py --only restart [--rounds 6]   # beside it: a restart, torchrun; goes on where it was
    python benchmarks/live_kills.py --only picture                # writes docs/pictures/live.svg
    python benchmarks/live_kills.py --quick                       # two kills

Each run trains one of three jobs (`live_job`) on 2, 3, 4 or 8 workers over shared memory. SIGKILLs come at instants
that the run's number decides: members (in a phase that is aimed at, or anywhere), two within one recovery, and those
that join. A kill counts if it has hit a living process before the run's last steps. The run goes on and grows
back until its steps are done; then its fingerprint, metrics and ledger must be those of one process that nobody has
disturbed, and no step may have been replayed. DIRECTORY (build/bench/live) keeps ``runs-0.jsonl``, a
line a run with its kills; stopped at any moment and started again, the program goes on behind the last whole run.

Workers are forked from a process that has torch imported (`kills_stage`), so that a world is soon whole again.
"""

import argparse
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import kills_stage
import live_job
import live_parts
import live_picture
from catalogue import BUILD
from harness import keep, parser_of, save
from results import RESULTS, Bar, Result, read

from unisono.experiments.chaos.deaths import AIMS, Died, plan_growing, spread_of
from unisono.experiments.chaos.live_run import LiveRun
from unisono.observe.compare import first_difference
from unisono.system.heartbeat import HeartbeatPage

JOB = Path(live_job.__file__).resolve()
RANKS = (2, 3, 4, 8)
STEPS = {"digits": 600, "cnn": 400, "transformer": 500}
QUICK_STEPS = 60
LATEST = 0.95
NAMED = ("fingerprint", "metrics", "steps", "ledger_head")
TOPIC = "Faults and recovery"
MEASURED = range(3, 18)  # steps before the first kill, whose mean is the undisturbed step


class Forked:
    """A launcher that is our child."""

    def __init__(self, pid: int) -> None:
        self.pid, self.code = pid, None

    def poll(self) -> int | None:
        """Return its exit code, None while it lives."""
        if self.code is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.code = os.waitstatus_to_exitcode(found[1])
        return self.code


def reference_of(place: Path, job: str, steps: int) -> Path:
    """Return the run directory of an undisturbed run: one process, no launcher."""
    out = place / f"reference-{job}-{steps}"
    with (place / "references.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (out / "result.json").exists():
            shutil.rmtree(out, ignore_errors=True)
            pid = kills_stage.fork(lambda: live_job.train(job, str(out), steps))
            if os.waitpid(pid, 0)[1]:
                raise RuntimeError(f"the undisturbed run of {job} has failed")
    return out


def resident_mib(page: HeartbeatPage) -> float:
    """Return the resident size of a worker, in MiB."""
    try:
        lines = Path(f"/proc/{page.read().pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS")), 0.0)


def step_time(run: LiveRun, launcher: Forked) -> float:
    """Return the seconds of an undisturbed step, in the midst of this machine's other work."""
    began = 0.0
    while launcher.poll() is None:
        members = run.members()
        done = min((page.read().done for page in members.values()), default=0)
        if done >= MEASURED.start and not began:
            began, first = time.monotonic(), done
        if done >= MEASURED.stop:
            return (time.monotonic() - began) / max(1, done - first)
        time.sleep(0.002)
    return 0.0


def disturb(place: Path, number: int, job: str, ranks: int, steps: int, most: int) -> dict[str, Any]:
    """Make one run under kills, and return what is told of it."""
    folder = place / f"run-{number:04d}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reference, began = reference_of(place, job, steps), time.monotonic()
    args = [job, str(folder / "run"), str(steps)]
    launcher = Forked(kills_stage.start_launcher(
        JOB, args, workers=ranks, folder=folder, temporary=folder / "tmp", live="auto", spares=number % 2,
    ))  # fmt: skip
    sizes: list[float] = []
    run = LiveRun(launcher, folder / "tmp", ranks, int(LATEST * steps),
                  lambda number, page: sizes.append(resident_mib(page)))  # fmt: skip
    died: list[Died] = []
    try:
        step_s = step_time(run, launcher)
        for place_of, death in enumerate(plan_growing(1, number, ranks)):
            found = run.strike(death, is_whole=place_of % 3 == 0) if len(died) < most else None
            if found is None:
                break
            died += found
        while launcher.poll() is None:
            time.sleep(0.02)
    finally:
        if launcher.poll() is None:
            os.kill(launcher.pid, signal.SIGKILL)
            os.waitpid(launcher.pid, 0)
    told = compare(reference, folder) if launcher.code == 0 else {"equal": False, "code": launcher.code}
    told |= {
        "went_back": run.went_back,
        "run": number,
        "job": job,
        "ranks": ranks,
        "kills": [asdict(each) for each in died],
    }
    if told["equal"]:
        shutil.rmtree(folder)
    return told | {
        "step_s": step_s, "rss_mib": round(median(sizes)) if sizes else 0, "load": round(os.getloadavg()[0], 1),
        "seconds": round(time.monotonic() - began, 1), "date": time.strftime("%F %T"),
    }  # fmt: skip


def compare(reference: Path, folder: Path) -> dict[str, Any]:
    """Return what differs between the undisturbed run and this one."""
    theirs, ours = (json.loads((out / "result.json").read_text()) for out in (reference, folder / "run"))
    parted = first_difference(reference / "ledger.jsonl", folder / "run" / "ledger.jsonl")
    differs = [name for name in NAMED if theirs[name] != ours[name]]
    replayed = ours["resumed_from_step"]
    return {
        "equal": not differs and parted is None and replayed == 0, "differs": differs, "replayed": replayed,
        "parted": parted and parted[0], "again": ours.get("steps_again", 0), "joins": ours.get("joins", 0),
        "deaths": ours.get("deaths", 0), "fingerprint": ours["fingerprint"],
    }  # fmt: skip


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file."""
    content = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in content[: content.rfind("\n") + 1].splitlines()]


def kill_on(given: argparse.Namespace) -> int:
    """Make the runs that are missing; returns the exit code."""
    place: Path = given.directory
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    kills_stage.warm_up()
    part, parts = map(int, given.part.split("/"))
    until = time.monotonic() + 60 * given.minutes
    while is_missing(runs := all_rows(place), given.kills) and time.monotonic() < until:
        landed = Counter({(job, ranks): 0 for ranks in RANKS for job in live_job.JOBS})
        for row in runs:
            landed[row["job"], row["ranks"]] += len(row["kills"])
        job, ranks = sorted(landed, key=lambda pair: landed[pair])[part]
        number = part + parts * (
            1 + max((row["run"] // parts for row in runs if row["run"] % parts == part), default=0)
        )
        told = disturb(place, number, job, ranks, QUICK_STEPS if given.quick else STEPS[job], given.per_run)
        with (place / f"runs-{part}.jsonl").open("a") as file:
            file.write(json.dumps(told) + "\n")
        print(f"{time.strftime('%T')} {told | {'kills': len(told['kills'])}}", flush=True)
    kills = [row | {"of": run} for run in runs for row in run["kills"]]
    print_table(kills, runs)
    if given.quick or given.out or not is_missing(runs, given.kills):
        add(given, records(kills, runs, given.kills))
    return 0 if all(run["equal"] for run in runs) else 1


def is_missing(runs: list[dict[str, Any]], wanted: int) -> bool:
    """Whether more kills are to be made: some are missing, and no run differs."""
    return sum(len(run["kills"]) for run in runs) < wanted and all(run["equal"] for run in runs)


def all_rows(place: Path) -> list[dict[str, Any]]:
    """Return what is told of all runs so far."""
    return [row for path in sorted(place.glob("runs-*.jsonl")) for row in rows_of(path)]


def print_table(kills: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Print kills by phase, kind, job and ranks."""
    for name in ("phase", "kind"):
        print(dict(Counter(row[name] for row in kills).most_common()))
    print(dict(Counter(f"{row['of']['job']} {row['of']['ranks']}" for row in kills)))
    print(f"{len(kills)} kills in {len(runs)} runs, {sum(run['equal'] for run in runs)} equal, "
          f"{sum(run['seconds'] for run in runs):.0f} s", flush=True)  # fmt: skip


def records(kills: list[dict[str, Any]], runs: list[dict[str, Any]], wanted: int) -> list[Result]:
    """Return the records of all kills."""
    phases = Counter(row["phase"] for row in kills)
    sizes = sorted(run["rss_mib"] for run in runs)
    common = {
        "topic": TOPIC, "command": "python benchmarks/live_kills.py",
        "settings": {"runs": len(runs), "resident MiB": f"{sizes[0]} to {sizes[-1]}",
                     "load": f"{min(run['load'] for run in runs)} to {max(run['load'] for run in runs)}"},
    }  # fmt: skip
    found = [
        ("live-landed", [len(kills)], "SIGKILLs lived through", "kills", Bar(at_least=wanted)),
        ("live-unequal", [sum(not run["equal"] for run in runs)],
         "runs under kills that differ from the undisturbed one", "runs", Bar(at_most=0)),
        ("live-replayed", [sum(run.get("replayed", 0) + run["went_back"] for run in runs)],
         "steps replayed because a worker was killed", "steps", Bar(at_most=0)),
        ("live-again", [sum(run.get("again", 0) for run in runs)],
         "steps computed twice because a worker was killed in them", "steps", None),
        ("live-joins", [sum(run.get("joins", 0) for run in runs)], "workers that have joined a run", "workers", None),
        ("live-fewest", [min(phases[aim] for aim in AIMS[1:])], "SIGKILLs in the phase that was hit least", "kills",
         Bar(at_least=20)),
    ]  # fmt: skip
    found = [
        Result.of(name, values, what=what, unit=unit, bar=bar, **common) for name, values, what, unit, bar in found
    ]
    for ranks in RANKS:
        mine = [row for row in kills if row["of"]["ranks"] == ranks and row["of"]["job"] == "cnn"]
        beyond = [row["gap_s"] - 2 * row["of"]["step_s"] for row in mine if row["gap_s"] is not None]
        found += gaps(beyond, f"SimpleCNN, {ranks} workers", f"cnn-{ranks}", common, is_held=ranks == 2)
    beyond = [row["gap_s"] - 2 * row["of"]["step_s"] for row in kills if row["gap_s"] is not None]
    return found + gaps(beyond, "all jobs", "all", common, is_held=False)


def gaps(beyond: list[float], where: str, slug: str, common: dict[str, Any], *, is_held: bool) -> list[Result]:
    """Return the records of the time from a kill to the end of the interrupted step."""
    spread = spread_of(beyond)
    if spread is None:
        return []
    what = f"from SIGKILL to the end of the interrupted step, beyond two undisturbed steps ({where})"
    bars = (Bar(at_most=0.3), Bar(at_most=1)) if is_held else (None, None)
    return [
        Result.of(f"live-gap-{slug}", beyond, what=what, unit="s", bar=bars[0], **common),
        Result.of(f"live-p99-{slug}", [spread[1]], what=f"{what}, 99th percentile of {len(beyond)}", unit="s",
                  bar=bars[1], **common),
    ]  # fmt: skip


def add(given: argparse.Namespace, found: list[Result]) -> None:
    """Write records beside those of the other parts of this program."""
    path = (given.out or RESULTS) / "live_kills.json"
    names = {result.name for result in found}
    old = [result for result in read(path) if result.name not in names] if path.exists() and not given.quick else []
    save(argparse.Namespace(out=None, quick=True), found)
    keep(given, [*old, *found])


def main() -> int:
    """Run the part that is asked for."""
    parser = parser_of(__doc__, rounds=6)
    parser.add_argument("directory", type=Path, nargs="?", default=BUILD / "live")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-run", type=int, default=90, help="most kills in one run")
    parser.add_argument("--part", default="0/1", help="I/N: one of N processes that share the directory")
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no run after so many")
    parser.add_argument("--only", choices=["cost", "restart", "picture"])
    parser.add_argument("--play", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.play:
        live_parts.play(given.play[0], Path(given.play[1]))
        return 0
    if given.only:
        parts = {"cost": live_parts.cost, "restart": live_parts.restart, "picture": live_picture.picture}
        add(given, parts[given.only](given))
        return 0
    with tempfile.TemporaryDirectory(prefix="live-") as scratch:
        if given.quick:
            given.kills, given.per_run, given.directory = 2, 2, Path(scratch)
        given.directory = given.directory.resolve()
        return kill_on(given)


if __name__ == "__main__":
    sys.exit(main())
