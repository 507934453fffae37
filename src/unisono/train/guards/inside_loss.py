"""What a loss function may not do, and the words in which a habit is refused at the line where it happens.

`run.step` calls the loss function once for every micro-batch, on whichever rank hosts it, and does backward, reduction
and update itself. What lasts longer than one call (gradients, weights, optimizers), and what needs other ranks, would
make the result depend on the rank that computes it. How a habit is seen: `determinism.loss_hooks`.
"""

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.placement import parts_of
from unisono.collectives.places import HERE
from unisono.determinism.loss_hooks import LossJudge, Observer
from unisono.errors import PlaceError, StepError
from unisono.strategies.base import Strategy, StrategyContext
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.train.guards.repeated import Repeated, leaves_of
from unisono.train.guards.unkept import Unkept

_TORCH = f"{Path(torch.__file__).parent}/"
_OURS, _RECIPES = f"{Path(__file__).parents[2]}/", f"{Path(__file__).parents[2]}/recipes/"
_FIRST = 2  # steps of each launch that are looked at, beside 1, 2, 4, 8, ...
_SHARDING = tuple(f"{_TORCH}distributed/{name}/" for name in ("fsdp", "tensor"))

_reached: "weakref.WeakValueDictionary[int, Tensor]" = weakref.WeakValueDictionary()
"""By id: tensors that are not the prepared model's and into which a loss function has called backward."""
_added: "weakref.WeakValueDictionary[int, Tensor]" = weakref.WeakValueDictionary()
"""By id: tensors into which backward was called outside of a loss function, since their model's last step."""
_added_at = [""]
_has_added, _has_reached = [False], [False]
"""Whether there ever was one: the dictionary's length is Python's to find, twice in every step."""


@final
class InsideLoss(LossJudge):
    """Judges what one run's loss function does."""

    def __init__(
        self, strategy: Strategy, optimizers: Iterable[Optimizer], options: StrategyOptions, setting: StrategyContext,
        unkept: Unkept,
    ) -> None:  # fmt: skip
        self._model, self._optimizers = strategy.model, [*optimizers]
        self._options, self._setting = options, setting
        self._step, self._num_samples, self._first = 0, 0, 0
        self._made: weakref.WeakSet[Any] = weakref.WeakSet()
        self._has_made = self._has_foreign = self.is_looking = False
        self._foreign: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()
        self._repeated, self._unkept = Repeated(strategy, setting.device, unkept), unkept

    def begin(self, step: int, num_samples: int, objective: Objective) -> None:
        """Note which step comes; what the loss functions of the step before have made is theirs no longer.

        Raises:
            StepError: The loop has added gradients to the prepared model, which the step would drop.
        """
        self._step, self._num_samples = step, num_samples
        self._first = self._first or step
        self._key = objective.key(step, 0) if step == self._first and objective.embed is None else ()
        self.is_looking = step < self._first + _FIRST or not step & (step - 1)
        self._is_repeated = self.is_looking and isinstance(self._options, ExactOptions)
        if self._has_foreign:
            _reached.update(self._foreign)
        if _has_added[0] and _added:
            self._refuse_added()
        if self._has_made:
            self._made.clear()
            self._has_made = False

    def end(self) -> None:
        """Note that the step's own gradients are those that the model holds now; see `Repeated.end`."""
        if self.is_looking:
            self._repeated.end(self._step, self)
        if _has_added[0] and _added:
            _forget(_added, self._model.parameters())
        if _has_reached[0] and _reached:  # by another run's loss
            _forget(_reached, self._model.parameters())

    def making(self, optimizer: Optimizer) -> None:
        """Note an optimizer that the loss function makes: for an inner loop, over tensors of its own."""
        self._made.add(optimizer)
        self._has_made = True

    def call(self, function: Callable[[Any], Any], micro: Any) -> Any:
        """Call the loss function; for the first micro-batch of a step that is looked at, see `Repeated`."""
        if not self._is_repeated:
            return function(micro)
        self._is_repeated = False
        return self._repeated.call(self._step, function, micro, self._key, speaks=self._setting.transport.rank == 0)

    def look_at(self, found: Any) -> None:
        """Note to which leaves, besides the prepared model's, the backward pass of what was returned will add."""
        if isinstance(found, Tensor) and found.requires_grad and not self._options.is_sharded:
            ours = self._own()
            leaves = {id(leaf): leaf for leaf in leaves_of([found]) if id(leaf) not in ours}
            if leaves:
                self._foreign.update(leaves)
                _reached.update(leaves)
                self._unkept.note_leaves(leaves.values())
                self._has_foreign = _has_reached[0] = True

    def refuse_backward(self, outputs: Iterable[Any], inputs: Iterable[Any]) -> None:
        """Refuse to add gradients to the prepared model.

        Args:
            outputs: Tensors, or edges of graphs, that backward begins with.
            inputs: Those that it was given; none: it adds to every leaf that it reaches.

        Raises:
            StepError: The model's parameters are among the leaves.
        """
        ours = self._own()
        leaves = [_leaf_of(item) for item in inputs] or list(leaves_of(outputs))
        for leaf in leaves:
            # Sharded weights are gathered into parameters that the program never sees.
            if id(leaf) in ours or (self._options.is_sharded and isinstance(leaf, nn.Parameter)):
                raise StepError(
                    f"step {self._step}: backward() was called inside the loss function{called_at()} and would add a "
                    "second gradient to the model: run.step() does backward, reduction and update itself. "
                    "Hint: return the loss and leave that line out; for gradients inside a loss take "
                    "torch.autograd.grad(outputs, inputs), or backward(inputs=[...]) without the model's parameters."
                )
        _reached.update({id(leaf): leaf for leaf in leaves if leaf is not None})
        _has_reached[0] = True

    def refuse_step(self, optimizer: Optimizer) -> None:
        """Refuse (`StepError`) to step an optimizer that was not made inside the loss function."""
        if any(optimizer is own for own in self._optimizers):
            raise StepError(
                f"step {self._step}: optimizer.step() was called inside the loss function{called_at()}, once for every "
                "micro-batch: run.step() updates the weights itself, once for the whole batch. "
                "Hint: return the loss and leave that line out."
            )
        if optimizer not in self._made:
            raise StepError(
                f"step {self._step}: {type(optimizer).__name__}.step() was called inside the loss function{called_at()}"
                f"{_ALONE}{_BY_NAME}"
            )

    def refuse_zeroing(self, parameters: Iterable[Tensor], name: str) -> None:
        """Refuse (`StepError`) to clear gradients of the prepared model."""
        ours = self._own()
        if any(id(parameter) in ours for parameter in parameters):
            raise StepError(
                f"step {self._step}: {name}.zero_grad() was called inside the loss function{called_at()}, where "
                "gradients of other micro-batches may wait to be added: run.step() clears them itself. "
                "Hint: leave that line out."
            )

    def refuse_scaling(self) -> None:
        """Refuse (`StepError`) a loss that is scaled: nobody would divide the gradient again."""
        raise StepError(
            f"step {self._step}: GradScaler.scale() was called inside the loss function{called_at()}: the gradient "
            "would be multiplied too, and nothing divides it again. Hint: return the loss as it is, and leave the "
            "scaler out; Run(precision='fp16') computes it under autocast, scales and unscales."
        )

    def refuse_schedule(self, scheduler: Any) -> None:
        """Refuse (`StepError`) to move a schedule of an outer optimizer once for every micro-batch."""
        if getattr(scheduler, "optimizer", None) not in self._made:
            raise StepError(
                f"step {self._step}: {type(scheduler).__name__}.step() was called inside the loss function"
                f"{called_at()}, once for every micro-batch. Hint: run.prepare(model, optimizer, scheduler) steps it "
                "after every update; or step it in the loop, and run.register() it."
            )

    def refuse_wrapper(self, wrapper: nn.Module) -> None:
        """Refuse (`StepError`) to reduce gradients of the prepared model a second time."""
        if self._options.name != "ddp" and {*map(id, wrapper.parameters())} & self._own():
            raise StepError(
                f"step {self._step}: the loss function calls the model through {type(wrapper).__name__}{called_at()}, "
                "which would reduce gradients a second time: run.step() does that itself. Hint: leave "
                f"{type(wrapper).__name__}(...) out, and call what run.prepare() has returned; Run(strategy='ddp') is "
                "torch's own."
            )

    def refuse_collective(self, operation: str) -> None:
        """Refuse (`PlaceError`) a collective; strategies whose ranks compute their own means anyway may meet."""
        options = self._options
        if options.is_sharded and _is_by_sharding():
            return
        calls = self._calls()
        if options.meets_in_loss and len(set(calls)) == 1:
            return
        why = (
            f"in this step the ranks call it {', '.join(map(str, calls))} times, so some would wait for ever"
            if len(set(calls)) > 1
            else f"with strategy {options.name} its result must not depend on the number of ranks"
        )
        raise PlaceError(
            f"step {self._step}: {operation} was called inside the loss function{called_at()}, which is called once "
            f"for every micro-batch, wherever that is computed: {why}. Hint: compute the loss from the micro-batch "
            "alone, or from the whole batch with run.step(embed=); what it is a mean over (tokens) is counted over the "
            "batch by run.step(..., weight=...); let ranks meet in the loop, before or after run.step()."
        )

    def _refuse_added(self) -> None:
        for name, parameter in self._model.named_parameters():
            if _added.get(id(parameter)) is parameter and parameter.grad is not None and bool(parameter.grad.any()):
                raise StepError(
                    f"step {self._step}: backward() was called in the loop{_added_at[0]} and has added a gradient to "
                    f"{name!r}, which run.step() does not apply: it begins without gradients. Hint: add that term to "
                    "the loss that the loss function returns (accumulation is a larger batch_size with more replicas); "
                    "after gradients for other purposes call optimizer.zero_grad(), or take torch.autograd.grad()."
                )

    def _own(self) -> set[int]:
        return {id(parameter) for parameter in self._model.parameters()}

    def _calls(self) -> list[int]:
        """Return how often each rank calls the loss function in this step."""
        placement = self._setting.placement
        filled = [len(part) > 0 for part in parts_of(self._num_samples, self._setting.replicas)]
        return [sum(filled[replica] for replica in hosted) for hosted in placement]


def refuse_leaked(optimizer: Optimizer) -> None:
    """Refuse (`StepError`) a step within a backward pass, or by gradients that a loss function has left behind."""
    if HERE.is_in_backward:
        raise StepError(
            f"{type(optimizer).__name__}.step() was called in a hook of the backward pass{called_at()}, once for every "
            "micro-batch: run.step() updates the weights itself, once for the whole batch. Hint: give "
            "run.prepare(model, optimizer) one optimizer of all parameters, and leave that line out."
        )
    if _reached and any(id(parameter) in _reached for parameter in _parameters_of(optimizer)):
        raise StepError(
            f"{type(optimizer).__name__}.step(){called_at()} would apply gradients that a loss function has added, by "
            f"backward() or by the loss that it has returned{_ALONE}{_BY_NAME} Parameters of a loss belong into the "
            "model; after zero_grad(), gradients of the loop's own may be applied."
        )


def note_added(outputs: Iterable[Any], inputs: Iterable[Any]) -> None:
    """Note to which leaves a backward pass outside of a loss function adds; the step's own are forgotten at its end."""
    leaves = [_leaf_of(item) for item in inputs] or list(leaves_of(outputs))
    _added.update({id(leaf): leaf for leaf in leaves if leaf is not None})
    _forget(_reached, [leaf for leaf in leaves if leaf is not None and leaf.grad is None])
    _added_at[0], _has_added[0] = called_at(), True


def was_added_to(leaf: Tensor) -> bool:
    """Whether a backward pass outside of a loss function has added to a leaf, which `InsideLoss.begin` judges."""
    return _added.get(id(leaf)) is leaf


def forget_cleared(parameters: Iterable[Tensor]) -> None:
    """Note that gradients have been cleared outside of a loss function."""
    if _reached or _added:
        known = [*parameters]
        _forget(_reached, known)
        _forget(_added, known)


def _forget(noted: "weakref.WeakValueDictionary[int, Tensor]", parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        noted.pop(id(parameter), None)


OBSERVER = Observer(here=HERE, reaching=note_added, stepping=refuse_leaked, cleared=forget_cleared)


def refuse_inside(what: str) -> None:
    """Refuse (`PlaceError`) inside a loss function what calls it or waits for other ranks."""
    if HERE.loss is not None:
        raise PlaceError(
            f"{what} was called inside the loss function{called_at()}, which ranks call as often as they have "
            "micro-batches. Hint: call it in the loop, before or after run.step()."
        )


def called_at() -> str:
    """Return the line of the program that has led here, in brackets; nothing where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_TORCH) and (not name.startswith(_OURS) or name.startswith(_RECIPES)):
            return f" ({name}:{frame.f_lineno})"
        frame = frame.f_back
    return ""


_ALONE = (
    ": gradients of one rank's micro-batches only, so the weights would depend on the number of workers and differ "
    "between them."
)
_BY_NAME = (
    " Hint: give the run all models and optimizers by name, run.prepare({'G': G, 'D': D}, {'G': ..., 'D': ...}), and "
    "let it step each: run.step(batch, loss, update='D')."
)


def _parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _is_by_sharding() -> bool:
    """Whether torch's own sharding is what moves bytes here, not the program."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((_TORCH, _OURS)):
        if frame.f_code.co_filename.startswith(_SHARDING):
            return True
        frame = frame.f_back
    return False


def _leaf_of(item: Any) -> Any:
    """Return the tensor that backward would add to; None where an edge has none."""
    return item if isinstance(item, Tensor) else getattr(item.node, "variable", None)
