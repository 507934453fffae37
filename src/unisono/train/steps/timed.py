"""What steps minimise, as it is called: under autocast, inside the judge's sight, with the time it takes."""

from collections.abc import Callable
from typing import Any, final

from unisono.collectives.places import HERE
from unisono.determinism.loss_hooks import LossJudge
from unisono.observe.phases import BACKWARD, FORWARD, PhaseClock
from unisono.strategies.objective import Objective
from unisono.strategies.precision import MixedPrecision


@final
class Timed:
    """A function of the loss, during which a judge is asked, and after which the backward pass begins."""

    __slots__ = ("_judge", "_phases", "function")

    def __init__(self, function: Callable[[Any], Any], judge: LossJudge, phases: PhaseClock) -> None:
        self.function, self._judge, self._phases = function, judge, phases

    def __call__(self, micro: Any) -> Any:
        HERE.loss = self._judge
        if self._phases.phase != FORWARD:  # a loss over the whole batch comes after all its micro-batches
            self._phases.enter(FORWARD)
        try:
            judge = self._judge
            found = judge.call(self.function, micro) if judge.is_looking else self.function(micro)
        finally:
            HERE.loss = None
        if self._judge.is_looking:
            self._judge.look_at(found)
        self._phases.enter(BACKWARD)
        return found


@final
class TimedObjectives:
    """Makes what steps call of what they are asked for; where that is the same but for the loss, only once."""

    def __init__(self, precision: MixedPrecision, judge: LossJudge, phases: PhaseClock) -> None:
        self._precision, self._watch = precision, lambda function: Timed(function, judge, phases)
        self._known: Objective | None = None
        self._made: Any = None

    def of(self, objective: Objective) -> Objective:
        """Return the same objective, as its functions are to be called."""
        if objective is self._known:
            self._made.loss.function = objective.loss
            return self._made  # type: ignore[no-any-return]
        precise = self._precision.applied(objective)
        made = precise.watched(self._watch)
        if precise is objective:  # what is under autocast may be scaled otherwise in the next step
            self._known, self._made = objective, made
        return made
