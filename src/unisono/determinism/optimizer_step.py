"""An optimizer's step without the range that torch opens around it for a profiler, as long as no profiler looks.

torch wraps the `step` of every optimizer class in a range of its profiler and in the calls of hooks; for a tiny model
the range costs as much as the update. Wherever anybody could notice, the wrapper stays.
"""

import itertools
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
_MARKS = itertools.repeat(_SPARED)


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
    own = vars(optimizer)
    is_torchs_own = getattr(wrapper, "__code__", None) is _TORCHS_OWN
    if not (SHORTCUT.is_open and is_torchs_own and _is_unseen(optimizer, own, wrapper)):
        optimizer.step()
        return
    if "step" in own:
        optimizer._opt_called = True  # type: ignore[attr-defined]
    compiler.update(wrapper.__wrapped__, optimizer)


def _is_unseen(optimizer: Optimizer, own: dict[str, Any], wrapper: Any) -> bool:
    """Whether nobody is told of this optimizer's steps; a torch that keeps its hooks elsewhere is not known to us."""
    try:
        before, after = own["_optimizer_step_pre_hooks"].values(), own["_optimizer_step_post_hooks"].values()
        hooks = (*_BEFORE.values(), *_AFTER.values(), *before, *after)
    except (AttributeError, KeyError):
        return False
    return (
        all(map(hasattr, hooks, _MARKS))
        and ("step" not in own or _is_a_schedules(own["step"], wrapper, optimizer))
        and not torch._C._autograd._profiler_enabled()
    )


def _is_a_schedules(step: Any, wrapper: Any, optimizer: Optimizer) -> bool:
    """Whether this is what a schedule of torch puts around this optimizer's step, as its class has it."""
    code = getattr(step, "__code__", None)
    if code is None or code.co_filename != lr_scheduler.__file__ or getattr(step, "__wrapped__", None) is not wrapper:
        return False
    held = (cell.cell_contents for cell in step.__closure__ or ())
    return any(isinstance(each, weakref.ref) and each() is optimizer for each in held)


_BEFORE: Any = getattr(module, "_global_optimizer_pre_hooks", None)
_AFTER: Any = getattr(module, "_global_optimizer_post_hooks", None)
_TORCHS_OWN = Optimizer.profile_hook_step(lambda: None).__code__
"""Of the wrapper; whatever else a program puts around `step`, with ``functools.wraps`` or without, has another."""
