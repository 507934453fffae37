"""The schedules of an optimizer, however they have been made: they step when the batch is whole, and are saved."""

from typing import Any, final

from torch.optim import Optimizer

from unisono.compat.parts import Between, PreparedOptimizer
from unisono.compat.turns import Turns
from unisono.errors import ConfigError
from unisono.train.guards.first_look import lost_schedules
from unisono.train.run import Run


@final
class Schedules:
    """Those of a script are found, since Fabric wraps none: torch's, of the optimizer or of what ``setup`` returned.

    In a turn of the loop a schedule's ``step`` is one process's: of as many calls as this rank hosts processes, the
    last one steps. Between passes it steps once, if the run has not come with that step.

    Args:
        run: That saves them.
        turns: Over the training data.
        hosted: Processes of the script that this rank computes.
    """

    def __init__(self, run: Run, turns: Turns, hosted: int) -> None:
        self._run, self._turns, self._hosted = run, turns, hosted
        self._optimizers: list[Optimizer] = []
        self._known: dict[str, Any] = {}

    def of(self, optimizer: PreparedOptimizer) -> None:
        """Note whose schedules are meant."""
        self._optimizers = [optimizer, optimizer.optimizer]

    def find(self) -> None:
        """Take over the schedules that are there and not known yet; before the run is open."""
        if self._run._progress.is_open:
            return
        found = [each for optimizer in self._optimizers for each in lost_schedules(optimizer, self._known)]
        inner = {id(held) for each in found for held in vars(each).get("_schedulers", ())}
        outer = {type(each).__qualname__: each for each in found if id(each) not in inner}
        if len(outer) + len(inner & {id(each) for each in found}) < len(found):
            raise ConfigError(
                f"the optimizer has several schedules of one kind ({', '.join(outer)}), which nothing tells apart "
                "after a resume. Hint: torch's SequentialLR or ChainedScheduler around them."
            )
        for _, each in sorted(outer.items()):
            self.take(each)

    def take(self, scheduler: Any) -> None:
        """Let a schedule's ``step`` wait for the batch to be whole, and save it with the run."""
        if any(known.scheduler is scheduler for known in self._known.values()):
            return
        between, kind, turns, hosted = Between(scheduler, self._turns), type(scheduler), self._turns, self._hosted
        calls = 0

        def step(self: Any, *args: Any, **kwargs: Any) -> None:
            nonlocal calls
            if not turns.is_in_turn:
                if not between.is_done():
                    kind.step(self, *args, **kwargs)
                return
            calls += 1
            times = calls // hosted if turns.is_synced else 0
            calls -= times * hosted
            for _ in range(0 if turns.was_skipped else times):
                kind.step(self, *args, **kwargs)

        scheduler.__class__ = type(kind.__name__, (kind,), {"step": step, "__module__": kind.__module__})
        name = f"schedule-{len(self._known)}"
        self._run.settings[name] = kind.__qualname__
        self._known[name] = between
        self._run.register(name, between)

    def state_dict(self) -> dict[str, Any]:
        """Return the states of those that are known, by their names."""
        return {name: each.state_dict() for name, each in self._known.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put states into those that are known."""
        for name, each in self._known.items():
            if name in state:
                each.load_state_dict(state[name])
