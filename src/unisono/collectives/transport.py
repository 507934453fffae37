"""What carries bytes between ranks: the few operations everything above is built from.

A transport moves tensors and never adds: the order of sums belongs to `tree`. Every method is collective: all ranks
call it, in the same order, and it blocks until this rank's part is done. Implementations: `loopback`,
`process_group`.
"""

import json
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from unisono.collectives.shared_memory import SharedBoard


class Transport(ABC):
    """Moves tensors between the ranks of one world.

    Attributes:
        rank: Index of this process.
        world_size: Number of ranks.
        bytes_sent: Payload bytes this rank has handed to *other* ranks so far.
        board: Shared memory that all ranks see, where there is some; reductions go through it directly.
    """

    rank: int
    world_size: int
    bytes_sent: int
    board: SharedBoard | None = None

    @abstractmethod
    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        """Send part j of `send` to rank j and receive part i of `recv` from rank i.

        Args:
            send: One-dimensional and contiguous; its parts lie in rank order.
            send_splits: Elements for each rank.
            recv: Like `send`, overwritten.
            recv_splits: Elements from each rank.

        Raises:
            PeerLost: A rank went away or did not answer in time.
        """

    @abstractmethod
    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        """Give every rank the concatenation of all `send` in rank order.

        Args:
            send: One-dimensional and contiguous, of equal length on all ranks.
            recv: One-dimensional, ``world_size`` times as long, overwritten.

        Raises:
            PeerLost: A rank went away or did not answer in time.
        """

    def barrier(self) -> None:
        """Return on no rank before all ranks have called."""
        self.all_gather(torch.zeros(1, dtype=torch.uint8), torch.empty(self.world_size, dtype=torch.uint8))

    def all_gather_json(self, value: Any) -> list[Any]:
        """Return every rank's JSON-able value, in rank order (small control messages; no pickle)."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = torch.empty(self.world_size, dtype=torch.int64)
        self.all_gather(torch.tensor([len(data)]), sizes)
        longest = int(sizes.max())
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        everything = torch.empty(self.world_size * longest, dtype=torch.uint8)
        self.all_gather(padded, everything)
        rows = everything.view(self.world_size, longest)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes.tolist(), strict=True)]

    def close(self) -> None:  # noqa: B027 - most transports own nothing
        """Release what this transport opened; safe to call twice."""
