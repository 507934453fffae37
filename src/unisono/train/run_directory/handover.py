"""A run's state on its way between hosts that do not share a directory: from a rank that has it to all others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from safetensors.torch import load
from torch import Tensor

from unisono.checkpoint.files import safetensors_chunks
from unisono.checkpoint.format import State
from unisono.collectives.leader import ranks_say
from unisono.collectives.transport import Transport

_PIECE_BYTES = 16 << 20


def hand_over(transport: Transport, home: int, read: Callable[[], tuple[int, State]]) -> tuple[int, State]:
    """Return on all ranks the step and state that `read` gives at rank `home`; collective.

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
    came = {stem: send_bytes(transport, home, parts.get(stem, b""), size) for stem, size in sizes.items()}
    if found:
        return found[0]
    return step, State(tensors={stem: load(data) for stem, data in came.items()}, values=values)


def send_bytes(transport: Transport, home: int, data: bytes, size: int) -> bytes:
    """Return on all ranks the `size` bytes that rank `home` has as `data`; collective."""
    others = transport.world_size - 1
    is_home = transport.rank == home
    whole = torch.from_numpy(np.frombuffer(data, np.uint8).copy()) if is_home else torch.empty(size, dtype=torch.uint8)
    nothing = torch.empty(0, dtype=torch.uint8)
    for start in range(0, size, _PIECE_BYTES):
        piece: Tensor = whole[start : start + _PIECE_BYTES]
        ranks = range(transport.world_size)
        if is_home:
            splits = [0 if rank == home else len(piece) for rank in ranks]
            transport.all_to_all(piece.repeat(others), splits, nothing, [0] * len(ranks))
        else:
            splits = [len(piece) if rank == home else 0 for rank in ranks]
            transport.all_to_all(nothing, [0] * len(ranks), piece, splits)
    return data if is_home else whole.numpy().tobytes()
