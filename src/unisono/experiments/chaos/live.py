"""Workers are killed one after the other, and the others go on: are the bits those of an undisturbed run.

In: a seed. Out: a table of what those that died were doing, and how long the others needed. Three ways: a run of N
workers loses up to N - 1 of them and none is started again; or it grows back, and members, replacements and two within
one recovery die; or each worker dies at each meeting of a step, by name. On several hosts, too; there whole hosts are
lost as well in runs that do not grow back, of three or more also the one that decides.
"""

import functools
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from unisono.experiments.chaos import Job, dying, longest_s, undisturbed
from unisono.experiments.chaos.deaths import (
    Death,
    Died,
    last_step,
    plan_deaths,
    plan_growing,
    plan_on_hosts,
    spread_of,
    table_of,
)
from unisono.experiments.chaos.dying import WHENS
from unisono.experiments.chaos.hosts import HostsRun, Launchers, free_port
from unisono.experiments.chaos.live_run import LiveRun, play
from unisono.experiments.trials import Tell, as_typed, is_script, read_result, silent
from unisono.observe.compare import first_difference

_LATEST_SHARE = 0.9  # of a run: later nobody is killed
_SAME = ("fingerprint", "metrics", "steps", "ledger_head")
_NO_MORE = ("--live", "auto", "--max-restarts", "0")
_GROWS = ("--live", "auto", "--max-restarts", "3", "--spares", "1")

Command = Callable[..., list[str]]
"""Gives the command line of a run in a directory, with more options of its launcher."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveReport:
    """What the deaths have changed."""

    equal: bool  #: All runs ended well, with fingerprint, ledger and metrics of the undisturbed one.
    fault_seed: int  #: Of the schedule.
    reference: str  #: Fingerprint of the undisturbed run.
    runs: int  #: Disturbed runs.
    replayed: int  #: Steps that a run went back: done before, and done again.
    again: int  #: Steps that were computed twice, because a worker died before they were done.
    joins: int = 0  #: Workers that have joined a run.
    hosts: int = 1  #: Of each run; loopback stands for the network between them.
    step_s: float = 0.0  #: An undisturbed step.
    deaths: list[Died]  #: In the order they came.
    faults: list[str]  #: What was not as it should be.

    def table(self) -> list[tuple[str, int, float, float]]:
        """Return phase, deaths, median and longest gap in seconds, of each phase that was hit."""
        return table_of(self.deaths)

    def kinds(self) -> list[tuple[str, int, float, float]]:
        """Return the same by kind of death."""
        return table_of(self.deaths, "kind")

    def beyond(self) -> tuple[float, float] | None:
        """Return median and 99th percentile of the gaps beyond two undisturbed steps; None where none was measured."""
        return spread_of([died.gap_s for died in self.deaths if died.gap_s is not None], 2 * self.step_s)


def chaos_live(
    target: str, args: Sequence[str] = (), *, env: Mapping[str, str], workers: int = 2, kills: int = 10,
    fault_seed: int = 0, grow: bool = False, every_meeting: bool = False, hosts: int = 1, silence: float = 1.0,
    out: str | None = None, launch: Mapping[str, Any] | None = None, tell: Tell = silent, **options: Any,
) -> LiveReport:  # fmt: skip
    """Run a recipe or a script undisturbed, then as often as it takes for all deaths, and compare. With `grow` others
    are started for those that die, and die, too; with `every_meeting` each worker dies at each meeting of a step, in
    place of a schedule of `kills`. With several `hosts`, each with so many workers and a launcher of its own, whole
    hosts are lost, of three also the deciding one, after 1.5 times `silence` seconds, but not with `grow`. All else as
    `chaos` takes it.

    Raises:
        ConfigError: A wrong setting, or the undisturbed run failed.
    """
    job = Job(target, args, options, launch or {}, env)
    with undisturbed(job, hosts * workers, out, tell) as (scratch, reference):
        last_step(reference["steps"], hosts * workers)  # refuses what is too short
        job = job.saving_every(max(1, reference["steps"] // 8))
        trials = _Trials(job, (hosts, workers), scratch, reference, tell, silence)
        if every_meeting:
            trials.at_every_meeting()
        elif grow:
            trials.of_growing_runs(fault_seed, kills)
        elif hosts > 1:
            trials.of_runs_on_hosts(fault_seed, kills)
        else:
            trials.of_shrinking_runs(fault_seed, kills)
    return LiveReport(
        equal=not trials.faults and not trials.replayed, fault_seed=fault_seed, reference=reference["fingerprint"],
        runs=trials.runs, replayed=trials.replayed, again=trials.again, joins=trials.joins, hosts=hosts,
        step_s=reference["train_s"] / reference["steps"], deaths=trials.deaths, faults=trials.faults,
    )  # fmt: skip


Drive = Callable[[LiveRun], list[Died]]
"""Lets workers of a run die."""


@final
class _Trials:
    """The disturbed runs of one job, and what came of them; see `chaos_live`."""

    def __init__(
        self, job: Job, size: tuple[int, int], scratch: Path, reference: Mapping[str, Any], tell: Tell, silence: float
    ) -> None:
        self._job, self._scratch, self._reference, self._tell, self._silence = job, scratch, reference, tell, silence
        self._hosts, self._on_each = size
        self._workers = self._hosts * self._on_each
        self.runs = self.replayed = self.again = self.joins = 0
        self.deaths: list[Died] = []
        self.faults: list[str] = []

    def of_shrinking_runs(self, seed: int, kills: int) -> None:
        """Let up to N - 1 workers of each run die, by a schedule; none is started again."""
        plans = [*plan_deaths(seed, kills, steps=self._reference["steps"], workers=self._workers)]
        for plan in plans:
            drive = functools.partial(play, deaths=plan)
            self._make(f"/{len(plans)}", self._command(_NO_MORE), drive)

    def of_growing_runs(self, seed: int, kills: int) -> None:
        """Let workers die, with others in their places, as long as each run goes; as many runs as it takes."""
        self._make_until(kills, _GROWS, lambda: plan_growing(seed, self.runs, self._workers), is_whole=True)

    def of_runs_on_hosts(self, seed: int, kills: int) -> None:
        """Let workers and hosts be lost as long as the others can go on; as many runs as it takes."""
        size = {"steps": self._reference["steps"], "workers": self._workers}
        self._make_until(kills, _NO_MORE, lambda: plan_on_hosts(seed, self.runs, **size), is_whole=False)

    def _make_until(
        self, kills: int, how: Sequence[str], plan_of: Callable[[], Iterator[Death]], *, is_whole: bool
    ) -> None:
        while (missing := kills - len(self.deaths)) > 0 and not self.faults:

            def drive(run: LiveRun, plan: Iterator[Death] = plan_of(), most: int = missing) -> list[Died]:  # noqa: B008
                found: list[Died] = []
                while len(found) < most and (died := run.strike(next(plan), is_whole=is_whole)) is not None:
                    found += died
                return found[:most]

            if not self._make("", self._command(how), drive):
                self.faults.append(f"run {self.runs} was over before anybody had died. Hint: more --epochs.")

    def at_every_meeting(self) -> None:
        """Let each worker die before, inside and behind each meeting of a step, until a step has no such meeting."""
        workers = self._workers
        # Of the first steps a launcher of another host may not have heard yet when somebody dies: a restart.
        first = 2 if self._hosts == 1 else max(2, min(20, self._reference["steps"] // 8))
        for meeting in itertools.count(1):
            for number, when in enumerate(WHENS):
                turn = [(number + place) % workers for place in range(workers)]
                if self._hosts > 1:  # the deciding host keeps a worker
                    turn = [*sorted(turn, key=lambda rank: rank < self._on_each and rank == number % self._on_each)]
                for ranks in (turn[:-1], turn[-1:]) if self._hosts == 1 or self._on_each > 1 else (turn[:-1],):
                    places = {rank: [(first + 2 * place, meeting, when)] for place, rank in enumerate(ranks)}
                    if not self._die_at(f"meeting {meeting}, {when}", places):
                        return

    def _die_at(self, where: str, places: Mapping[int, list[tuple[int, int, str]]]) -> int:
        """Make one run whose workers kill themselves; return how many have."""
        self._make(f": {where}", self._dying(json.dumps(places)), lambda run: [])
        rough = self._scratch / f"disturbed-{self.runs}"
        count = int(read_result(rough).get("deaths", 0)) if (rough / "result.json").exists() else 0
        self.deaths += [
            Died(rank=rank, step=step, phase=where, left=self._workers - place, gap_s=None)
            for place, (rank, [(step, *_)]) in enumerate(places.items(), start=1) if place <= count
        ]  # fmt: skip
        return count

    def _command(self, how: Sequence[str]) -> Command:
        return lambda out, *more: self._job.command(out, self._on_each, *how, *more)

    def _dying(self, places: str) -> Command:
        job = self._job

        def command(out: Path, *more: str) -> list[str]:
            options = {name: value for name, value in job.options.items() if value is not None}
            what = ["recipe", job.target, json.dumps(options | {"out": str(out)})]
            what = ["script", job.target, *job.args] if is_script(job.target) else what
            how = as_typed({**job.launch, "threads": options.get("threads")})
            start = [sys.executable, "-m", "unisono", "run", "-n", str(self._on_each), *how, *_NO_MORE, *more]
            return [*start, "-m", dying.__name__, places, *what]

        return command

    def _make(self, title: str, command: Command, drive: Drive) -> int:
        """Make one run, compare it, and return how many have died in it."""
        self.runs += 1
        rough, temporary = self._scratch / f"disturbed-{self.runs}", self._scratch / f"tmp-{self.runs}"
        latest, env = int(_LATEST_SHARE * self._reference["steps"]), self._job.environment(rough, self._workers)
        with Launchers([command(rough, *more) for more in self._places()], env, temporary) as launchers:
            alone = LiveRun(launchers, temporary, self._workers, latest)
            run = HostsRun(launchers, self._on_each, latest, self._silence) if self._hosts > 1 else alone
            found = drive(run)
            wrong = launchers.end(longest_s(self._reference))
        self.deaths += found
        told = " ".join(f"{died.rank} at {died.step} ({died.kind}, {died.phase})" for died in found)
        self._tell(f"[{self.runs}{title}] {len(found)} died: {told}" if found else f"[{self.runs}{title}]")
        self.faults += [f"run {self.runs}: {fault}" for fault in wrong]
        if not wrong:
            self._compare(rough, run.went_back)
        return len(found)

    def _places(self) -> list[list[str]]:
        """Return what the launchers of a run are told about each other."""
        if self._hosts == 1:
            return [[]]
        together = ["--nnodes", self._hosts, "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--silence", self._silence]
        return [[*map(str, together), "--node-rank", str(host)] for host in range(self._hosts)]

    def _compare(self, rough: Path, went_back: int) -> None:
        result, reference, number = read_result(rough), self._reference, self.runs
        self.replayed += result["resumed_from_step"] + went_back
        self.again += result.get("steps_again", 0)
        self.joins += result.get("joins", 0)
        self.faults += [f"run {number}: {name} differ" for name in _SAME if result[name] != reference[name]]
        if parted := first_difference(self._scratch / "reference" / "ledger.jsonl", rough / "ledger.jsonl"):
            self.faults.append(f"run {number}: the ledgers differ from step {parted[0]} on, in {', '.join(parted[1])}")
