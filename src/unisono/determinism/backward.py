"""The backward pass of a loss that has been checked, without torch's checks of it."""

from logging import DEBUG
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Variable, graph
from torch.overrides import has_torch_function_unary

from unisono.determinism import compiler
from unisono.determinism.shortcut import Shortcut

SHORTCUT = Shortcut()


def differentiate(loss: Tensor, weight: float) -> None:
    """Do what ``loss.backward(torch.full_like(loss, weight))`` does.

    Its checks, which the caller has made, cost as much as a small graph, and the first one imports SymPy (0.7 s in
    torch 2.13). They are left out where the loss is a plain tensor and nobody has put himself between.
    """
    if (
        SHORTCUT.is_open
        and _ENGINE is not None
        and type(loss) is Tensor
        and loss.is_floating_point()
        and not loss.is_nested
        and (Tensor.backward, torch.autograd.backward) == _TORCHS_OWN
        and not has_torch_function_unary(loss)
        and not torch._C._are_functorch_transforms_active()
    ):
        start = torch.full_like(loss, weight)
        # What torch puts around its engine is for its compiler, in threads of other devices, and for its log.
        is_bare = _BARE is not None and not compiler.is_here() and not graph.log.isEnabledFor(DEBUG)
        engine = _BARE if is_bare else _ENGINE
        engine((loss,), (start,), False, False, (), allow_unreachable=True, accumulate_grad=True)
    elif weight == 1.0:
        loss.backward()
    else:
        loss.backward(torch.full_like(loss, weight))


_ENGINE: Any = getattr(graph, "_engine_run_backward", None)
_BARE: Any = getattr(getattr(Variable, "_execution_engine", None), "run_backward", None)
if not hasattr(graph, "log"):
    _BARE = None
_TORCHS_OWN = (Tensor.backward, torch.autograd.backward)
