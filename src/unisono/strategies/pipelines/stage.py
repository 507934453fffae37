"""One stage of a pipeline: some layers, and what is kept of a micro-batch between its forward and backward pass."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.transport import Transport
from unisono.determinism.device_reads import DeviceReads
from unisono.determinism.switches import add_checksums
from unisono.strategies.parts.fold import Fold
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.pipelines.wire import Parcel, parcel_of

Flags = npt.NDArray[np.bool_]


@dataclass(slots=True)
class _Flight:
    """A micro-batch between its forward and its backward pass."""

    outputs: tuple[Tensor | None, ...]  #: What the stage has returned (of the last stage: the loss).
    floats: list[Tensor]  #: The floating-point buffers that it has left, weighted.
    gradients: list[Tensor | None]  #: Of the tensors that came in, once they are known.


@final
class Stage:
    """The layers of one stage on this rank, and their gradients."""

    def __init__(
        self, index: int, layers: Mapping[str, nn.Module], parameters: Mapping[str, nn.Parameter], row: Transport
    ) -> None:
        self.index, self._layers, self.parameters = index, list(layers.values()), dict(parameters)
        named = (pair for name, layer in layers.items() for pair in layer.named_modules(prefix=name))
        self.buffers = ReplicaBuffers(named)
        # An in-place layer must not touch what came in: autograd forbids it, and the stage before may need it.
        self._is_in_place = any(getattr(part, "inplace", False) for layer in self._layers for part in layer.modules())
        self.sum = LeafSum(self.parameters, self.buffers, row)
        self.gradient_sum = 0  #: Checksum of the step's gradient.

    def start_step(
        self, leaves: int, bad: Flags, present: Flags, changed: Flags, counted: npt.NDArray[np.int64],
        reads: DeviceReads | None = None,
    ) -> None:  # fmt: skip
        """Forget the step before.

        Args:
            leaves: Replicas with a sample.
            bad: bool (replicas,): is set where the stage's gradient is NaN or infinite.
            present: bool (trainable parameters,): is set where some replica has a gradient.
            changed: bool (buffers,): is set where some replica has changed it.
            counted: int64 (numbers that are counted,): set to the largest values that replicas have left in counters.
            reads: Is asked for what a GPU has to tell of these; None: it is told at once.
        """
        self._reads = reads
        self.sum.start_step(leaves)
        self.buffers.start_step()
        self._bad, self._present, self._changed, self._counted = bad, present, changed, counted
        self._flights: dict[int, _Flight] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Call the layers one after the other."""
        first, *others = self._layers
        value = first(*args, **kwargs)
        for layer in others:
            value = layer(value)
        return value

    def run_on(self, parcel: Parcel) -> Any:
        """Call the layers on what the stage before has handed on."""
        tensors = [tensor.clone() if self._is_in_place and tensor is not None else tensor for tensor in parcel.tensors]
        return self.run(tensors[0] if parcel.is_single else tuple(tensors))

    def forward(self, micro: int, weight: float, arrived: Parcel | None, compute: Callable[[], Any]) -> Parcel:
        """Do the forward pass of a micro-batch, keeping what its backward pass needs."""
        inputs = () if arrived is None else arrived.tensors
        gradients: list[Tensor | None] = [None] * len(inputs)
        for number, tensor in enumerate(inputs):
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(functools.partial(gradients.__setitem__, number))
        self.buffers.start_apart()
        output = compute()
        with torch.no_grad():
            floats = self.buffers.collect(weight, self._changed, self._reads)
            self.buffers.start_replica()
        parcel = parcel_of(output, self.index)
        self._flights[micro] = _Flight(parcel.tensors, floats, gradients)
        return parcel

    def backward(self, micro: int, replica: int, gradients: tuple[Tensor | None, ...]) -> Parcel:
        """Do the backward pass of a micro-batch, add up its leaf, and return the gradients of what came in."""
        flight = self._flights.pop(micro)
        pairs = [
            (output, gradient)
            for output, gradient in zip(flight.outputs, gradients, strict=True)
            if output is not None and output.requires_grad and gradient is not None
        ]
        if pairs:
            outputs, values = zip(*pairs, strict=True)
            torch.autograd.backward(outputs, values)
        if self._reads is None:
            self._bad[replica] |= not self.sum.add(replica, flight.floats, self._present)
        else:
            look = functools.partial(Fold.flaws, reads=self._reads)
            flaws = self.sum.add(replica, flight.floats, self._present, look)
            self._reads.ask(flaws, functools.partial(self._take_flaws, replica))
        return Parcel(tensors=tuple(flight.gradients))

    def finish_sum(self, rows: Sequence[range]) -> None:
        """Finish the sum over all pipelines, and look at it and at counters; collective.

        Args:
            rows: The replicas of each pipeline.
        """
        self.sum.send(rows)
        total = self.sum.finish_unread()
        self.buffers.tell(self._counted, self._reads)
        if self._reads is None:
            self.gradient_sum = total.checksum()
        else:
            self._reads.ask(total.checksum_parts(), self._take_gradient)

    def _take_gradient(self, *parts: Tensor) -> None:
        self.gradient_sum = add_checksums(map(int, parts))

    def _take_flaws(self, replica: int, *flaws: Tensor) -> None:
        self._bad[replica] |= any(map(bool, flaws))

    def finish_step(self, *, is_kept: bool) -> None:
        """Leave gradients and buffers in the model; flags and counters must be those of all ranks by now."""
        self.sum.finish_step(self._present, self._changed, self._counted, is_kept=is_kept)

    def weights(self) -> dict[str, Tensor]:
        """Return what all ranks with this stage must hold alike, by name."""
        return {**self.parameters, **self.buffers.saved_floats()}
