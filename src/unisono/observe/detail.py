"""The detail of steps, on request: one pass over weights and gradients, on the leader alone."""

from collections.abc import Container, Sequence

import numpy as np
import numpy.typing as npt
from torch import nn

from unisono.determinism.switches import checksums
from unisono.observe.ledger import Detail


def detail_of(
    step: int, indices: npt.NDArray[np.int64], losses: Sequence[float], model: nn.Module,
    trained: Container[str] | None = None,
) -> Detail:  # fmt: skip
    """Return the detail of a step whose gradients lie in the model, before its update, which may be of a part of it."""
    parameters = dict(model.named_parameters())
    changing = parameters if trained is None else {name: p for name, p in parameters.items() if name in trained}
    return Detail(
        step=step,
        indices=indices.tolist(),
        losses=[loss.hex() for loss in losses],
        weights=checksums(parameters | dict(model.named_buffers())),
        gradients=checksums({name: p.grad for name, p in changing.items() if p.grad is not None}),
    )
