"""Workers are killed one after the other, and the others go on: are the bits those of an undisturbed run.

In: a seed. Out: a table of what the workers that died were doing, and how long the others needed. A run of N workers
loses up to N - 1 of them, so many deaths take several runs; no worker is ever started again.
"""

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, final

from unisono.determinism.seeding import mix
from unisono.errors import ConfigError
from unisono.experiments.chaos import Job, undisturbed
from unisono.experiments.injector import heartbeat_files
from unisono.experiments.trials import Tell, read_result, silent
from unisono.observe.compare import first_difference
from unisono.system.heartbeat import STEPPING, HeartbeatPage

AIMS = ("", "data", "compute", "reduce", "update", "record", "save", "evaluate", "between steps")
"""What a worker may be doing when it is killed, as its heartbeat page tells it; empty: whatever it is."""

_USED_SHARE = 0.8  # of the run: the last death must still find it going
_DELAY_S = 0.05
_LOOK_S, _SURE_S = 0.0002, 0.05
_AIM_S, _AIM_SHARE = 2.0, 0.9  # so long, and up to here in the run, a phase is waited for; then it is any


@dataclass(frozen=True, kw_only=True, slots=True)
class Death:
    """One planned death."""

    step: int  #: It comes when this step (1-based) has begun, or a little later.
    rank: int  #: The worker, by its number at the start.
    aim: str  #: What it shall be doing, of `AIMS`.
    delay_s: float  #: How much later.


@dataclass(frozen=True, kw_only=True, slots=True)
class Died:
    """What came of one death."""

    rank: int  #: The worker, by its number at the start.
    step: int  #: The step it was in, or before.
    phase: str  #: What it was doing.
    left: int  #: How many were left.
    gap_s: float | None  #: Until all others had finished that step; None where the run had ended before.


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveReport:
    """What the deaths have changed."""

    equal: bool  #: All runs ended well, with fingerprint, ledger and metrics of the undisturbed one.
    fault_seed: int  #: Of the schedule.
    reference: str  #: Fingerprint of the undisturbed run.
    runs: int  #: Disturbed runs.
    replayed: int  #: Steps that a run went back: done before, and done again.
    again: int  #: Steps that were computed twice, because a worker died before they were done.
    deaths: list[Died]  #: In the order they came.
    faults: list[str]  #: What was not as it should be.

    def table(self) -> list[tuple[str, int, float, float]]:
        """Return phase, deaths, median and longest gap in seconds, of each phase that was hit."""
        phases = sorted({died.phase for died in self.deaths})
        gaps = {name: [died.gap_s for died in self.deaths if died.phase == name] for name in phases}
        known = {name: [gap for gap in found if gap is not None] or [0.0] for name, found in gaps.items()}
        return [(name, len(gaps[name]), median(known[name]), max(known[name])) for name in phases]


def plan_deaths(seed: int, count: int, *, steps: int, workers: int) -> Iterator[list[Death]]:
    """Yield the deaths of each run, in the order of their steps; the same for the same arguments everywhere."""
    room = int(steps * _USED_SHARE)
    if workers < 2 or room <= workers:
        needed = int((workers + 1) / _USED_SHARE) + 1
        raise ConfigError(
            f"expected at least 2 workers and {needed} steps for --live, got {workers} workers and {steps} steps. "
            "Hint: -n 2, more --epochs."
        )
    number, left = 0, count
    while left:
        size = min(left, 1 + mix(seed, "live deaths", number) % (workers - 1))
        ranks = sorted(range(workers), key=lambda rank: mix(seed, "live rank", number, rank))
        chosen = sorted(range(2, room + 1), key=lambda step: mix(seed, "live step", number, step))[:size]
        yield [
            Death(
                step=step, rank=rank, aim=AIMS[(count - left + place) % len(AIMS)],
                delay_s=mix(seed, "live delay", number, place) % 1000 / 1000 * _DELAY_S,
            )
            for place, (step, rank) in enumerate(zip(sorted(chosen), ranks, strict=False))
        ]  # fmt: skip
        number, left = number + 1, left - size


def chaos_live(
    target: str, args: Sequence[str] = (), *, env: Mapping[str, str], workers: int = 2, kills: int = 10,
    fault_seed: int = 0, out: str | None = None, launch: Mapping[str, Any] | None = None, tell: Tell = silent,
    **options: Any,
) -> LiveReport:  # fmt: skip
    """Run a recipe or a script undisturbed, then as often as it takes for `kills` deaths, and compare."""
    job = Job(target, args, options, launch or {}, env)
    with undisturbed(job, workers, out, tell) as (scratch, reference):
        job = job.saving_every(max(1, reference["steps"] // 8))
        deaths: list[Died] = []
        faults: list[str] = []
        replayed = again = 0
        plans = [*plan_deaths(fault_seed, kills, steps=reference["steps"], workers=workers)]
        for number, plan in enumerate(plans, start=1):
            rough = scratch / f"disturbed-{number}"
            command = job.command(rough, workers, "--live", "auto", "--max-restarts", "0")
            latest = int(_AIM_SHARE * reference["steps"])
            run = _Run(workers, latest, command, job.environment(rough, workers), scratch / f"tmp-{number}")
            found = run.play(plan)
            deaths += found
            told = " ".join(f"{died.rank} at {died.step} ({died.phase})" for died in found)
            tell(f"[{number}/{len(plans)}] {len(found)} of {len(plan)} died: {told}")
            if run.code:
                faults.append(f"run {number} ended with exit code {run.code}:\n{run.said}")
                continue
            result = read_result(rough)
            replayed += result["resumed_from_step"] + run.went_back
            again += result.get("steps_again", 0)
            faults += [
                f"run {number}: {name} differ"
                for name in ("fingerprint", "metrics", "steps", "ledger_head") if result[name] != reference[name]
            ]  # fmt: skip
            if parted := first_difference(scratch / "reference" / "ledger.jsonl", rough / "ledger.jsonl"):
                faults.append(f"run {number}: the ledgers part at step {parted[0]} in {', '.join(parted[1])}")
    return LiveReport(
        equal=not faults and not replayed, fault_seed=fault_seed, reference=reference["fingerprint"], runs=len(plans),
        replayed=replayed, again=again, deaths=deaths, faults=faults,
    )  # fmt: skip


@final
class _Run:
    """One run whose workers die.

    Attributes:
        code: The launcher's exit code.
        said: Its last lines.
        went_back: Steps that a worker has gone back.
    """

    def __init__(self, workers: int, latest: int, command: list[str], env: Mapping[str, str], temporary: Path) -> None:
        temporary.mkdir(mode=0o700)
        self._workers, self._latest = workers, latest
        self._temporary, self._log = temporary, temporary / "launcher.log"
        self.code, self.said, self.went_back = 0, "", 0
        self._pages: dict[int, HeartbeatPage] = {}
        self._done: dict[int, int] = {}
        with self._log.open("wb") as log:
            self._launcher = subprocess.Popen(
                command, env={**env, "TMPDIR": str(temporary)}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def play(self, plan: Sequence[Death]) -> list[Died]:
        """Let the workers die as planned, and wait for the end."""
        found = []
        try:
            for death in plan:
                died = self._kill(death)
                if died is None:
                    break
                found.append(died)
            self.code = self._launcher.wait()
        finally:
            if self._launcher.poll() is None:
                self._launcher.kill()
                self._launcher.wait()
        self.said = "".join(self._log.read_text(errors="replace").splitlines(keepends=True)[-20:])
        return found

    def _kill(self, death: Death) -> Died | None:
        while (page := self._page(death.rank)) is None or page.read().step < death.step:
            if not self._goes_on():
                return None
        time.sleep(0.0 if death.aim else death.delay_s)
        until = time.monotonic() + _AIM_S
        while death.aim and (seen := page.read()).phase != death.aim:
            if time.monotonic() > until or seen.step > self._latest:
                break
            if not self._goes_on():
                return None
        try:
            descriptor = os.pidfd_open(page.read().pid)
        except ProcessLookupError:
            return None
        began = time.monotonic()
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [])
        finally:
            os.close(descriptor)
        last = page.read()
        if last.state != STEPPING:
            return None
        del self._pages[death.rank]
        step = last.step if last.step > last.done else last.step + 1
        while any(other.read().done < step for other in self._pages.values()) and self._goes_on():
            pass
        is_over = any(other.read().done < step for other in self._pages.values())
        gap_s = None if is_over else round(time.monotonic() - began, 4)
        return Died(rank=death.rank, step=last.step, phase=last.phase, left=len(self._pages), gap_s=gap_s)

    def _page(self, rank: int) -> HeartbeatPage | None:
        """Return a worker's page, once all workers have begun their steps."""
        if not self._pages:
            with contextlib.suppress(FileNotFoundError, ValueError):
                paths = heartbeat_files(self._temporary)
                pages = {int(path.name.rpartition("-")[2]): HeartbeatPage(path) for path in paths}
                if len(pages) == self._workers and all(
                    page.read().state == STEPPING and page.read().step for page in pages.values()
                ):
                    self._pages = pages
        return self._pages.get(rank)

    def _goes_on(self) -> bool:
        """Wait a moment, and say whether the launcher lives."""
        time.sleep(_LOOK_S)
        for rank, page in self._pages.items():
            before = self._done.get(rank, 0)
            if (done := page.read().done) < before:  # a page has no lock: what is being written may show as 0
                time.sleep(_SURE_S)
                done = page.read().done
            self.went_back += max(0, before - done)
            self._done[rank] = done
        return self._launcher.poll() is None
