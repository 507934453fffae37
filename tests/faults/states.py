"""States to save, and the judge of what was saved, for tests and for programs they start."""

import torch
from checker import judge as judge

from unisono.checkpoint.format import State


def state_of(step: int) -> State:
    """Return a small state that tells its step."""
    generator = torch.Generator().manual_seed(step)
    return State(
        tensors={
            "model": {"w": torch.randn(5, 3, generator=generator), "b": torch.full((2,), step, dtype=torch.int64)},
            "optimizer": {"w/momentum_buffer": torch.randn(5, 3, generator=generator)},
        },
        values={"step": step, "list": [1, 2.5, None]},
    )
