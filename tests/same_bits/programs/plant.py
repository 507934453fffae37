"""The control: ``plant.py SCRIPT ARGS...`` starts a script after arranging that one bit of one weight is flipped.

The lowest bit of the first weight, after the third step of every optimizer, on all ranks alike.
"""

import runpy
import sys
from collections import Counter
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_post_hook

STEP = 3


def main() -> None:
    """Plant the change, and become the script."""
    steps: Counter[int] = Counter()

    def flip(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        steps[id(optimizer)] += 1
        if steps[id(optimizer)] == STEP:
            weight = optimizer.param_groups[0]["params"][0].detach()
            own = weight.to_local() if isinstance(weight, DTensor) else weight  # of a sharded one this rank's part
            own.view(torch.int32).reshape(-1)[:1].bitwise_xor_(1)  # contiguous: nothing is copied

    register_optimizer_step_post_hook(flip)
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
