"""A run's state on its way from a rank that has it: to hosts with directories of their own, or to ranks that join."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from unisono.checkpoint.files import safetensors_chunks
from unisono.checkpoint.format import State
from unisono.collectives.leader import ranks_say
from unisono.collectives.transport import Transport
from unisono.system.directory import Directory
from unisono.system.disk import explained

_PIECE_BYTES = 16 << 20


def hand_over(
    transport: Transport, home: int, read: Callable[[], tuple[int, State]], to: Sequence[int] | None = None
) -> tuple[int, State]:
    """Return on all ranks the step and state that `read` gives at rank `home`; collective.

    On ranks that are not among `to`, where that is given, the state has no tensors.

    Raises:
        Exception: At home, what `read` has raised.
        LeaderFailed: On the others, with its words.
    """
    found: list[tuple[int, State]] = []
    parts: dict[str, bytes] = {}

    def describe() -> list[Any]:
        step, state = read()
        found.append((step, state))
        parts.update({stem: b"".join(safetensors_chunks(tensors)) for stem, tensors in state.tensors.items()})
        return [step, state.values, {stem: len(data) for stem, data in parts.items()}]

    step, values, sizes = ranks_say(transport, transport.rank == home, describe)[home]
    came = {stem: send_bytes(transport, home, parts.get(stem, b""), size, to) for stem, size in sizes.items()}
    if found:
        return found[0]
    if to is not None and transport.rank not in to:
        return step, State(tensors={}, values=values)
    return step, State(tensors={stem: load(data) for stem, data in came.items()}, values=values)


def bring_files(transport: Transport, home: int, directory: Directory, names: Iterable[str], *, is_kept: bool) -> None:
    """Give the directories of all hosts (`is_kept`) the files of rank `home`'s; collective."""
    for name in names:
        is_home = transport.rank == home
        data = (directory.read(name) or b"") if is_home else b""
        size = transport.all_gather_json(len(data))[home]
        data = send_bytes(transport, home, data, size)
        if is_kept and not is_home:
            with explained(directory.path / name, len(data)):
                directory.replace(name, data)


def send_bytes(transport: Transport, home: int, data: bytes, size: int, to: Sequence[int] | None = None) -> bytes:
    """Return on all ranks, or only on those of `to`, the `size` bytes that rank `home` has as `data`; collective."""
    to = [rank for rank in range(transport.world_size) if rank != home and (to is None or rank in to)]
    is_home = transport.rank == home
    own = torch.empty(size if transport.rank in to else 0, dtype=torch.uint8)
    whole = torch.from_numpy(np.frombuffer(data, np.uint8).copy()) if is_home else own
    nothing = torch.empty(0, dtype=torch.uint8)
    for start in range(0, size, _PIECE_BYTES):
        piece: Tensor = whole[start : start + _PIECE_BYTES]
        ranks = range(transport.world_size)
        if is_home:
            splits = [len(piece) if rank in to else 0 for rank in ranks]
            transport.all_to_all(piece.repeat(len(to)), splits, nothing, [0] * len(ranks))
        else:
            splits = [len(piece) if rank == home else 0 for rank in ranks]
            transport.all_to_all(nothing, [0] * len(ranks), piece, splits)
    return data if is_home else whole.numpy().tobytes()
