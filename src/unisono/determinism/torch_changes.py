"""Every change that unisono makes to torch itself: one table, applied while a run is open and undone after the last.

None changes a bit: they save time, or see a habit that would. ``UNISONO_PLAIN_TORCH=1`` leaves all of them out.
`docs/determinism.md` shows the table, and what else of torch is touched, and where.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from unisono.determinism import backward, compiler, loss_hooks, optimizer_step
from unisono.determinism.loss_hooks import Observer
from unisono.environment import wants_plain_torch


@final
@dataclass(frozen=True, kw_only=True)
class TorchChange:
    """A change to torch, in words (Markdown) and in deed."""

    name: str  #: Of the change.
    touches: str  #: What of torch is another thing while it is applied.
    reason: str  #: What it is good for.
    guard: str  #: When it steps back by itself.
    without: str  #: What a run does without it.
    apply: Callable[[Observer], None]  #: Makes the change.
    undo: Callable[[], None]  #: Takes it back.


TORCH_CHANGES = (
    TorchChange(
        name="optimizers without the compiler",
        touches="`__dynamo_disable` at the methods of `torch.optim.Optimizer`; a finder in `sys.meta_path`",
        reason="making, saving or loading an optimizer imports `torch._dynamo`: 1.7 s of CPU",
        guard="the program imports the compiler, or this torch marks its methods in another way",
        without="each process starts 1.7 s of CPU later",
        apply=lambda _: compiler.spare_optimizers(),
        undo=compiler.restore_optimizers,
    ),
    TorchChange(
        name="determinism without the compiler",
        touches="nothing: `torch.set_deterministic_debug_mode` and a variable stand for "
        "`torch.use_deterministic_algorithms`",
        reason="that one imports the compiler's settings to tell it",
        guard="the compiler is there: it is told as torch does it",
        without="each process starts later",
        apply=lambda _: compiler.SHORTCUT.open(),
        undo=compiler.SHORTCUT.close,
    ),
    TorchChange(
        name="the optimizer's step without its wrapper",
        touches="nothing: the class's own `step` is called, inside the wrapper of `Optimizer.profile_hook_step`",
        reason="the wrapper's profiler range costs as much as the update of a tiny model",
        guard="a profiler runs, somebody has registered a hook, or put something around `step`",
        without="each step takes some microseconds more",
        apply=lambda _: optimizer_step.SHORTCUT.open(),
        undo=optimizer_step.SHORTCUT.close,
    ),
    TorchChange(
        name="backward without its checks",
        touches="nothing: `torch.autograd.graph._engine_run_backward` is called as `Tensor.backward` calls it",
        reason="the checks have been made; they cost as much as a small graph and import SymPy: 0.7 s of CPU",
        guard="the loss is no plain tensor, a mode or a transform is active, or somebody has replaced `backward`",
        without="each backward pass takes some microseconds more, the first one 0.7 s of CPU",
        apply=lambda _: backward.SHORTCUT.open(),
        undo=backward.SHORTCUT.close,
    ),
    TorchChange(
        name="hooks inside a loss function",
        touches="`torch.autograd._engine_run_backward`, `distributed_c10d._rank_not_in_group`, "
        "`_functional_collectives._resolve_group`, `Optimizer.__init__` and `zero_grad`, `nn.Module.zero_grad`, "
        "`torch.amp.GradScaler.scale`, `forward` of `nn.parallel.DistributedDataParallel` and `nn.DataParallel`, "
        "`step` of the schedules; a hook before every optimizer's step",
        reason="what a loss function may not do is refused at the line where it happens",
        guard="outside of loss functions they do nothing; what a program has put around them stays",
        without="**the habits of the table above are not noticed**; only collectives of unisono's own, "
        "`run.step` and `run.evaluate` are still refused there",
        apply=loss_hooks.hook,
        undo=loss_hooks.unhook,
    ),
)
"""All of them, in the order in which they are applied."""


def change_torch(owner: object, observer: Observer) -> Callable[[], Any]:
    """Apply the table until the function that is returned is called, or until `owner` is no more.

    Where several owners are open, the last one's end undoes it. With ``UNISONO_PLAIN_TORCH=1`` nothing is applied.

    Raises:
        WorldError: The variable is no whole number.
    """
    global _num_open
    if wants_plain_torch():
        return lambda: None
    with _lock:
        _num_open += 1
        if _num_open == 1:
            for change in TORCH_CHANGES:
                change.apply(observer)
    ending = weakref.finalize(owner, _end)
    ending.atexit = False
    return ending


def _end() -> None:
    global _num_open
    with _lock:
        _num_open -= 1
        if not _num_open:
            for change in reversed(TORCH_CHANGES):
                change.undo()


_lock = threading.RLock()  # the collector may end a run while another one begins
_num_open = 0
