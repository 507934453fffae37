"""Messages between two ranks, without the others.

Sending never waits for the receiver; receiving blocks. Messages of one sender with one tag arrive in the order in which
they were sent.
"""

from abc import ABC, abstractmethod
from collections import deque
from typing import Any, final

import torch.distributed as dist
from torch import Tensor

from unisono.collectives.process_groups.default_group import lost_peers_named
from unisono.errors import ConfigError


class Messages(ABC):
    """One rank's end of the messages between all ranks; `PeerLost` where the other one goes away or is late."""

    rank: int  #: This rank.
    world_size: int  #: Number of ranks.

    @abstractmethod
    def send(self, message: Tensor, target: int, tag: int) -> None:
        """Send a tensor; it must not be changed before `flush`.

        Args:
            message: Contiguous, on the CPU.
            target: Another rank.
            tag: The receiver's.
        """

    @abstractmethod
    def receive(self, message: Tensor, source: int, tag: int) -> None:
        """Wait for the next message of a rank with this tag.

        Args:
            message: Of the sender's shape and dtype, contiguous, on the CPU; overwritten.
            source: Another rank.
            tag: The sender's.

        Raises:
            PeerLost: The rank went away or did not send in time.
        """

    @abstractmethod
    def flush(self) -> None:
        """Wait until what was sent has been taken."""


@final
class GroupMessages(Messages):
    """Messages through torch.distributed's default process group; its CPU side, also where a GPU computes."""

    def __init__(self, rank: int, world_size: int) -> None:
        if not dist.is_initialized():
            raise ConfigError("messages between ranks need processes. Hint: unisono run, or unisono.launch.")
        self.rank, self.world_size = rank, world_size
        self._sent: deque[tuple[Any, Tensor, int]] = deque()

    def send(self, message: Tensor, target: int, tag: int) -> None:
        with lost_peers_named(self.rank, self.world_size, f"send to rank {target}", "that rank"):
            while self._sent and self._sent[0][0].is_completed():
                self._sent.popleft()[0].wait()
            self._sent.append((dist.isend(message, target, tag=tag), message, target))

    def receive(self, message: Tensor, source: int, tag: int) -> None:
        with lost_peers_named(self.rank, self.world_size, f"receive from rank {source}", "that rank"):
            dist.recv(message, source, tag=tag)

    def flush(self) -> None:
        while self._sent:
            work, _, target = self._sent.popleft()
            with lost_peers_named(self.rank, self.world_size, f"send to rank {target}", "that rank"):
                work.wait()
