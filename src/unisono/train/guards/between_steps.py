"""What a loop may not change between two steps: gradients, schedules, and which parameters there are.

Both are looked at where a step begins and where the loop asks for the next batch.
"""

from collections.abc import Iterable, Iterator
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.errors import StepError
from unisono.train.guards.inside_loss import was_added_to


@final
class BetweenSteps:
    """What the last update has left in a model.

    Args:
        model: The prepared one, plain.
        optimizers: Of its parameters.
        schedulers: Of these.
        is_kept: Whether the model keeps its parameters; False where a strategy puts others in their place.
    """

    def __init__(
        self, model: nn.Module, optimizers: Iterable[Optimizer], schedulers: Iterable[Any], *, is_kept: bool
    ) -> None:
        self._model, self._is_kept, self._optimizers = model, is_kept, [*optimizers]
        self._stepped = self._all_stepped()
        self._held = dict(model.named_parameters(remove_duplicate=False))
        self._all = [*self._held.values()]
        self._witness: Tensor | None = None if not self._all else self._all[0]
        self._version = -1  # none to compare with
        self._schedulers = [*_with_parts(schedulers)]
        self._moves: float | None = None

    def note(self) -> None:
        """Note the gradients as an update leaves them, one of them, since all lie in one buffer; and the schedules."""
        if self._schedulers:
            self._moves = _moves(self._schedulers)
        witness = self._witness
        grad = None if witness is None else witness.grad
        if grad is None:
            self._witness = next((each for each in self._all if each.grad is not None), self._witness)
            grad = None if self._witness is None else self._witness.grad
        self._version = -1 if grad is None or grad.is_inference() else grad._version

    def check_gradients(self, step: int) -> None:
        """Refuse (`StepError`) gradients that the loop has changed: they have been applied, and go."""
        version = self._version
        if version < 0 or self._witness is None or (grad := self._witness.grad) is None or grad._version == version:
            return
        is_cleared = grad.layout is self._witness.layout and not grad.any()  # zero_grad(set_to_none=False)
        if is_cleared or was_added_to(self._witness):
            return
        raise StepError(
            f"step {step}: the loop has changed gradients, which has no effect: run.step() has applied "
            "them already, and begins without any. Hint: Run(clip_norm=1.0) or Run(clip_value=...) clips the whole "
            "batch's gradient before the update; a penalty belongs to the loss; to measure alone, "
            "torch.nn.utils.get_total_norm(gradients)."
        )

    def check_schedules(self, step: int) -> None:
        """Refuse (`StepError`) a schedule that the loop has moved: every update moves it already."""
        if self._moves is None or _moves(self._schedulers) <= self._moves:  # one that begins anew is put back
            return
        raise StepError(
            f"step {step}: scheduler.step() was called in the loop, but run.step() steps the schedule that "
            "run.prepare() was given, after every update: it would move twice as fast. Hint: leave the line out. A "
            "schedule that moves otherwise (by epochs, by a metric) stays with the loop: not given to run.prepare() "
            "(Trainer(scheduler=)), but to run.register(name, scheduler), which saves and restores it."
        )

    def check_parameters(self) -> None:
        """Refuse (`StepError`) parameters, in the model or its optimizers, that are not those of `prepare`."""
        if self._all_stepped() != self._stepped:
            raise StepError(
                "the parameters in an optimizer's groups are not those that run.prepare() was given: a resumed run "
                "has those. Hint: all in the optimizer from the start; requires_grad_(False) in the loop, by the "
                "step's number, holds those that are not to learn."
            )
        if not self._is_kept:
            return
        now = dict(self._model.named_parameters(remove_duplicate=False))
        if now.keys() == self._held.keys() and all(now[name] is held for name, held in self._held.items()):
            return
        name = next((name for name, each in now.items() if self._held.get(name) is not each), "")
        what = f"{name!r} is a new parameter" if name else f"{next(iter(self._held.keys() - now.keys()))!r} is gone"
        raise StepError(
            f"{what} in the model, which run.prepare() did not see: the optimizer goes on with the old ones, and a "
            "resumed run would not have it. Hint: change the model before run.prepare(); in the loop copy values, "
            "with torch.no_grad(): model.fc.weight.copy_(new)."
        )

    def _all_stepped(self) -> list[int]:
        return [id(each) for one in self._optimizers for group in one.param_groups for each in group["params"]]


def _with_parts(schedulers: Iterable[Any]) -> Iterator[Any]:
    """Yield schedules, and those of which they are made (`SequentialLR`, `ChainedScheduler`)."""
    for each in schedulers:
        yield each
        yield from _with_parts(getattr(each, "_schedulers", ()))


def _moves(schedulers: Iterable[Any]) -> float:
    """Return a number that grows with each move of a schedule of torch's: not all of them count in the same place."""
    return sum(getattr(each, "_step_count", 0) + getattr(each, "last_epoch", 0) for each in schedulers)
