"""The collective operations on tensors, between ranks of one host, over a `SharedBoard`.

In: CPU tensors of any dtype, shape and strides, also empty ones. Out: the same bits on every rank. All ranks call the
same operation in the same order, and it blocks until this rank's part is done. Buffers of any size go through the
slots in pieces: what is written before meeting number b lies in the areas of parity b % 2 and is read between meetings
b and b + 1, so one meeting per piece is enough.

Reductions combine the ranks' values element by element in the order of the canonical tree (`tree`, leaves = ranks),
for every operator; a value is computed once and copied, or computed by the same code on all ranks. Nothing depends on
where in the buffer an element lies, but which of +0 and -0 MIN and MAX give, and the payload of a NaN. AVG is the
SUM, divided once by the number of ranks; of integers toward zero, and a sum that overflows wraps round.

Every meeting carries a note of operation, shape, dtype and root: ranks that disagree get `RankDivergence`, all of them.
"""

import functools
import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import NoReturn, final

import torch
from torch import Tensor

from unisono.collectives.reductions import REDUCTIONS, combine_values, is_defined
from unisono.collectives.shm.board import SharedBoard, as_bytes
from unisono.collectives.shm.board_reduce import reduce_on_board
from unisono.errors import ConfigError, RankDivergence

_ALIGNMENT = 64
_NOTE_CHARS = 100


@final
class Collectives:
    """The operations of the ranks that have attached one board.

    Raises (every method):
        PeerLost: A rank has died or has not come within the board's timeout; names it.
        RankDivergence: The ranks called different operations, or with other shapes, dtypes or roots.
        ConfigError: No rank can do what all of them ask for.
    """

    def __init__(self, board: SharedBoard, told: Callable[[str], str] = str) -> None:
        self.board, self._told = board, told
        self.rank = board.rank
        self.world_size = board.world_size
        self._leaves = tuple(((rank, rank + 1),) for rank in range(board.world_size))

    def barrier(self) -> None:
        """Return on no rank before all have called."""
        self._meet("barrier")

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Overwrite `tensor` on every rank with that of `root`."""
        note = f"broadcast of {describe([tensor])} from rank {root}"
        self._check_root(note, root)
        flat = flat_of(tensor)
        for piece in as_bytes(flat).split(self._piece_bytes()):
            if self.rank == root:
                self._own_slot()[: len(piece)].copy_(piece)
            parity = self._meet(note)
            if self.rank != root:
                piece.copy_(self.board.slot(root, parity)[: len(piece)])
        if self.rank != root:
            store_into(flat, tensor)

    def scatter(self, out: Tensor, parts: Sequence[Tensor] | None, root: int) -> None:
        """Fill `out` on rank j with part j of `root`; the others pass no parts."""
        note = f"scatter of {describe([out])} from rank {root}"
        self._check_root(note, root)
        if self.rank == root:
            self._check_parts(note, parts, [out] * self.world_size)
        flat, room = flat_of(out), self._room()
        sources = [as_bytes(flat_of(part)) for part in parts or ()] if self.rank == root else []
        for start in _starts(flat.nbytes, room):
            for rank, source in enumerate(sources):
                piece = source[start : start + room]
                self._own_slot()[rank * room :][: len(piece)].copy_(piece)
            parity = self._meet(note)
            target = as_bytes(flat)[start : start + room]
            target.copy_(self.board.slot(root, parity)[self.rank * room :][: len(target)])
        store_into(flat, out)

    def gather(self, tensor: Tensor, outs: Sequence[Tensor] | None, root: int) -> None:
        """Fill ``outs[i]`` on `root` with the tensor of rank i; the others pass no outputs."""
        note = f"gather of {describe([tensor])} to rank {root}"
        self._check_root(note, root)
        if self.rank == root:
            self._check_parts(note, outs, [tensor] * self.world_size)
        self._collect(note, tensor, (outs or ()) if self.rank == root else ())

    def all_gather(self, outs: Sequence[Tensor], tensor: Tensor) -> None:
        """Fill ``outs[i]`` on every rank with the tensor of rank i; the shapes may differ from rank to rank."""
        note = f"all_gather of {describe(outs)}"
        self._check_parts(note, outs, None)
        if outs[self.rank].shape != tensor.shape or outs[self.rank].dtype != tensor.dtype:
            self._refuse(note, f"the input is {describe([tensor])}")
        self._collect(note, tensor, outs)

    def all_gather_single(self, out: Tensor, tensor: Tensor) -> None:
        """Fill `out` on every rank with the tensors of all ranks, one after the other."""
        note = f"all_gather_single of {describe([tensor])}"
        self._check_whole(note, out, tensor)
        flat = flat_of(out)
        self._collect(note, tensor, _chunks(flat, self.world_size))
        store_into(flat, out)

    def all_reduce(self, tensor: Tensor, op: str = "SUM") -> None:
        """Overwrite `tensor` on every rank with the combination of all ranks' tensors."""
        self._reduce(f"all_reduce {op} of {describe([tensor])}", tensor, op, None)

    def reduce(self, tensor: Tensor, root: int, op: str = "SUM") -> None:
        """Overwrite `tensor` on `root` with the combination of all ranks' tensors; elsewhere it stays."""
        note = f"reduce {op} of {describe([tensor])} to rank {root}"
        self._check_root(note, root)
        self._reduce(note, tensor, op, root)

    def reduce_scatter(self, out: Tensor, parts: Sequence[Tensor], op: str = "SUM") -> None:
        """Fill `out` on rank j with the combination of all ranks' part j; the parts' shapes may differ."""
        note = f"reduce_scatter {op} of {describe(parts)}"
        self._check_parts(note, parts, None)
        if parts[self.rank].shape != out.shape or parts[self.rank].dtype != out.dtype:
            self._refuse(note, f"the output is {describe([out])}")
        self._reduce_parts(note, out, [flat_of(part) for part in parts], op)

    def reduce_scatter_single(self, out: Tensor, tensor: Tensor, op: str = "SUM") -> None:
        """Fill `out` on rank j with the combination of part j of all ranks' tensors, cut into equal parts."""
        note = f"reduce_scatter_single {op} of {describe([out])}"
        self._check_whole(note, tensor, out)
        self._reduce_parts(note, out, _chunks(flat_of(tensor), self.world_size), op)

    def all_to_all(self, outs: Sequence[Tensor], parts: Sequence[Tensor]) -> None:
        """Fill ``outs[i]`` on rank j with part j of rank i; the sizes may differ from pair to pair."""
        note = f"all_to_all of {str(outs[0].dtype)[6:] if outs else 'nothing'}"
        for tensors in (outs, parts):
            self._check_parts(note, tensors, None)
            if any(tensor.dtype != outs[0].dtype for tensor in tensors):
                self._refuse(note, f"dtypes differ: {describe(tensors)}")
        flats = [flat_of(out) for out in outs]
        sources, targets = [as_bytes(flat_of(part)) for part in parts], [as_bytes(flat) for flat in flats]
        # Each slot begins with the rank's sizes: all must know how many meetings the longest part of any pair takes.
        sizes = torch.tensor([len(each) for each in (*sources, *targets)])
        head = -(-sizes.nbytes // _ALIGNMENT) * _ALIGNMENT
        room, start, longest = self._room(head), 0, 1
        while start < longest:
            own = self._own_slot()
            own[: sizes.nbytes].view(torch.int64).copy_(sizes)
            for rank, source in enumerate(sources):
                piece = source[start : start + room]
                own[head + rank * room :][: len(piece)].copy_(piece)
            parity = self._meet(note)
            slots = [self.board.slot(rank, parity) for rank in range(self.world_size)]
            if not start:
                told = [slot[: sizes.nbytes].view(torch.int64).tolist() for slot in slots]
                self._check_sizes([row[: self.world_size] for row in told], [row[self.world_size :] for row in told])
                longest = max(map(max, told))
            for slot, target in zip(slots, targets, strict=True):
                part = target[start : start + room]
                part.copy_(slot[head + self.rank * room :][: len(part)])
            start += room
        for flat, out in zip(flats, outs, strict=True):
            store_into(flat, out)

    def _collect(self, note: str, tensor: Tensor, outs: Sequence[Tensor]) -> None:
        """Lay the tensor down piece by piece; copy every rank's to its output, where there are outputs."""
        source, flats = as_bytes(flat_of(tensor)), [flat_of(out) for out in outs]
        targets = [as_bytes(flat) for flat in flats]
        room = self._piece_bytes()
        for start in _starts(max((len(target) for target in targets), default=len(source)), room):
            piece = source[start : start + room]
            self._own_slot()[: len(piece)].copy_(piece)
            parity = self._meet(note)
            for rank, target in enumerate(targets):
                part = target[start : start + room]
                part.copy_(self.board.slot(rank, parity)[: len(part)])
        for flat, out in zip(flats, outs, strict=True):
            store_into(flat, out)

    def _reduce(self, note: str, tensor: Tensor, op: str, root: int | None) -> None:
        self._check_op(note, op, tensor.dtype)
        flat = flat_of(tensor)
        is_receiver = root is None or root == self.rank
        reduce_on_board(
            self.board, [flat], self._leaves, self.world_size, flat if is_receiver else None, self._told(note), op
        )
        if is_receiver and flat is not tensor:
            store_into(flat, tensor)

    def _reduce_parts(self, note: str, out: Tensor, parts: Sequence[Tensor], op: str) -> None:
        """Lay down all parts piece by piece; combine the own one."""
        self._check_op(note, op, out.dtype)
        flat = flat_of(out)
        room = self._room() // flat.element_size()
        for start in _starts(max(len(part) for part in parts), room):
            slot = self._own_slot().view(flat.dtype)
            for rank, part in enumerate(parts):
                piece = part[start : start + room]
                slot[rank * room :][: len(piece)].copy_(piece)
            parity = self._meet(note)
            target = flat[start : start + room]
            slots = [self.board.slot(rank, parity).view(flat.dtype) for rank in range(self.world_size)]
            values = [slot[self.rank * room :][: len(target)] for slot in slots]
            combine_values(values, op, target)
        store_into(flat, out)

    def _check_op(self, note: str, op: str, dtype: torch.dtype) -> None:
        if not is_defined(op, dtype):
            known = ", ".join(name for name in REDUCTIONS if is_defined(name, dtype)) or "nothing"
            self._refuse(note, f"{op} is not defined for {str(dtype)[6:]}; defined: {known}")

    def _own_slot(self) -> Tensor:
        """Return where this rank writes before the next meeting."""
        return self.board.slot(self.rank, self.board.num_meetings % 2)

    def _meet(self, note: str) -> int:
        """Meet, and return the parity of the areas that may be read until the next meeting."""
        self.board.meet(self._told(note))
        return (self.board.num_meetings - 1) % 2

    def _piece_bytes(self) -> int:
        """Return the most bytes that a rank lays down for one meeting, as this host's plan says."""
        return min(self.board.slot_bytes, max(self.board.plan.piece_bytes, _ALIGNMENT * self.world_size))

    def _room(self, head: int = 0) -> int:
        """Return the bytes of a piece for each of the ranks, behind a head."""
        room = max(0, self._piece_bytes() - head) // self.world_size // _ALIGNMENT * _ALIGNMENT
        room = room or (self.board.slot_bytes - head) // self.world_size // _ALIGNMENT * _ALIGNMENT
        if room <= 0:
            raise ConfigError(f"expected slots of at least {head + _ALIGNMENT * self.world_size} bytes.")
        return room

    def _check_root(self, note: str, root: int) -> None:
        if not 0 <= root < self.world_size:
            self._refuse(note, f"expected a root from 0 to {self.world_size - 1}")

    def _check_parts(self, note: str, parts: Sequence[Tensor] | None, like: Sequence[Tensor] | None) -> None:
        if parts is None or len(parts) != self.world_size:
            found = "none" if parts is None else len(parts)
            self._refuse(note, f"expected a list of {self.world_size} tensors, one for each rank, got {found}")
        if like and any(a.shape != b.shape or a.dtype != b.dtype for a, b in zip(parts, like, strict=True)):
            self._refuse(note, f"the list holds {describe(parts)}")

    def _check_whole(self, note: str, whole: Tensor, part: Tensor) -> None:
        if whole.numel() != self.world_size * part.numel() or whole.dtype != part.dtype:
            self._refuse(note, f"the whole is {describe([whole])}, not {self.world_size} times the part")

    def _check_sizes(self, sent: list[list[int]], awaited: list[list[int]]) -> None:
        """Compare what rank i sends to rank j, ``sent[i][j]``, with what rank j expects, ``awaited[j][i]``."""
        pairs = itertools.product(range(self.world_size), repeat=2)
        wrong = next((pair for pair in pairs if sent[pair[0]][pair[1]] != awaited[pair[1]][pair[0]]), None)
        if wrong is None:
            return
        source, target = wrong
        raise RankDivergence(
            f"[rank {self.rank}/{self.world_size}] all_to_all: rank {target} expects {awaited[target][source]} "
            f"bytes from rank {source}, which sends {sent[source][target]}. "
            "Hint: the output split sizes of one rank are the input split sizes of the others."
        )

    def _refuse(self, note: str, problem: str) -> NoReturn:
        """Fail, and let the other ranks know instead of waiting: they get `RankDivergence` if they can go on."""
        self._meet(f"{note}, refused: {problem}"[:170])
        raise ConfigError(f"[rank {self.rank}/{self.world_size}] {note} cannot be done: {problem}.")


def describe(tensors: Sequence[Tensor]) -> str:
    """Return shapes and dtypes in a few words: equal words for equal shapes and dtypes (a long list has a checksum)."""
    words = [_words(tensor.shape, tensor.dtype) for tensor in tensors]
    if len(words) == 1:
        return words[0]
    same = len(set(words)) == 1
    text = words[0] + (f" x {len(words)}" if len(words) > 1 else "") if same else ", ".join(words)
    return text if len(text) <= _NOTE_CHARS else f"{text[:80]}... #{zlib.crc32(text.encode()):08x}"


@functools.lru_cache(maxsize=1024)
def _words(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{tuple(shape)} {str(dtype)[6:]}"


def flat_of(tensor: Tensor) -> Tensor:
    """Return the elements as a contiguous one-dimensional tensor: over the same memory where that can be."""
    if (
        tensor.dim() == 1
        and tensor.stride(0) == 1
        and not (tensor.requires_grad or tensor.is_complex() or tensor.is_neg())
    ):
        return tensor
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return whole.as_strided((whole.numel(),), (1,))  # view(-1) would keep a single element's odd stride


def store_into(flat: Tensor, tensor: Tensor) -> None:
    """Bring what was written to `flat` back to the tensor it was made from."""
    if flat.numel() and (flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous()):
        tensor.detach().copy_(flat.view(tensor.shape))


def _chunks(flat: Tensor, count: int) -> tuple[Tensor, ...]:
    return tuple(flat.view(count, -1)) if flat.numel() else (flat,) * count


def _starts(length: int, room: int) -> range:
    """Return where the pieces begin; an empty buffer has one piece too, since the ranks meet at least once."""
    return range(0, max(1, length), room)
