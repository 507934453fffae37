"""Messages between two ranks of one host, without the others: shared memory with one small ring for each ordered pair.

A ring holds a few pieces. The sender waits for a free one, fills it and posts a semaphore; the receiver empties it and
posts another: so memory is synchronised as in `shared_memory`, and a message of any size passes. Messages of one pair
arrive in the order they were sent; one with another tag than the receiver asks for is set aside until it is asked for.
A wait notices when the other process ends. The memory is anonymous and is gone with the last process that maps it.
"""

import collections
import mmap
import struct
from typing import final

import torch
from torch import Tensor

from unisono.collectives.shm.shared_block import (
    SEMAPHORE_BYTES,
    SharedBlock,
    comes_soon,
    make_semaphore,
    post,
    take,
    value_of,
)
from unisono.errors import PeerLost, RankDivergence

NUM_PIECES = 4
_SOON_S = 1e-4
_HEAD_BYTES = 128
_HEAD = struct.Struct("<QqIB")  # bytes of the message, tag, bytes in this piece, length of the text that follows
_TEXT_BYTES = _HEAD_BYTES - _HEAD.size


@final
class Mailbox:
    """One rank's end of the rings between all pairs.

    Made like a `SharedBoard`: rank 0 calls `create` and sends the address, the others call `attach`, then all exchange
    their process ids and call `watch`. Different pairs, and the two directions of a pair, may be used by different
    threads at the same time; one direction by one thread.

    Args:
        block: The memory; closed with the mailbox.
        rank: This rank.
        world_size: Number of ranks.
        piece_bytes: Size of a piece; a multiple of 64.
        timeout_s: Longest wait for a rank that lives.
    """

    def __init__(self, block: SharedBlock, rank: int, world_size: int, piece_bytes: int, timeout_s: float) -> None:
        self.rank, self.world_size, self.piece_bytes, self.timeout_s = rank, world_size, piece_bytes, timeout_s
        self._block, self._memory = block, block.memory
        self._bytes = torch.frombuffer(block.memory, dtype=torch.uint8)
        self._counts = collections.Counter[tuple[int, int]]()
        self._aside: dict[tuple[int, int], collections.deque[tuple[str, Tensor]]] = {}

    @classmethod
    def create(cls, world_size: int, piece_bytes: int, timeout_s: float) -> tuple["Mailbox", str]:
        """Make the memory; returns rank 0's mailbox and the address for the other ranks."""
        block, address = SharedBlock.create("unisono-mail", _total_bytes(world_size, piece_bytes))
        for pair in range(world_size * world_size):
            make_semaphore(block.base + 2 * pair * SEMAPHORE_BYTES, NUM_PIECES)
            make_semaphore(block.base + (2 * pair + 1) * SEMAPHORE_BYTES, 0)
        return cls(block, 0, world_size, piece_bytes, timeout_s), address

    @classmethod
    def attach(cls, address: str, rank: int, world_size: int, piece_bytes: int, timeout_s: float) -> "Mailbox":
        """Map the memory that rank 0 has made."""
        block = SharedBlock.attach(address, _total_bytes(world_size, piece_bytes))
        return cls(block, rank, world_size, piece_bytes, timeout_s)

    def watch(self, pids: list[int]) -> None:
        """Take the process ids of all ranks, to notice when one ends."""
        self._block.watch(pids)

    def can_send(self, target: int, num_bytes: int) -> bool:
        """Whether `send` of so many bytes would not have to wait."""
        return value_of(self._free(self.rank, target)) >= self._num_pieces(num_bytes)

    def can_receive(self, source: int, num_bytes: int) -> bool:
        """Whether a whole message of so many bytes lies there."""
        return value_of(self._full(source, self.rank)) >= self._num_pieces(num_bytes)

    def can_receive_soon(self, source: int, num_bytes: int) -> bool:
        """Whether a whole message of so many bytes lies there, or comes within some 0.1 ms."""
        return comes_soon(lambda: self.can_receive(source, num_bytes), _SOON_S)

    def send(self, message: Tensor, target: int, tag: int, what: str) -> None:
        """Send bytes to a rank; returns when all of them lie in the ring.

        Args:
            message: uint8, one-dimensional, contiguous.
            target: The receiving rank.
            tag: Must be the receiver's.
            what: Shape and dtype; must be the receiver's.

        Raises:
            PeerLost: The rank has died, or has not made room within the timeout.
        """
        text = what.encode()[:_TEXT_BYTES]
        for piece in message.split(self.piece_bytes):
            self._wait(self._free(self.rank, target), target, f"send of {what} to rank {target}")
            start = self._next(self.rank, target)
            self._memory[start : start + _HEAD_BYTES] = (
                _HEAD.pack(len(message), tag, len(piece), len(text)) + text.ljust(_TEXT_BYTES)
            )  # fmt: skip
            self._bytes[start + _HEAD_BYTES :][: len(piece)].copy_(piece)
            post(self._full(self.rank, target))

    def receive(self, message: Tensor, source: int, tag: int, what: str) -> None:
        """Receive the next message of a rank that carries `tag`; returns when all of it is there.

        Args:
            message: uint8, one-dimensional, contiguous; overwritten.
            source: The sending rank.
            tag: Messages with other tags wait for a call that asks for them.
            what: Shape and dtype.

        Raises:
            PeerLost: The rank has died, or has not sent within the timeout.
            RankDivergence: The message has another shape or dtype; it is lost, the next one can be received.
        """
        doing = f"recv of {what} from rank {source}, tag {tag}"
        waiting = self._aside.get((source, tag))
        if waiting:
            arrived, content = waiting.popleft()
            self._check(arrived, what, doing)
            message.copy_(content)
            return
        while True:
            arrived, found_tag, content = self._take(message, source, tag, what, doing)
            if found_tag == tag:
                self._check(arrived, what, doing)
                return
            self._aside.setdefault((source, found_tag), collections.deque()).append((arrived, content))

    def close(self) -> None:
        """Stop watching; the memory goes with the last tensor that looks at it."""
        self._block.close()

    def _take(self, message: Tensor, source: int, tag: int, what: str, doing: str) -> tuple[str, int, Tensor]:
        """Take one whole message, into `message` if it is the wanted one; returns text, tag and content."""
        content, done, text, found_tag = None, 0, "", 0
        while content is None or done < len(content):
            self._wait(self._full(source, self.rank), source, doing)
            start = self._next(source, self.rank)
            size, found_tag, length, text_length = _HEAD.unpack_from(self._memory, start)
            if content is None:
                text_start = start + _HEAD.size
                text = self._memory[text_start : text_start + text_length].decode(errors="replace")
                is_wanted = found_tag == tag and text == _cut(what) and size == len(message)
                content = message if is_wanted else torch.empty(size, dtype=torch.uint8)
            content[done : done + length].copy_(self._bytes[start + _HEAD_BYTES :][:length])
            done += length
            post(self._free(source, self.rank))
        return text, found_tag, content

    def _check(self, arrived: str, what: str, doing: str) -> None:
        if arrived != _cut(what):
            raise RankDivergence(
                f"[rank {self.rank}/{self.world_size}] {doing}: the message holds {arrived}. "
                "Hint: sender and receiver must agree on shape and dtype."
            )

    def _wait(self, semaphore: int, peer: int, doing: str) -> None:
        def look(waited_s: float) -> None:
            is_dead = peer in self._block.dead()
            # It may have done its part and then ended well: looked at in this order.
            if value_of(semaphore) or (not is_dead and waited_s < self.timeout_s):
                return
            who = f"[rank {self.rank}/{self.world_size}] {self._block.names([peer])}"
            where = f"(waiting in {doing}). Hint: look for the first failure in its log."
            if is_dead:
                raise PeerLost(f"{who} has died {where}")
            stopped = ", stopped by a signal or a debugger," if peer in self._block.stopped() else ""
            raise PeerLost(f"{who}{stopped} has not come within {self.timeout_s:g} s {where}")

        take(semaphore, look)

    def _num_pieces(self, num_bytes: int) -> int:
        return max(1, -(-num_bytes // self.piece_bytes))

    def _pair(self, source: int, target: int) -> int:
        return source * self.world_size + target

    def _free(self, source: int, target: int) -> int:
        return self._block.base + 2 * self._pair(source, target) * SEMAPHORE_BYTES

    def _full(self, source: int, target: int) -> int:
        return self._free(source, target) + SEMAPHORE_BYTES

    def _next(self, source: int, target: int) -> int:
        """Return where the next piece of a direction lies, and count it."""
        number = self._counts[source, target]
        self._counts[source, target] = number + 1
        index = self._pair(source, target) * NUM_PIECES + number % NUM_PIECES
        return _rings_start(self.world_size) + index * (_HEAD_BYTES + self.piece_bytes)


def _cut(what: str) -> str:
    return what.encode()[:_TEXT_BYTES].decode(errors="replace")


def _rings_start(world_size: int) -> int:
    used = 2 * world_size * world_size * SEMAPHORE_BYTES
    return -(-used // mmap.PAGESIZE) * mmap.PAGESIZE


def _total_bytes(world_size: int, piece_bytes: int) -> int:
    return _rings_start(world_size) + world_size * world_size * NUM_PIECES * (_HEAD_BYTES + piece_bytes)
