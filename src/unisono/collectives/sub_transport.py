"""A transport between some of the ranks, made of messages: the others need not take part, nor know."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from unisono.collectives.messages import Messages
from unisono.collectives.transport import Transport


@final
class SubTransport(Transport):
    """Moves tensors between some of the ranks.

    Args:
        messages: Between all ranks.
        ranks: Those that it joins, the same list on all of them; their place in it is their rank here.
        tag: That nothing else between these ranks uses.
    """

    def __init__(self, messages: Messages, ranks: Sequence[int], tag: int) -> None:
        self._messages, self._ranks, self._tag = messages, list(ranks), tag
        self.rank, self.world_size = self._ranks.index(messages.rank), len(self._ranks)
        self.bytes_sent = 0

    def all_to_all(self, send: Tensor, send_splits: list[int], recv: Tensor, recv_splits: list[int]) -> None:
        outgoing, incoming = send.split(send_splits), recv.split(recv_splits)
        kept = []
        for place in self._others():
            if send_splits[place]:
                kept.append(outgoing[place].cpu().contiguous())
                self.bytes_sent += kept[-1].nbytes
                self._messages.send(kept[-1], self._ranks[place], self._tag)
        incoming[self.rank].copy_(outgoing[self.rank])
        for place in self._others():
            if recv_splits[place]:
                arrived = recv.new_empty(recv_splits[place], device="cpu")
                self._messages.receive(arrived, self._ranks[place], self._tag)
                incoming[place].copy_(arrived)
        self._messages.flush()

    def all_gather(self, send: Tensor, recv: Tensor) -> None:
        length, count = len(send), self.world_size
        self.all_to_all(send.repeat(count), [length] * count, recv, [length] * count)

    def _others(self) -> list[int]:
        return [place for place in range(self.world_size) if place != self.rank]
