"""An optimizer's step without the range that torch opens around it for a profiler, as long as no profiler looks.

torch wraps the `step` of every optimizer class in a range of its profiler and in the calls of hooks; for a tiny model
the range costs as much as the update. Wherever anybody could notice, the wrapper stays.
"""

import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.optim import Optimizer, lr_scheduler
from torch.optim import optimizer as module

from unisono.determinism import compiler
from unisono.determinism.shortcut import Shortcut

H = TypeVar("H", bound=Callable[..., Any])

SHORTCUT = Shortcut()
_SPARED = "is_spared_by_plain_steps"


def spared(hook: H) -> H:
    """Mark a hook before an optimizer's step as one that has nothing to say of the steps of a run."""
    setattr(hook, _SPARED, True)
    return hook


def step(optimizer: Optimizer) -> None:
    """Do what ``optimizer.step()`` does.

    The wrapper is left out only where it is torch's own, around the class's own `step`, where no hooks but `spared`
    ones are registered, and where no profiler runs (an ``ExecutionTraceObserver`` without one cannot be seen). What
    torch's schedules put into the object, to learn that there was a step, is told so here.
    """
    wrapper: Any = type(optimizer).step
    is_torchs_own = getattr(wrapper, "__code__", None) is _TORCHS_OWN
    if not (SHORTCUT.is_open and is_torchs_own and _is_unseen(optimizer, wrapper)):
        optimizer.step()
        return
    if "step" in vars(optimizer):
        optimizer._opt_called = True  # type: ignore[attr-defined]
    compiler.update(wrapper.__wrapped__, optimizer)


def _is_unseen(optimizer: Optimizer, wrapper: Any) -> bool:
    """Whether nobody is told of this optimizer's steps; a torch that keeps its hooks elsewhere is not known to us."""
    own = vars(optimizer)
    before, after = own.get("_optimizer_step_pre_hooks"), own.get("_optimizer_step_post_hooks")
    return (
        before is not None
        and after is not None
        and ("step" not in own or _is_a_schedules(own["step"], wrapper, optimizer))
        and _are_spared(_EVERYBODYS[0])
        and _are_spared(_EVERYBODYS[1])
        and _are_spared(before)
        and _are_spared(after)
        and not torch._C._autograd._profiler_enabled()
    )


def _are_spared(hooks: Any) -> bool:
    """Whether no hook would miss anything; a torch that keeps them otherwise is not known to us."""
    return not hooks or (isinstance(hooks, dict) and all(hasattr(hook, _SPARED) for hook in hooks.values()))


def _is_a_schedules(step: Any, wrapper: Any, optimizer: Optimizer) -> bool:
    """Whether this is what a schedule of torch puts around this optimizer's step, as its class has it."""
    code = getattr(step, "__code__", None)
    if code is None or code.co_filename != lr_scheduler.__file__ or getattr(step, "__wrapped__", None) is not wrapper:
        return False
    held = (cell.cell_contents for cell in step.__closure__ or ())
    return any(isinstance(each, weakref.ref) and each() is optimizer for each in held)


_EVERYBODYS: list[Any] = [
    getattr(module, name, "unknown") for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
]
_TORCHS_OWN = Optimizer.profile_hook_step(lambda: None).__code__
"""Of the wrapper; whatever else a program puts around `step`, with ``functools.wraps`` or without, has another."""
