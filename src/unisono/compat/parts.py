"""Optimizer and schedule as a script's loop gets them: they act when the batch is whole."""

from collections.abc import Callable
from typing import Any, final

from torch.optim import Optimizer

from unisono.compat.turns import Turns
from unisono.errors import StepError


@final
class PreparedOptimizer(Optimizer):
    """An optimizer whose ``step`` does the run's update in the step's last turn, and nothing in those before.

    Args:
        optimizer: The program's own; everything but the methods below is its.
        turns: Over the training data.
        after: Called after an update.
    """

    def __init__(self, optimizer: Optimizer, turns: Turns, after: Callable[[], None] = lambda: None) -> None:
        self.optimizer, self._turns, self._after = optimizer, turns, after

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the weights, once for the whole batch."""
        if closure is not None:
            raise StepError(
                "optimizer.step(closure) computes a batch several times, whose micro-batches have passed by. "
                "Hint: an optimizer that needs no closure."
            )
        if self._turns.update():
            self._after()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients after an update; before it there are none, since each is taken away as it comes."""
        if self._turns.is_between:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last update was left out, as ``non_finite='skip'`` does it."""
        return self._turns.was_skipped

    def train(self) -> None:
        """Tell an optimizer that has two modes that training begins."""
        if hasattr(self.optimizer, "train"):
            self.optimizer.train()

    def eval(self) -> None:
        """Tell an optimizer that has two modes that evaluation begins."""
        if hasattr(self.optimizer, "eval"):
            self.optimizer.eval()

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self.optimizer.add_param_group(param_group)

    def __getattr__(self, name: str) -> Any:
        return getattr(_held(self, "optimizer", name), name)

    def __repr__(self) -> str:
        return repr(self.optimizer)


class Between:
    """Counts the steps of a schedule between passes over the training data, as of epochs.

    A script that is started again from its run directory runs through the passes that are done, which hand out nothing,
    and calls again what it has called after each: a step of a schedule that the run has come with is not done again.

    Args:
        scheduler: The program's own; saved with the count.
        turns: Over the training data.
    """

    def __init__(self, scheduler: Any, turns: Turns) -> None:
        self.scheduler, self._turns = scheduler, turns
        self._calls, self._again = [0, 0], 0  # after which step, how many; how many of those are to come once more

    def is_done(self) -> bool:
        """Whether a step that is asked for now has been done before; else it is counted."""
        turns = self._turns
        if turns.place < turns.done:
            return turns.is_replaying
        if self._calls[0] != turns.done:
            self._calls, self._again = [turns.done, 0], 0
        if self._again and turns.is_replaying:
            self._again -= 1
            return True
        self._calls[1] += 1
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the schedule's state, and the count."""
        return {"scheduler": self.scheduler.state_dict(), "calls": [*self._calls]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Put both back."""
        self.scheduler.load_state_dict(state_dict["scheduler"])
        self._calls, self._again = [*state_dict["calls"]], state_dict["calls"][1]


@final
class PreparedScheduler:
    """A schedule that steps with the optimizer, as often as accelerate's: once for every process, up to its end.

    Args:
        scheduler: The program's own; everything but ``step`` is its.
        turns: Over the training data.
        times: Steps of the schedule for one of the optimizer.
        is_limited: Whether it ends at its ``total_steps``, where it has some.
        accumulation: Turns in a step, of which those without an update count for that end; 1: they do not.
    """

    def __init__(self, scheduler: Any, turns: Turns, *, times: int, is_limited: bool, accumulation: int) -> None:
        self.scheduler, self._turns, self._times, self._accumulation = scheduler, turns, times, accumulation
        self._is_limited, self._has_waited = is_limited and hasattr(scheduler, "total_steps"), False
        self.between = Between(scheduler, turns)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Step after an update; nothing in the turns before it, or where it was left out."""
        scheduler, has_waited, self._has_waited = self.scheduler, self._has_waited, not self._turns.is_synced
        if self._has_waited or self._turns.was_skipped:
            return
        if not self._turns.is_in_turn and self.between.is_done():
            return
        if has_waited and self._accumulation > 1:
            per_turn = self._turns.batch_size // self._accumulation
            scheduler._step_count += -(-self._turns.num_samples // per_turn) - 1
        for _ in range(self._times):
            if not self._is_limited or scheduler._step_count <= scheduler.total_steps:
                scheduler.step(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(_held(self, "scheduler", name), name)


def _held(outer: Any, what: str, name: str) -> Any:
    """Return what an object stands for; `AttributeError` before it has been made, as a copy is."""
    if what not in vars(outer):
        raise AttributeError(name)
    return vars(outer)[what]
