"""The reduce-scatter of fully sharded training, along the canonical tree: rounds, a binary counter, sums.

In a round each rank computes one replica at most; all its slices travel at once, and are added as soon as the tree
allows it.
"""

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, combine, push
from unisono.errors import StepError

Stack = list[tuple[Node, list[Tensor]]]


class Rounds:
    """Which replicas the ranks compute at the same time, in the step under way."""

    def __init__(self, placement: Sequence[range], leaves: int) -> None:
        self.leaves = leaves
        self.present = [[replica for replica in hosted if replica < leaves] for hosted in placement]
        self.count = max(len(found) for found in self.present)
        self.now = 0
        self.is_silent = False  # whether what this rank computes now counts nothing

    def replica_of(self, rank: int) -> int | None:
        """Return the replica that a rank computes in this round, None if what it computes does not count."""
        return self.present[rank][self.now] if self.now < len(self.present[rank]) else None


def add(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    """Add tensors pair by pair, in the memory of the left ones."""
    if left:  # a model may have no buffers
        torch._foreach_add_(left, right)
    return left


@final
class TreeReduceScatter:
    """The reduce-scatter of one FSDP module, over all rounds of a step."""

    def __init__(self, transport: Transport, rounds: Callable[[], Rounds], name: str) -> None:
        self._transport, self._rounds, self._name = transport, rounds, name
        self._stacks: list[Stack] = []
        self._last: tuple[Rounds, int] | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return memory for torch to fill."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Take every rank's slice; leave the sum in the last round, before it -0.0, which changes no bit.

        Raises:
            StepError: The module was called twice: torch reduces each call's gradient alone, which adds in an order
                other than the tree's.
        """
        rounds, world_size = self._rounds(), self._transport.world_size
        if self._last == (rounds, rounds.now):
            raise StepError(
                f"{self._name} is called more than once in one forward pass, and strategy fsdp would add its gradients "
                "in an order of its own. Hint: strategy='exact', or wrap= (--wrap) with the class of the module "
                "around it, so that both calls belong to one unit."
            )
        self._last = (rounds, rounds.now)
        if rounds.now == 0:
            self._stacks = [[] for _ in range(world_size)]
        if rounds.is_silent:
            input_tensor.fill_(-0.0)
        part = output_tensor.numel()
        arrived = torch.empty_like(input_tensor)
        self._transport.all_to_all(input_tensor, [part] * world_size, arrived, [part] * world_size)
        for rank, leaf in enumerate(arrived.split(part)):
            replica = rounds.replica_of(rank)
            if replica is not None:
                push(self._stacks[rank], replica, [leaf], rounds.leaves, add)
        if rounds.now < rounds.count - 1:
            output_tensor.fill_(-0.0)
            return
        partials = {node: value for stack in self._stacks for node, value in stack}
        output_tensor.copy_(combine(partials, rounds.leaves, add)[0])
        self._stacks = []
