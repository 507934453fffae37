"""What is changed in torch while a run is open, so that habits inside its loss function are seen where they happen.

Nothing else sees them in time: a gradient that was added twice looks like any other, and a dispatch mode costs more
than a small model (and keeps torch from compiling). Each name below is one that torch looks up at every call, whatever
the program has imported; around torch's own function stands a look at `HERE.loss`, which is None outside of loss
functions. With the last open run everything is put back; a name that a torch does not have is left out, and a test
tells. Calls take 0.1 us more.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed import distributed_c10d
from torch.optim import Optimizer, lr_scheduler
from torch.optim.optimizer import register_optimizer_step_pre_hook

from unisono.collectives.places import HERE
from unisono.determinism.optimizer_step import spared
from unisono.train.guards.inside_loss import InsideLoss, forget_cleared, refuse_leaked

Look = Callable[..., None]

_lock = threading.Lock()
_num_open = 0
_undo: list[Callable[[], None]] = []
_FUNCTIONAL = "torch.distributed._functional_collectives"
_QUESTIONS = {"get_rank", "get_world_size", "get_backend", "get_backend_config", "_set_pg_timeout"}
"""Of torch.distributed: they ask whether a rank is in a group, as collectives do, and send nothing."""


def watch_while(owner: object) -> Callable[[], Any]:
    """Watch torch until the function that is returned is called, or until `owner` is no more."""
    global _num_open
    with _lock:
        if not _num_open:
            for place, name, look in _looks():
                _wrap(place, name, look)
            _undo.append(register_optimizer_step_pre_hook(_step).remove)
        _num_open += 1
    ending = weakref.finalize(owner, _end)
    ending.atexit = False
    return ending


def watch_late() -> None:
    """Watch what a program may have imported in the meantime."""
    module = sys.modules.get(_FUNCTIONAL)
    if module is None or module in _seen:
        return
    with _lock:
        if module not in _seen and _num_open:
            name = "_resolve_group" if hasattr(module, "_resolve_group") else "_resolve_group_name"
            _wrap(module, name, _collective)
            _seen.append(module)


def _end() -> None:
    global _num_open
    with _lock:
        _num_open -= 1
        if not _num_open:
            _seen.clear()
            while _undo:
                _undo.pop()()


def _looks() -> list[tuple[Any, str, Look]]:
    """Return what is watched: where torch keeps it, and who looks."""
    kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type) and "step" in vars(kind)]
    return [
        (torch.autograd, "_engine_run_backward", _backward),
        (distributed_c10d, "_rank_not_in_group", _collective),
        (Optimizer, "__init__", _make),
        (Optimizer, "zero_grad", _clear_optimizer),
        (nn.Module, "zero_grad", _clear_module),
        (torch.amp.GradScaler, "scale", _scale),
        *((kind, "step", _schedule) for kind in kinds if kind is not Optimizer),
    ]


def _wrap(place: Any, name: str, look: Look) -> None:
    own = vars(place).get(name)
    if own is None:
        return

    @functools.wraps(own)
    def watched(*args: Any, **kwargs: Any) -> Any:
        look(HERE.loss, *args, **kwargs)
        return own(*args, **kwargs)

    def undo() -> None:
        if vars(place).get(name) is watched:  # whoever has wrapped it since would be thrown away
            setattr(place, name, own)

    setattr(place, name, watched)
    _undo.append(undo)


def _backward(loss: InsideLoss | None, outputs: Any, *args: Any, **kwargs: Any) -> None:
    if loss is not None and kwargs.get("accumulate_grad"):
        loss.refuse_backward(outputs, args[3] if len(args) > 3 else ())


def _make(loss: InsideLoss | None, optimizer: Optimizer, *_: Any, **__: Any) -> None:
    if loss is not None:
        loss.making(optimizer)


@spared
def _step(optimizer: Optimizer, *_: Any) -> None:
    if (loss := HERE.loss) is None:
        refuse_leaked(optimizer)
    elif isinstance(loss, InsideLoss):
        loss.refuse_step(optimizer)


def _clear_optimizer(loss: InsideLoss | None, optimizer: Optimizer, *_: Any, **__: Any) -> None:
    _clear(loss, [parameter for group in optimizer.param_groups for parameter in group["params"]], "optimizer")


def _clear_module(loss: InsideLoss | None, module: nn.Module, *_: Any, **__: Any) -> None:
    _clear(loss, [*module.parameters()], "model")


def _clear(loss: InsideLoss | None, parameters: list[Any], name: str) -> None:
    if loss is None:
        forget_cleared(parameters)
    else:
        loss.refuse_zeroing(parameters, name)


def _scale(loss: InsideLoss | None, scaler: Any, *_: Any, **__: Any) -> None:
    if loss is not None and scaler.is_enabled():
        loss.refuse_scaling()


def _schedule(loss: InsideLoss | None, scheduler: Any, *_: Any, **__: Any) -> None:
    if loss is not None:
        loss.refuse_schedule(scheduler)


def _collective(loss: InsideLoss | None, *_: Any, **__: Any) -> None:
    if loss is None:
        return
    frame = sys._getframe(2)
    if frame.f_code.co_name not in _QUESTIONS:
        while frame.f_code.co_name.startswith("_") and frame.f_back is not None:
            frame = frame.f_back
        loss.refuse_collective(f"torch.distributed's {frame.f_code.co_name}")


_seen: list[Any] = []
