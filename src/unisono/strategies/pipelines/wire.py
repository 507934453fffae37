"""What stages hand each other: tensors of any shape, layout and number, with a header before each parcel.

Shapes may differ from micro-batch to micro-batch, so nothing is agreed beforehand. Strides travel too: the next stage
finds the very layout that it would have found on one device, since kernels, and so bits, may depend on it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from unisono.collectives.messages import Messages
from unisono.collectives.shm.board import as_bytes
from unisono.collectives.shm.operations import flat_of
from unisono.determinism.device_reads import brought
from unisono.determinism.devices import carried
from unisono.errors import StepError
from unisono.strategies.parts.flat import is_dense

_HEADER_BYTES = 2048


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """What one stage gives another one for one micro-batch."""

    tensors: tuple[Tensor | None, ...]  #: Activations, or gradients, where None stands for no gradient.
    is_single: bool = True  #: Whether the stage has returned its one tensor as it is, not in a tuple.
    streams: bytes = b""  #: State of the random streams after the stage; empty where nothing has been drawn.
    autocast: str = ""  #: dtype of the autocast that the first stage ran under; empty for none.


@final
class Wire:
    """Sends and receives parcels."""

    def __init__(self, messages: Messages, device: torch.device) -> None:
        self._messages, self._device = messages, device
        self.bytes_sent = 0  #: Of headers and content, so far.

    def send(self, parcel: Parcel, target: int, tag: int) -> None:
        """Send a parcel without waiting; its tensors must not be changed before `flush`."""
        rows: list[list[object] | None] = []
        parts: list[Tensor] = []
        for tensor in parcel.tensors:
            if tensor is None:
                rows.append(None)
                continue
            content = tensor.detach()
            if is_dense(content) and not (content.is_conj() or content.is_neg()):
                flat = content.as_strided((content.numel(),), (1,), content.storage_offset())
            else:
                content = content.resolve_conj().resolve_neg().contiguous()
                flat = flat_of(content)
            rows.append([str(content.dtype)[6:], list(content.shape), list(content.stride()), tensor.requires_grad])
            parts.append(flat)
        parts = [*map(as_bytes, brought(parts))]  # a GPU is waited for once
        if parcel.streams:
            parts.append(torch.frombuffer(bytearray(parcel.streams), dtype=torch.uint8))
        header = json.dumps([rows, parcel.is_single, len(parcel.streams), parcel.autocast]).encode()
        if len(header) > _HEADER_BYTES:
            raise StepError(
                f"a stage hands on {len(parcel.tensors)} tensors, more than one message names. Hint: cut elsewhere."
            )
        first = torch.frombuffer(bytearray(header.ljust(_HEADER_BYTES)), dtype=torch.uint8)
        for part in [first, *parts]:
            if len(part):
                self.bytes_sent += len(part)
                self._messages.send(part, target, tag)

    def receive(self, source: int, tag: int) -> Parcel:
        """Wait for the next parcel with this tag; its tensors require gradients as the sender's did."""
        head = torch.empty(_HEADER_BYTES, dtype=torch.uint8)
        self._messages.receive(head, source, tag)
        rows, is_single, num_streams, autocast = json.loads(head.numpy().tobytes())
        tensors: list[Tensor | None] = []
        for row in rows:
            if row is None:
                tensors.append(None)
                continue
            dtype, shape, strides, requires_grad = row
            flat = torch.empty(torch.Size(shape).numel(), dtype=getattr(torch, dtype))
            if flat.numel():
                self._messages.receive(as_bytes(flat), source, tag)
            there = carried(flat, self._device).as_strided(shape, strides)
            tensors.append(there.requires_grad_(requires_grad))
        streams = torch.empty(num_streams, dtype=torch.uint8)
        if num_streams:
            self._messages.receive(streams, source, tag)
        return Parcel(tensors=tuple(tensors), is_single=is_single, streams=streams.numpy().tobytes(), autocast=autocast)

    def flush(self) -> None:
        """Wait until everything has been taken."""
        self._messages.flush()


def parcel_of(output: object, stage: int, *, streams: bytes = b"", autocast: str = "") -> Parcel:
    """Return what a stage has computed, ready to be sent.

    Raises:
        StepError: Something else.
    """
    is_single = isinstance(output, Tensor)
    parts: Sequence[object] = output if isinstance(output, (tuple, list)) else [output]
    tensors = tuple(part for part in parts if isinstance(part, Tensor))
    if len(tensors) < len(parts):
        kinds = ", ".join(type(part).__name__ for part in parts)
        raise StepError(
            f"stage {stage} of the pipeline returns {type(output).__name__} ({kinds}); stages hand on one tensor or a "
            "tuple of tensors. Hint: --cuts elsewhere, or layers that return tensors."
        )
    return Parcel(tensors=tensors, is_single=is_single, streams=streams, autocast=autocast)
