"""Messages that an exchange waits for, and the memory of those that are on their way."""

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives.coding.rounding import Coder


@final
@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that will come, and where its numbers go."""

    work: Any
    message: Tensor
    part: Tensor
    coder: Coder | None

    def numbers(self) -> Tensor:
        """Return the numbers; the message is there."""
        if self.coder is not None:
            self.coder.decode(self.message, self.part)
        return self.part


@final
class Rooms:
    """Memory for messages, the same in each step."""

    def __init__(self) -> None:
        self._rooms: list[Tensor] = []
        self._next = 0

    def start(self) -> None:
        """Start a step: all may be used again."""
        self._next = 0

    def take(self, num_bytes: int) -> Tensor:
        """Return so many bytes, uint8, that nobody else uses in this step."""
        if self._next == len(self._rooms):
            self._rooms.append(torch.empty(num_bytes, dtype=torch.uint8))
        elif len(self._rooms[self._next]) < num_bytes:
            self._rooms[self._next] = torch.empty(num_bytes, dtype=torch.uint8)
        self._next += 1
        return self._rooms[self._next - 1][:num_bytes]
