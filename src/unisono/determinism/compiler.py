"""torch's compiler, kept out of processes that do not compile: its import costs as much as torch's own.

In torch 2.13 three things import ``torch._dynamo`` (1.7 s of CPU) where nothing is compiled: making, saving or loading
an optimizer, whose methods are to be left out of graphs; its step, to break a graph; and
`torch.use_deterministic_algorithms`, to tell the compiler. While a run is open they do without until a program imports
it for itself; from then on torch's own code runs. A torch that does these things otherwise is left as it is.
"""

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from typing import Any, final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as module

from unisono.determinism.shortcut import Shortcut
from unisono.environment import tell_compiler_to_be_deterministic, tell_compiler_to_treat_shapes_alike

SHORTCUT = Shortcut()


def is_here() -> bool:
    """Whether this process has imported torch's compiler."""
    return "torch._dynamo" in sys.modules


def spare_optimizers() -> None:
    """Let optimizers be made, saved and loaded without the compiler.

    torch looks for a method's uncompiled version at the method (``torch._compile._disable_dynamo``), and imports the
    compiler to make one where there is none. Here the method itself stands there until the compiler is imported.
    """
    if is_here():
        return
    for method in vars(Optimizer).values():
        plain = getattr(method, "__wrapped__", None)
        if getattr(method, "__code__", None) is _LEAVING_OUT and not hasattr(plain, _LEFT_OUT):
            setattr(plain, _LEFT_OUT, plain)
            _spared.append(plain)
    sys.meta_path.insert(0, _finder)


def restore_optimizers() -> None:
    """Put back what `spare_optimizers` has changed."""
    _finder.restore_methods()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


@final
class _Finder(MetaPathFinder):
    """Hears of the import of the compiler before it begins, and puts torch's methods back."""

    def find_spec(self, fullname: str, _path: Any = None, _target: Any = None) -> None:
        """Find nothing: others do."""
        if fullname == "torch._dynamo":
            self.restore_methods()

    def restore_methods(self) -> None:
        """Let the compiler leave the methods out of graphs itself."""
        while _spared:
            vars(_spared.pop()).pop(_LEFT_OUT, None)


def update(step: Callable[..., Any], optimizer: Optimizer) -> None:
    """Call the `step` of an optimizer's class, which torch wraps to break graphs; without the compiler if it can."""
    if is_here() or getattr(step, "__code__", None) is not _BREAKING:
        step(optimizer)
        return
    before = torch.is_grad_enabled()
    try:
        torch._C._set_grad_enabled(optimizer.defaults["differentiable"])
        step.__wrapped__(optimizer)  # type: ignore[attr-defined]
    finally:
        torch._C._set_grad_enabled(before)


def use_deterministic_algorithms() -> None:
    """Do what ``torch.use_deterministic_algorithms(True)`` does; the compiler is told when it comes.

    Processes that this one starts afterwards hear of it too, through their environment.
    """
    if not SHORTCUT.is_open:
        torch.use_deterministic_algorithms(True)
        return
    torch.set_deterministic_debug_mode("error")
    config = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.deterministic = True  # type: ignore[attr-defined]
    else:
        tell_compiler_to_be_deterministic()


def treat_shapes_alike() -> None:
    """Let what is compiled for a shape depend on nothing but the shape, not on which ones this process saw before.

    As torch comes, code is compiled for the first shape that arrives, and for sizes in general once another one does.
    Which is first depends on the placement of replicas and on where a run was resumed, and the two have other bits. So
    each shape gets code of its own, unless the program says ``dynamic=True`` or marks sizes as dynamic; and where
    torch would stop compiling, after too many, and go on without, it raises.
    """
    tell_compiler_to_treat_shapes_alike()
    config: Any = sys.modules.get("torch._dynamo.config")
    if config is not None:
        config.automatic_dynamic_shapes = False
        config.fail_on_recompile_limit_hit = not config.suppress_errors  # torch does not take both


_finder = _Finder()
_spared: list[Any] = []
_LEFT_OUT = "__dynamo_disable"
_LEAVING_OUT = getattr(torch, "_disable_dynamo", lambda own: own)(lambda: None).__code__
"""Of what torch puts around methods to be left out of graphs."""
_BREAKING = getattr(module, "_use_grad_for_differentiable", lambda own: own)(lambda: None).__code__
"""Of what sets whether a step records gradients, and breaks graphs."""
