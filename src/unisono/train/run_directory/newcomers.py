"""What a rank is given that joins a run under way: all that a checkpoint of the step would hold, and what is known of
the run directory, so that it could even go on for the leader.
"""

import os
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.determinism.switches import UNLIKE, drift
from unisono.errors import ConfigError
from unisono.observe.compare import diff
from unisono.train.run_directory.record import RunRecord
from unisono.train.run_directory.run_progress import RunProgress
from unisono.train.trained_parts import Parts

Join = Callable[[Callable[[dict[str, Any]], str]], tuple[dict[str, Any], State]]
"""Waits until a rank is let in; asks why what it is given does not fit, and returns it with the state of the parts."""

_OF_PROGRESS = ("done", "steps_again", "facts", "_saved", "is_owed", "_resumed", "_metrics")
_OF_RECORD = ("fencing_token", "launches", "result", "objective")
_OF_CHECKPOINTS = ("_begun", "_before", "committed_step")


@final
class Newcomers:
    """Gives, and takes over, what a rank needs that joins."""

    def __init__(self, progress: RunProgress, record: RunRecord) -> None:
        self._progress, self._record = progress, record

    def follow_world(self, changes: Mapping[str, int]) -> None:
        """See `RunProgress.follow_world`; collective."""
        self._progress.follow_world(changes)

    def place(self) -> str:
        """Return the absolute path of the run directory; empty where there is none."""
        return "" if self._record.path is None else str(self._record.path.resolve())

    def given(self) -> tuple[dict[str, Any], State]:
        """Return what a rank that joins after this step needs, JSON-able, and the state of the parts; on the leader.

        Raises:
            CheckpointError: The optimizer has new groups.
            ConfigError: There is state that cannot be handed over, or that the loop alone has.
        """
        progress, record, checkpoints = self._progress, self._record, self._record.checkpoints
        progress.parts.check_storable()
        if text := progress.parts.unkept.describe():
            raise ConfigError(text.rstrip("."))
        record.ledgers.flush()  # a rank that has not seen these steps could not write them
        loop_s = time.monotonic() - progress._began
        spent = progress._spent(loop_s)
        return {
            "score": progress.score, "environment": progress.parts.environment, "host": os.uname().nodename,
            "loops": progress.loops, "is_shared": record._directories.is_shared,
            "loop_s": loop_s, "spent": spent | {"train_s": spent["train_s"] - loop_s}, "done": progress.done,
            "measured": progress._measured.get(progress.done, {}),
            "progress": {name: getattr(progress, name) for name in _OF_PROGRESS},
            "record": {name: getattr(record, name) for name in _OF_RECORD},
            "checkpoints": {name: getattr(checkpoints, name) for name in _OF_CHECKPOINTS} if checkpoints else {},
            "facts": [checkpoints.facts.run, checkpoints.facts.score] if checkpoints else [],
        }, progress.parts.pack()  # fmt: skip

    def take_over(self, join: Join, score: dict[str, Any], parts: Parts) -> float:
        """Begin with what another rank has given, not with a checkpoint; return how long the loop has been running."""
        progress, record, checkpoints = self._progress, self._record, self._record.checkpoints
        given, state = join(lambda given: self._why_not(given, score, parts))
        parts.unpack(state)
        kept: list[tuple[Any, str]] = [(progress, "progress"), (record, "record"), (checkpoints, "checkpoints")]
        for target, values in kept:
            for name, value in given[values].items():
                setattr(target, name, value)
        progress._measured, record.spent = {progress.done: given["measured"]}, given["spent"]
        if checkpoints is not None:
            run, recorded = given["facts"]
            step, name = checkpoints._begun
            checkpoints._begun = (step, name)
            checkpoints.facts = Facts(run=run, fencing_token=record.fencing_token, score=recorded)
            checkpoints.before_write = record.ledgers.sync
            record.ledgers.stand_by(record._files.directory, progress.done)
        return float(given["loop_s"])

    def _why_not(self, given: dict[str, Any], score: dict[str, Any], parts: Parts) -> str:
        """Return why this rank cannot join the others; empty where it can."""
        if lines := diff(given["score"], score):
            return f"it is not what the others are: {'; '.join(lines[:3])}"
        if lines := drift(given["environment"], parts.environment):
            hosts = f"its host {os.uname().nodename} is not what that of the others is ({given['host']})"
            return f"{hosts}: {'; '.join(lines[:3])}. Hint: {UNLIKE}"
        if not given["is_shared"]:
            return "each host has a run directory of its own, and that of its host lacks what was written meanwhile"
        if given["loops"] == self._progress.loops:
            return ""
        theirs, own = (
            f"loop {number}, which ends with step {last}" for number, last in (given["loops"], self._progress.loops)
        )
        return f"of the program's loops over run.steps() the others are in {theirs}, and it has come to {own}"
