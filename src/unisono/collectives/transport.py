"""What carries bytes between ranks: the few operations everything above is built from.

A transport moves tensors and never adds: the order of sums belongs to `tree`. Every method is collective: all ranks
call it, in the same order, and it blocks until this rank's part is done. Implementations: `loopback`,
`process_group`.
"""

import json
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from unisono.collectives.divergence import divergence
from unisono.collectives.messages import GroupMessages, Messages
from unisono.collectives.shm.board import SharedBoard

T = TypeVar("T")
TIMEOUT_S = 300.0
"""Longest wait for a rank that lives, in one collective."""

_TEXT_BYTES = 240
_HEADER = struct.Struct(f"<qH{_TEXT_BYTES}s")


class Transport(ABC):
    """Moves tensors between the ranks of one world.

    Where a rank goes away, or does not answer in time, a collective raises `PeerLost`.
    """

    rank: int  #: Index of this process.
    world_size: int  #: Number of ranks.
    bytes_sent: int  #: Payload bytes this rank has handed to *other* ranks so far.
    step: int | None = None  #: The step that is under way, for messages; None outside of steps.
    #: Shared memory that all ranks see, where there is some; reductions go through it directly.
    board: SharedBoard | None = None
    #: A way of its own to reduce along the tree, with the arguments of `reduce.tree_all_reduce` but the last; used for
    #: CPU tensors where there is no board.
    tree_reducer: Callable[..., None] | None = None
    #: Returns an `exchange.Exchange` of its own; None where buckets are reduced one by one.
    make_exchange: Callable[[], Any] | None = None
    is_one_thread: bool = False  #: Whether a rank is one thread, so that no other may speak for it.

    @abstractmethod
    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        """Send part j of `send` to rank j and receive part i of `recv` from rank i.

        Args:
            send: One-dimensional and contiguous; its parts lie in rank order.
            send_splits: Elements for each rank.
            recv: Like `send`, overwritten.
            recv_splits: Elements from each rank.
        """

    @abstractmethod
    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        """Give every rank the concatenation of all `send` in rank order.

        Args:
            send: One-dimensional and contiguous, of equal length on all ranks.
            recv: One-dimensional, ``world_size`` times as long, overwritten.
        """

    def barrier(self) -> None:
        """Return on no rank before all ranks have called."""
        self.agree("barrier")

    def agree(self, what: str, number: int = 0) -> list[int]:
        """Make sure that all ranks are about to do the same, before sizes that differ do harm; collective.

        A message of fixed size: process groups answer unequal sizes by ending the process, or by waiting for ever.

        Args:
            what: Operation, shapes and dtype in words; the first 240 bytes count.
            number: Something to tell the others.

        Returns:
            Every rank's number.

        Raises:
            RankDivergence: The ranks have said different things; raised on all of them.
            PeerLost: A rank went away or did not answer in time.
        """  # noqa: DOC501 - a function makes the error
        text = self.told(what).encode()[:_TEXT_BYTES]
        mine = torch.frombuffer(bytearray(_HEADER.pack(number, len(text), text)), dtype=torch.uint8)
        everyone = torch.empty(self.world_size * len(mine), dtype=torch.uint8)
        counted = self.bytes_sent
        self.all_gather(mine, everyone)
        self.bytes_sent = counted  # no payload
        rows = [_HEADER.unpack(row.numpy().tobytes()) for row in everyone.split(len(mine))]
        told = [row[2][: row[1]].decode(errors="replace") for row in rows]
        if any(other != told[0] for other in told):
            raise divergence(f"[rank {self.rank}/{self.world_size}]", 0, told, "now")
        return [row[0] for row in rows]

    def all_gather_json(self, value: Any, of: str = "") -> list[Any]:
        """Return every rank's JSON-able value, in rank order (small control messages; no pickle).

        Args:
            value: Of this rank.
            of: What it is: ranks that tell each other different things are refused (`RankDivergence`), by these words.
        """
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self.agree(of or "all_gather_json", len(data))
        longest = max(sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(data)] = data
        everything = torch.empty(self.world_size * longest, dtype=torch.uint8)
        self.all_gather(padded, everything)
        rows = everything.view(self.world_size, longest)
        return [json.loads(bytes(row[:size].tolist())) for row, size in zip(rows, sizes, strict=True)]

    def told(self, what: str) -> str:
        """Return in words what this rank is about to do, with the step where it is known."""
        return what if self.step is None else f"step {self.step}: {what}"

    def again(self, act: Callable[[], T]) -> T:
        """Return what `act` gives; where a rank dies and the others go on without it, all of them do all of it again.

        Args:
            act: Collective; may be done twice. It finds out anew which ranks there are.
        """
        return act()

    def messages(self) -> Messages:
        """Return messages between pairs of these ranks.

        Raises:
            ConfigError: The ranks are not joined by torch.distributed's default process group.
        """
        return GroupMessages(self.rank, self.world_size)

    def close(self) -> None:  # noqa: B027 - most transports own nothing
        """Release what this transport opened; safe to call twice."""
