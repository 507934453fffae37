"""A thousand kills: stretches of a small training, each under SIGKILLs at moments that its number decides; all equal?

    python benchmarks/thousand_kills.py DIRECTORY [--kills 1000] [--per-stretch 25] [--exec-every 0] [--broken-restore]
    python benchmarks/thousand_kills.py --quick     # two kills

DIRECTORY keeps everything: ``kills.jsonl`` (one line a kill), ``stretches.jsonl`` (one line a stretch that has come to
its end, with its hashes and those of the undisturbed run), the run directories and logs of the stretch in progress.
Stopped at any moment and started again, it goes on. Exit code 0: so many kills have landed, and every stretch is equal.

A kill counts if it has hit a living process before the work was done. Who: one worker; all; the launcher; launcher and
workers. When: in the start-up (of the launch, or of the restart that the kill before has caused), in a step, or while a
checkpoint is being written. Where the launcher dies, the same command is given again at once, often with another number
of workers. Compared are weights, optimizer, schedule and metrics, as the job's last act writes them, and the ledgers.

Workers are forked from a process that has torch imported (`kills_stage`); with ``--exec-every N`` every N-th stretch
starts them as programs of their own. ``--broken-restore`` is the control: a resume forgets the optimizer's state; exit
code 1 is right then.
"""

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import kills_job
import kills_stage
from harness import parser_of, save
from results import Bar, Result

from unisono.determinism.seeding import mix
from unisono.experiments.injector import heartbeat_files
from unisono.observe.compare import first_difference
from unisono.system.heartbeat import QUIET, STOPPED, HeartbeatPage, Reading

JOB = Path(kills_job.__file__).resolve()
VARIANTS = 3
MOST_WORKERS = 3
WHO = ("worker",) * 9 + ("all",) * 4 + ("launcher",) * 4 + ("machine",) * 3
WHEN = ("start",) * 6 + ("step",) * 8 + ("save",) * 6
_LOOK_S = 0.002
_STUCK_S = 600.0  # the machine may be busy
_LEFTOVER_S = 30.0
_LONGEST_DIRECTORY = 75 - len("/stretch-0000/tmp-99")  # see `unisono.data.loader.check_can_share_tensors`


class Violation(Exception):
    """Something that must never be."""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One planned kill; a pure function of (stretch, number)."""

    who: str
    when: str
    rank: int
    workers: int  # from here on, where the launcher dies
    ahead: int  # steps beyond the last one seen
    delay: float  # share of the moment's own width

    @classmethod
    def of(cls, stretch: int, number: int, ahead: int) -> "Planned":
        draw = random.Random(mix(stretch, "kill", number))
        return cls(
            who=draw.choice(WHO), when=draw.choice(WHEN), rank=draw.randrange(MOST_WORKERS),
            workers=draw.randint(1, MOST_WORKERS), ahead=draw.randint(1, ahead), delay=draw.random(),
        )  # fmt: skip


@dataclass
class Worker:
    """A worker that lives, as far as it has told."""

    pid: int
    descriptor: int
    reading: Reading


class Stretch:
    """One run directory, from its first launch to its end.

    Args:
        folder: Its place; what is found there is gone on with.
        number: Decides variant and schedule.
        per_stretch: Kills to be planned.
    """

    def __init__(self, folder: Path, number: int, per_stretch: int, *, is_broken: bool, is_forked: bool) -> None:
        self.folder, self.number, self.per_stretch = folder, number, per_stretch
        self.variant = number % VARIANTS
        self.final = folder / "final.json"
        self._args = [str(self.variant), str(self.final), *(["broken"] if is_broken else [])]
        self._is_forked = is_forked
        self._launcher, self._descriptor = 0, -1
        self._num_launches = len(list(folder.glob("tmp-*")))
        self._passed = self._launches_struck = 0
        self._hit: set[int] = set()
        self._code: int | None = None

    def launch(self, workers: int) -> None:
        """Start the command; old workers may still be dying."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._num_launches += 1
        self._launcher = kills_stage.start_launcher(
            JOB, self._args, workers=workers, folder=self.folder,
            temporary=self.folder / f"tmp-{self._num_launches}", is_forked=self._is_forked,
        )  # fmt: skip
        self._descriptor, self._code = os.pidfd_open(self._launcher), None
        self._workers = workers

    def strike(self, number: int) -> dict[str, Any] | None:
        """Do the kill of this number and say what was hit; None where the run has ended before."""
        plan = Planned.of(self.number, number, 2 * kills_job.STEPS // (self.per_stretch + 5))
        began = time.monotonic()
        group = self._wait_for(plan)
        if group is None:
            return None
        try:
            return {"stretch": self.number, "kill": number, **asdict(plan), **self._hit_now(plan, group, began)}
        finally:
            for worker in group:
                os.close(worker.descriptor)

    def _hit_now(self, plan: Planned, group: list[Worker], began: float) -> dict[str, Any]:
        victims = {"worker": [group[plan.rank % len(group)]], "launcher": []}.get(plan.who, group)
        hits_launcher = plan.who in ("launcher", "machine")
        was_alive = all(_is_alive(worker.pid) for worker in victims)
        is_saving = any((self.folder / "run" / "checkpoints").glob(".step-*"))
        last = [worker.reading for worker in group]
        if hits_launcher:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        for worker in victims:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(worker.descriptor, signal.SIGKILL)
        for worker in victims:
            if not select.select([worker.descriptor], [], [], 60)[0]:
                raise Violation(f"worker {worker.pid} has not died of SIGKILL within a minute")
        if hits_launcher:
            was_alive = self._reap(block=True) == -9 and was_alive
        self._hit |= {worker.pid for worker in (group if hits_launcher else victims)}
        has_landed = was_alive and not self.final.exists() and not any(r.state == STOPPED for r in last)
        self._passed = max([self._passed, *(reading.step for reading in last)])
        self._launches_struck = self._num_launches
        seen = {
            "landed": has_landed, "processes": len(victims) + hits_launcher, "step": max(r.step for r in last),
            "phase": "start-up" if last[0].state == QUIET else last[0].phase, "saving": is_saving,
            "now_workers": self._workers, "waited_s": round(time.monotonic() - began, 3),
            "date": time.strftime("%F %T"),
        }  # fmt: skip
        if hits_launcher:
            self.launch(plan.workers)
        return seen

    def finish(self) -> None:
        """Let the run come to its end."""
        while self._has_ended() is None:
            time.sleep(0.01)
        self._check_leftovers()

    def close(self) -> None:
        """Kill what still runs."""
        if self._launcher and self._reap() is None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
            self._reap(block=True)

    def _wait_for(self, plan: Planned) -> list[Worker] | None:
        """Return the worker group at the planned moment, None if the run ends before."""
        checkpoints = self.folder / "run" / "checkpoints"
        drafts = set(checkpoints.glob(".step-*"))
        target = self._passed + plan.ahead
        deadline = time.monotonic() + _STUCK_S
        while time.monotonic() < deadline:
            if self._has_ended() is not None:
                return None
            group = self._group()
            if group and self._has_come(plan, group, target, drafts, checkpoints):
                width = {"start": 0.2, "step": 0.03, "save": 0.006}[plan.when]
                time.sleep(plan.delay * width)
                for worker in group:
                    os.close(worker.descriptor)
                if group := self._group():  # as it is now
                    return group
            for worker in group:
                os.close(worker.descriptor)
            time.sleep(_LOOK_S)
        raise Violation(f"nothing has come of {plan} within {_STUCK_S:.0f} s: see {self.folder}/launchers.log")

    def _has_come(self, plan: Planned, group: list[Worker], target: int, drafts: set[Path], checkpoints: Path) -> bool:
        if plan.when == "start":
            return not any(worker.pid in self._hit for worker in group) and len(group) >= min(2, self._workers)
        if not any(worker.reading.step >= target for worker in group):
            return False
        return plan.when == "step" or bool(set(checkpoints.glob(".step-*")) - drafts)

    def _group(self) -> list[Worker]:
        """Return the living workers of the launch in progress; the caller closes their descriptors."""
        told: dict[int, Reading] = {}
        for path in heartbeat_files(self.folder / f"tmp-{self._num_launches}"):
            with contextlib.suppress(FileNotFoundError, ValueError):
                reading = HeartbeatPage(path).read()
                told[reading.pid] = reading
        found = []
        for pid in sorted(_children(self._launcher)):
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                if _is_worker(pid) and _is_alive(pid) and pid not in self._hit:
                    found.append(Worker(pid, descriptor, told.get(pid, Reading())))
                else:
                    os.close(descriptor)
        return found

    def _has_ended(self) -> int | None:
        """Return 0 at the run's end, None while it goes on; launches again where the kills have ended a launch."""
        code = self._reap()
        if code in (None, 0):
            return code
        if self._launches_struck != self._num_launches or code not in (137, 1):
            raise Violation(f"a launch has ended by itself with code {code}: see {self.folder}/launchers.log")
        self.launch(self._workers)  # it had too many restarts without progress
        return None

    def _reap(self, *, block: bool = False) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self._launcher, 0 if block else os.WNOHANG)
            if pid:
                os.close(self._descriptor)
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def _check_leftovers(self) -> None:
        """Nothing may be left over: no process, no private directory."""
        deadline = time.monotonic() + _LEFTOVER_S
        name = kills_stage.comm_of(os.getpid())
        while True:
            left = [str(path) for path in self.folder.glob("tmp-*/unisono-*")]
            left += [f"process {pid}" for pid in _processes_named(name)]
            if not left:
                return
            if time.monotonic() > deadline:
                raise Violation(f"left over: {', '.join(left)}")
            time.sleep(0.05)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has ended meanwhile
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, path.read_text().split())
    return found


def _is_worker(pid: int) -> bool:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name == kills_stage.comm_of(os.getpid()) or name.startswith("unisono-rank"):
            return True
        return b"unisono.launchers.worker.child" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _processes_named(name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text().strip() == name and _is_alive(int(path.parent.name)):
                found.append(int(path.parent.name))
    return found


def reference_of(place: Path, variant: int) -> Path:
    """Return the folder of the undisturbed run of a variant: one process, no launcher."""
    folder = place / f"reference-{variant}"
    if not (folder / "final.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pid = kills_stage.fork(lambda: kills_job.train(variant, folder / "final.json"))
        if os.waitpid(pid, 0)[1]:
            raise Violation(f"the undisturbed run of variant {variant} has failed")
    return folder


def compare(reference: Path, stretch: Stretch) -> dict[str, Any]:
    """Return what the undisturbed run and a stretch have come to."""
    theirs, ours = (json.loads((folder / "final.json").read_text()) for folder in (reference, stretch.folder))
    parted = first_difference(reference / "run" / "ledger.jsonl", stretch.folder / "run" / "ledger.jsonl")
    return {
        "equal": theirs == ours and parted is None, "parted_at_step": parted and parted[0],
        "differs": [name for name in theirs if theirs[name] != ours[name]], "reference": theirs, "seen": ours,
    }  # fmt: skip


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a file, and cut off a last one that is not."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    return [json.loads(line) for line in whole.splitlines()]


def add_row(path: Path, row: dict[str, Any]) -> None:
    """Append a line."""
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def run_stretch(given: argparse.Namespace, number: int, kills: list[dict[str, Any]], still: int) -> dict[str, Any]:
    """Run one stretch, or the rest of it, and return its line; adds its kills to `kills` and to the record."""
    place: Path = given.directory
    folder = place / f"stretch-{number:04d}"
    is_forked = not given.exec_every or number % given.exec_every != 0
    reference = reference_of(place, number % VARIANTS)
    began = time.monotonic()
    stretch = Stretch(folder, number, given.per_stretch, is_broken=given.broken_restore, is_forked=is_forked)
    mine = [row for row in kills if row["stretch"] == number]
    landed = sum(row["landed"] for row in mine)
    try:
        stretch.launch(2)
        for count in range(len(mine), 4 * given.per_stretch):
            if landed >= min(given.per_stretch, still + len(mine)) or (row := stretch.strike(count)) is None:
                break
            kills.append(row)
            landed += row["landed"]
            add_row(place / "kills.jsonl", row)
        stretch.finish()
    finally:
        stretch.close()
    told = compare(reference, stretch)
    if told["equal"]:
        shutil.rmtree(folder)
    return {
        "stretch": number, "variant": stretch.variant, "forked": is_forked, "landed": landed, **told,
        "seconds": round(time.monotonic() - began, 1), "date": time.strftime("%F %T"),
    }  # fmt: skip


def main() -> int:
    """Run stretches until so many kills have landed."""
    parser = parser_of(__doc__)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--per-stretch", type=int, default=25)
    parser.add_argument("--exec-every", type=int, default=0)
    parser.add_argument("--broken-restore", action="store_true")
    given = parser.parse_args()
    if given.directory is None and not given.quick:
        parser.error("expected DIRECTORY or --quick")
    with tempfile.TemporaryDirectory(prefix="kills-") as scratch:
        if given.quick:
            given.kills, given.per_stretch, given.directory = 2, 2, given.directory or Path(scratch)
        given.directory = given.directory.resolve()
        if len(str(given.directory)) > _LONGEST_DIRECTORY:
            parser.error(
                f"expected a path of at most {_LONGEST_DIRECTORY} bytes (loader processes have sockets below it)"
            )
        given.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        return run_stretches(given)


def run_stretches(given: argparse.Namespace) -> int:
    """Run what is missing; returns the exit code."""
    kills_stage.warm_up()
    kills, done = (read_rows(given.directory / name) for name in ("kills.jsonl", "stretches.jsonl"))
    while all(row["equal"] for row in done) and (still := given.kills - sum(row["landed"] for row in done)) > 0:
        number = 1 + max((row["stretch"] for row in done), default=0)
        done.append(run_stretch(given, number, kills, still))
        add_row(given.directory / "stretches.jsonl", done[-1])
        print_sum(kills, done)
    print_sum(kills, done)
    if given.quick or given.out or (given.kills >= 1000 and not given.broken_restore):
        landed = sum(row["landed"] for row in kills)
        common = {"topic": "Faults and recovery", "command": "python benchmarks/thousand_kills.py DIR",
                  "settings": {"stretches": len(done)}}  # fmt: skip
        save(
            given,
            [
                Result.of(
                    "landed",
                    [landed],
                    what="SIGKILLs that have landed",
                    unit="kills",
                    bar=Bar(at_least=given.kills),
                    **common,
                ),
                Result.of(
                    "unequal",
                    [sum(not row["equal"] for row in done)],
                    bar=Bar(at_most=0),
                    unit="stretches",
                    what="killed trainings that differ from the undisturbed one",
                    **common,
                ),
            ],
        )
    return 0 if all(row["equal"] for row in done) else 1


def print_sum(kills: list[dict[str, Any]], done: list[dict[str, Any]]) -> None:
    """Print all so far as one line."""
    landed = [row for row in kills if row["landed"]]
    print(
        f"{time.strftime('%T')} {len(landed)} kills of {sum(row['processes'] for row in landed)} processes "
        f"({dict(Counter(row['who'] for row in landed))}; {dict(Counter(row['when'] for row in landed))}; "
        f"{sum(row['saving'] for row in landed)} with a save in progress) in {len(done)} stretches, "
        f"{sum(row['equal'] for row in done)} equal, {sum(row['seconds'] for row in done):.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
