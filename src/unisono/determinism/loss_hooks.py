"""Hooks in torch through which habits inside a loss function are seen where they happen.

Nothing else sees them in time: a gradient that was added twice looks like any other, and a dispatch mode costs more
than a small model (and keeps torch from compiling). Each name below is one that torch looks up at every call, whatever
the program has imported; around torch's own function stands a look at the judge of the loss function that this thread
is in, which is None outside of loss functions. A name that a torch does not have is left out, and a test tells. Calls
take 0.1 us more.
"""

import functools
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn
from torch.distributed import distributed_c10d
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from unisono.determinism.optimizer_step import spared

Look = Callable[..., None]


class LossJudge(ABC):
    """Judges what a loss function does; each method but `making` and `look_at` raises for what cannot be right.

    Attributes:
        is_looking: Whether `call` is to call the loss function, and `look_at` to be given what that returns.
    """

    is_looking = False

    def call(self, function: Callable[[Any], Any], micro: Any) -> Any:
        """Call the loss function."""
        return function(micro)

    def look_at(self, found: Any) -> None:  # noqa: B027 - most have nothing to look for
        """Look at what the loss function has returned."""

    @abstractmethod
    def making(self, optimizer: Optimizer) -> None:
        """Hear of an optimizer that the loss function makes."""

    @abstractmethod
    def refuse_backward(self, outputs: Iterable[Any], inputs: Iterable[Any]) -> None:
        """Judge a backward pass from `outputs` that adds to `inputs`, or to all leaves where there are none."""

    @abstractmethod
    def refuse_step(self, optimizer: Optimizer) -> None:
        """Judge a step of an optimizer."""

    @abstractmethod
    def refuse_zeroing(self, parameters: Iterable[Tensor], name: str) -> None:
        """Judge a ``zero_grad`` of an optimizer or model, as `name` says."""

    @abstractmethod
    def refuse_scaling(self) -> None:
        """Judge a scaled loss."""

    @abstractmethod
    def refuse_schedule(self, scheduler: Any) -> None:
        """Judge a schedule's step."""

    @abstractmethod
    def refuse_wrapper(self, wrapper: nn.Module) -> None:
        """Judge a forward pass of a module that reduces gradients itself, as DistributedDataParallel does."""

    @abstractmethod
    def refuse_collective(self, operation: str) -> None:
        """Judge a collective."""


class Place(Protocol):
    """Where a thread is: the judge of the loss function that it runs, None where it runs none."""

    loss: LossJudge | None


@final
@dataclass(frozen=True, kw_only=True)
class Observer:
    """What the hooks look at, and whom they tell of what happens outside of loss functions."""

    here: Place  #: The place of the calling thread.
    #: Called with what a backward pass begins with, and the inputs that it was given.
    reaching: Callable[[Iterable[Any], Iterable[Any]], None]
    stepping: Callable[[Optimizer], None]  #: Called with an optimizer before its step.
    cleared: Callable[[Iterable[Tensor]], None]  #: Called with the parameters of a ``zero_grad``.


_lock = threading.RLock()  # the collector may end a run while another one begins
_undo: list[Callable[[], None]] = []
_hooked_late: list[Any] = []
_FUNCTIONAL = "torch.distributed._functional_collectives"
_QUESTIONS = {"get_rank", "get_world_size", "get_backend", "get_backend_config", "_set_pg_timeout"}
"""Of torch.distributed: they ask whether a rank is in a group, as collectives do, and send nothing."""


def hook(observer: Observer) -> None:
    """Put the hooks in place."""
    global _observer
    _observer = observer
    for place, name, look in _looks():
        _wrap(place, name, look)
    _undo.append(register_optimizer_step_pre_hook(_step).remove)


def hook_late() -> None:
    """Put the hooks of what a program may have imported in the meantime in place, where the others are."""
    module = sys.modules.get(_FUNCTIONAL)
    if module is None or module in _hooked_late:
        return
    with _lock:
        if module not in _hooked_late and _undo:
            name = "_resolve_group" if hasattr(module, "_resolve_group") else "_resolve_group_name"
            _wrap(module, name, _collective)
            _hooked_late.append(module)


def unhook() -> None:
    """Put everything back."""
    with _lock:
        _hooked_late.clear()
        while _undo:
            _undo.pop()()


def _looks() -> list[tuple[Any, str, Look]]:
    """Return what is hooked: where torch keeps it, and who looks."""
    kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type) and "step" in vars(kind)]
    return [
        (torch.autograd, "_engine_run_backward", _backward),
        (distributed_c10d, "_rank_not_in_group", _collective),
        (Optimizer, "__init__", _make),
        (Optimizer, "zero_grad", _clear_optimizer),
        (nn.Module, "zero_grad", _clear_module),
        (torch.amp.GradScaler, "scale", _scale),
        (nn.parallel.DistributedDataParallel, "forward", _wrapper),
        (nn.DataParallel, "forward", _wrapper),
        *((kind, "step", _schedule) for kind in kinds if kind is not Optimizer),
    ]


def _wrap(place: Any, name: str, look: Look) -> None:
    own = vars(place).get(name)
    if own is None:
        return
    here = _observer.here

    @functools.wraps(own)
    def watched(*args: Any, **kwargs: Any) -> Any:
        look(here.loss, *args, **kwargs)
        return own(*args, **kwargs)

    def undo() -> None:
        if vars(place).get(name) is watched:  # whoever has wrapped it since would be thrown away
            setattr(place, name, own)

    setattr(place, name, watched)
    _undo.append(undo)


def _backward(loss: LossJudge | None, outputs: Any, *args: Any, **kwargs: Any) -> None:
    if kwargs.get("accumulate_grad"):
        (_observer.reaching if loss is None else loss.refuse_backward)(outputs, args[3] if len(args) > 3 else ())


def _make(loss: LossJudge | None, optimizer: Optimizer, *_: Any, **__: Any) -> None:
    if loss is not None:
        loss.making(optimizer)


@spared
def _step(optimizer: Optimizer, *_: Any) -> None:
    if (loss := _observer.here.loss) is None:
        _observer.stepping(optimizer)
    else:
        loss.refuse_step(optimizer)


def _clear_optimizer(loss: LossJudge | None, optimizer: Optimizer, *_: Any, **__: Any) -> None:
    _clear(loss, [parameter for group in optimizer.param_groups for parameter in group["params"]], "optimizer")


def _clear_module(loss: LossJudge | None, module: nn.Module, *_: Any, **__: Any) -> None:
    _clear(loss, [*module.parameters()], "model")


def _clear(loss: LossJudge | None, parameters: list[Any], name: str) -> None:
    if loss is None:
        _observer.cleared(parameters)
    else:
        loss.refuse_zeroing(parameters, name)


def _scale(loss: LossJudge | None, scaler: Any, *_: Any, **__: Any) -> None:
    if loss is not None and scaler.is_enabled():
        loss.refuse_scaling()


def _wrapper(loss: LossJudge | None, wrapper: nn.Module, *_: Any, **__: Any) -> None:
    if loss is not None:
        loss.refuse_wrapper(wrapper)


def _schedule(loss: LossJudge | None, scheduler: Any, *_: Any, **__: Any) -> None:
    if loss is not None:
        loss.refuse_schedule(scheduler)


def _collective(loss: LossJudge | None, *_: Any, **__: Any) -> None:
    if loss is None:
        return
    frame = sys._getframe(2)
    if frame.f_code.co_name not in _QUESTIONS:
        while frame.f_code.co_name.startswith("_") and frame.f_back is not None:
            frame = frame.f_back
        loss.refuse_collective(f"torch.distributed's {frame.f_code.co_name}")


_observer: Observer
