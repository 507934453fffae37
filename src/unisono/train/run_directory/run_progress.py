"""How far a run has come, and what is kept of it: checkpoints on the way, ``result.json`` at the end."""

import functools
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from unisono.data.plans.batch_schedule import Cuts
from unisono.errors import RunStopped, ScoreMismatch
from unisono.observe.compare import diff
from unisono.observe.phases import CHECKPOINT
from unisono.observe.speed import rates, speed_of
from unisono.train.guards.checks import plain_numbers
from unisono.train.guards.done_loops import nothing_to_do
from unisono.train.guards.early_end import EarlyEnd, is_broken_off
from unisono.train.intervals import Every, due
from unisono.train.launcher_link import LauncherLink
from unisono.train.run_directory.record import RunRecord
from unisono.train.run_directory.usage import Usage
from unisono.train.trained_parts import Parts


@final
class RunProgress:
    """The steps of one run, from wherever it was found to wherever it is left.

    Attributes:
        done: The last step that is done; 0 before the first.
        is_within: Whether the batch after it has had one of several updates: the weights are those of no step yet.
        is_stopping: Whether the ranks have agreed to stop after this step.
        stopped_by: Why the run's own code has ended it before its last step, if it has.
        usage: What the steps have cost.
        steps_again: Steps that were computed once more because a rank had died.
        result: What ``result.json`` holds; empty before the first end.
        early: The last step of a loop that was left.
        facts: As above.
        resume: Loads what the run goes on from, and returns for how long its loop has been running, in seconds.
        score: Of the run, once the directory is open.
        parts: What is trained, likewise.
        loops: Loops over steps that have begun, and the last step of the present one.
        epoch: That of the last step, 0-based.
    """

    def __init__(
        self, record: RunRecord, link: LauncherLink, facts: Mapping[str, Any], *, checkpoint_every: Every
    ) -> None:
        self._record, self._link, self.facts = record, link, dict(facts)
        self._checkpoints = record.checkpoints
        self._checkpoint_every = checkpoint_every
        self._is_sparse = (lambda _: False) if record.checkpoints is None else record.checkpoints.is_sparse
        self._started = self._began = time.monotonic()
        self.score: dict[str, Any] | None = None
        self.parts: Parts
        self._passes: Callable[[], int] = int
        self._is_due: Callable[[int], bool] = bool
        self._first, self._saved = 1, 0
        self.is_owed = False  # whether a checkpoint was lost with a rank that has died, or a step is the best so far
        self._metrics: dict[str, float] = {}
        self._measured: dict[int, dict[str, float]] = {}
        self.done, self.is_within, self.resume = 0, False, self._resume
        self.loops, self.epoch = [0, 0], 0
        self.is_stopping, self.steps_again, self.usage = False, 0, Usage()
        self.stopped_by: str | None = None
        self._cost: dict[str, Any] = {}
        self.result: dict[str, Any] = {}
        self._is_kept = False  # whether the result is another launch's, which this one had nothing to add to
        self.early = EarlyEnd(record.path if record.transport.rank == 0 else None)
        self._told_saved = -1
        self._loop_s = self._loops_s = 0.0  # of the loop that has ended last; of those before it

    @property
    def is_open(self) -> bool:
        """Whether the directory has been opened."""
        return self.score is not None

    def open(self, score: dict[str, Any], parts: Parts, cuts: Cuts | None, passes: Callable[[], int]) -> None:
        """Open the directory and load the newest checkpoint; a later call only checks the score; collective.

        Raises:
            ScoreMismatch: The directory, or an earlier call, has another score.
            CheckpointError: There are checkpoints but none can be trusted.
        """
        self._link.note(b"open")
        self.early.end()
        if self.score is not None:
            loop_s = 0.0
            if lines := diff(self.score, score):
                raise ScoreMismatch(
                    f"one run has one score, but run.steps() was called with another: {'; '.join(lines)}"
                )
        else:
            loop_s = self.resume(score, parts)
            if self._checkpoints is not None:
                parts.check_storable()
            self.score, self.parts = score, parts
            self._record.open_phases(self._link.phases)
            self.epoch = passes() if cuts is None else cuts.epoch_of(max(1, self.done))
        if self.done < self.loops[1]:
            self._record.begin_steps(self.done, self.loops[1])
        self._link.opened(self.done)
        self._passes, self._is_due = passes, due(self._checkpoint_every, cuts)
        self._record.ledgers.metrics.waits = True
        self._loops_s, self._loop_s = self._loops_s + self._loop_s, 0.0
        self._first, self._began = self.done + 1, time.monotonic() - loop_s
        self.usage.start()

    def _resume(self, score: dict[str, Any], parts: Parts) -> float:
        """Load the newest checkpoint; return for how long the loop has been running."""
        self.done, state = self._record.resume(score)
        if state is not None:
            fork = self._record.fork
            parts.unpack(state, fork if fork is not None and fork["step"] == self.done else None)
        self._resumed = self._saved = self.done
        return 0.0

    def save_if_due(self, parts: Parts, *, is_last: bool) -> None:
        """Save after a step what is due; `RunStopped` where the ranks have agreed to stop; collective."""
        is_first = self.done == self._first
        is_due = self.is_owed or self._is_due(self.done) or self._is_sparse(self.done)
        if not (is_first or is_due or is_last or self.is_stopping):  # as nearly always
            if self._checkpoints is not None and self._checkpoints.committed_step != self._told_saved:
                self._tell_saved()
            return
        if is_first and self._checkpoints is not None:
            with self._link.phases.within(CHECKPOINT):
                parts.check_storable(is_begun=True)
                if not is_last:
                    self._checkpoints.reserve(parts.pack)
        must_save = is_last or self.is_stopping or self.is_owed
        if must_save or is_due:
            self._save(parts, may_skip=not must_save)
        self._tell_saved()
        if self.is_stopping and not is_last:
            self.finish(parts, is_finished=False)
            self._link.stopped(self.done)
            raise RunStopped(self.done)

    def before_update(self) -> None:
        """Wait until the last checkpoint's state has been copied: the update would move what is still to be read."""
        if self._checkpoints is not None and self._checkpoints.is_copying:
            with self._link.phases.within(CHECKPOINT):
                self._checkpoints.release()

    def save_stopped(self, parts: Parts) -> None:
        """Save where the run was stopped between two checkpoints; collective."""
        if self.stopped_by is not None and self.done > self._saved:
            self._save(parts, may_skip=False)
            self._tell_saved()

    def leave(self, parts: Parts, *, is_whole: bool) -> None:
        """Keep what has been done when the loop is left early; no collective, since other ranks may be gone.

        Where it was not through with the last step (`is_whole`), `early` waits to hear whether that has failed.
        """
        self._record.ledgers.metrics.waits = False
        self._link.phases.end(self.done)
        if self.is_within and not parts.is_changing:
            self._record.tell(
                f"keeps nothing of step {self.done + 1}, within which the loop was left: more updates of its batch may "
                f"have been meant. A resumed run goes on after step {self._saved}. Hint: run.stop('why') says that the "
                "batch is done, and saves; or max_steps=."
            )
        if not parts.strategy.saves_alone or parts.is_changing or self.is_within or self.done <= self._saved:
            return
        self.early.begin(functools.partial(self._write_early, parts), after=self._saved)
        if is_whole or is_broken_off(sys._getframe(1)):
            self.early.end()

    def _write_early(self, parts: Parts) -> Callable[[bool], None]:
        """Write what the steps so far have come to; return what keeps it, with True, or drops it."""
        facts = self._facts_of_step()
        commit = None if self._checkpoints is None else self._checkpoints.save_alone(self.done, parts.pack, **facts)
        self._end(parts, is_finished=False)

        def end(is_kept: bool) -> None:
            if commit is not None:
                commit(is_kept)
            if is_kept:
                self._write_end()

        return end

    def follow_world(self, changes: Mapping[str, int]) -> None:
        """Let the files follow: see `RunRecord.follow_world`; collective.

        Args:
            changes: How many ranks have died, joined and left, by their names in the result.
        """
        newest = self._record.follow_world()
        if newest is not None and newest < self._saved:
            self._saved, self.is_owed = newest, True
        self.facts |= {name: self.facts.get(name, 0) + count for name, count in changes.items()}
        self.facts |= {"world_size": self._record.transport.world_size, "steps_again": self.steps_again}
        if self.result and not self._is_kept:  # perhaps the leader had not written it
            self.result |= {"ledger_head": self._record.ledgers.flush(), **self.facts}
        self._write()

    def finish(self, parts: Parts, *, is_finished: bool = True) -> None:
        """Save what is not saved, wait for it, and write ``result.json``; collective."""
        self._record.transport.again(lambda: self._finish(parts, is_finished=is_finished))

    def _finish(self, parts: Parts, *, is_finished: bool) -> None:
        self._record.ledgers.metrics.waits = False
        with self._link.phases.within(CHECKPOINT):
            if self.done > self._saved:
                self._save(parts, may_skip=False)
            if self._checkpoints is not None:
                self._checkpoints.settle()
            self._tell_saved()
            parts.strategy.settle()
        self._link.phases.end(self.done)
        self._cost = self.usage.summary(parts.strategy.transport, self._link.phases.totals)
        if self._end(parts, is_finished=is_finished):
            self._write_end()

    def tell_complete(self, last: int, before: int) -> None:
        """Say that a loop has nothing to do, where that is news; raises what `nothing_to_do` does."""
        if text := nothing_to_do(self.done, last, before, is_first=self.loops[0] == 1):
            self._record.tell(text)

    def measured(self, metrics: Mapping[str, float]) -> None:
        """Add metrics to the result, to this step's line and to a checkpoint of it; see `plain_numbers`."""
        numbers = plain_numbers(metrics)
        self._metrics |= numbers
        step = self.done + self.is_within
        self._measured = {step: {**self._measured.get(step, {}), **numbers}}
        self._record.ledgers.metrics.add(step, self.epoch, numbers)
        self._write()

    def fingerprint(self, parts: Parts) -> str:
        """Return the SHA-256 over the weights in name order; collective where a rank holds only a part of them."""
        if parts.strategy.is_sharded and self.result.get("steps") == self.done:
            return str(self.result["fingerprint"])  # known: one rank may ask alone
        return parts.strategy.fingerprint()

    def _save(self, parts: Parts, *, may_skip: bool) -> None:
        self._record.transport.again(lambda: self._save_all(parts, may_skip=may_skip))

    def _save_all(self, parts: Parts, *, may_skip: bool) -> None:
        self._link.note(b"save")
        with self._link.phases.within(CHECKPOINT):
            parts.strategy.settle()
            if self._checkpoints is None or self._checkpoints.save(
                self.done,
                parts.pack,
                may_skip=may_skip,
                recorded=parts.strategy.recorded if may_skip else None,
                **self._facts_of_step(),
            ):
                self._saved, self.is_owed = self.done, False

    def _tell_saved(self) -> None:
        self._told_saved = 0 if self._checkpoints is None else self._checkpoints.committed_step
        self._link.saved(self._told_saved)

    def _facts_of_step(self) -> dict[str, Any]:
        """Return what a checkpoint of the present step tells besides its state: see `Facts`."""
        metrics = self._measured.get(self.done, {})
        spent, head = self._spent(time.monotonic() - self._began), self._record.ledgers.flush()
        return {"epoch": self._passes(), "metrics": dict(metrics), "spent": spent, "ledger_head": head}

    def _spent(self, loop_s: float) -> dict[str, float]:
        """Return what all launches have spent on the steps that are done; redone ones, undone by a kill, do not count.

        ``launches``; ``train_s`` in loops; ``steps``, their ``samples``, and ``step_s`` within steps. Steps of version
        0.1.0, which told none of this, are missing in all of them.
        """
        own = {"train_s": round(self._loops_s + loop_s, 3), **self.usage.spent()}
        before = self._record.spent
        return {"launches": self._record.launches} | {name: before.get(name, 0) + own[name] for name in own}

    def _end(self, parts: Parts, *, is_finished: bool) -> bool:
        """Make the result, and say whether it is of this loop and to be written."""
        fingerprint = parts.strategy.fingerprint()
        if self.done < self._first and self._keep_result(fingerprint, is_finished=is_finished):
            return False
        self._loop_s = round(time.monotonic() - self._began, 3)
        total: dict[str, Any] = dict(self._spent(self._loop_s))
        step_s = total.pop("step_s")
        total |= (speed := rates(speed_of([(total["samples"], total["train_s"], step_s)])))
        # A launch that found all steps done, but no result, has no times of its own to tell.
        times = {} if self.done >= self._first else {"train_s": total["train_s"], **speed}
        self._is_kept = False
        self.result = {
            "fingerprint": fingerprint,
            "finished": is_finished,
            "steps": self.done,
            "epochs": self._passes(),
            **self.facts,
            "resumed_from_step": self._resumed,
            **({"stopped_by": self.stopped_by} if self.stopped_by else {}),
            "ledger_head": self._record.ledgers.flush(),
            "train_s": self._loop_s,
            **self._cost,
            **parts.strategy.context.precision.report(),
            **parts.strategy.report(),
            **times,
            "totals": total,
        }
        self._stamp()
        return True

    def _write_end(self) -> None:
        self._record.commit(self.done, self.result["ledger_head"], self.result["fingerprint"])
        self._write()

    def _keep_result(self, fingerprint: str, *, is_finished: bool) -> bool:
        """Take over the result of the launch, or loop, that did the last step, where this one has done none."""
        there = self.result or self._record.result
        if there.get("steps") != self.done:
            return False  # killed before it was written, or another run's
        if there.get("fingerprint") != fingerprint:
            self._record.tell("held a result.json with another fingerprint than its last checkpoint: written again")
            return False
        kept = there.get("metrics")
        self._metrics = (kept if isinstance(kept, dict) else {}) | self._metrics
        self.result, self._is_kept = there | {"finished": is_finished or there.get("finished") is True}, True
        self._write()
        return True

    def _write(self) -> None:
        if self.result and not self.early.is_waiting:
            self._stamp()
            self._record.write_result(self.result)

    def _stamp(self) -> None:
        if not self._is_kept:
            self.result["wall_s"] = round(time.monotonic() - self._started, 3)
        self.result["metrics"] = dict(self._metrics)
