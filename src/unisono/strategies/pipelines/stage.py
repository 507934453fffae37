"""One stage of a pipeline: some layers, what is kept of a micro-batch between its two passes, and the leaves' sums."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import Node, push
from unisono.strategies.parts.flat import FlatBuffer, Layout, take_gradients
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.pipelines.wire import Parcel, parcel_of


@final
class _Named(nn.Module):
    """Layers under the names that they have in the whole model."""

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self._layers = dict(layers)

    def named_modules(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Module]]:
        """See `nn.Module.named_modules`."""
        for name, layer in self._layers.items():
            yield from layer.named_modules(prefix=name)


@dataclass(slots=True)
class _Flight:
    """A micro-batch between its forward and its backward pass.

    Attributes:
        outputs: What the stage has returned (of the last stage: the loss).
        floats: The floating-point buffers that it has left, weighted.
        num_inputs: Tensors that came in.
        gradients: Of those inputs, by position, once they are known.
    """

    outputs: tuple[Tensor | None, ...]
    floats: list[Tensor]
    num_inputs: int = 0
    gradients: dict[int, Tensor] = field(default_factory=dict)


@final
class Stage:
    """The layers of one stage on this rank, and their gradients.

    Args:
        index: Of all stages.
        layers: By their names in the model, in order.
        parameters: Theirs (and of parts that nobody calls), by their names in the model.
        row: Joins the ranks that have this stage.

    Attributes:
        present: bool (trainable parameters,): some replica has a gradient for it, in this step.
        changed: bool (buffers,): some replica has changed it, in this step.
        finite: By replica: its gradient is finite.
    """

    def __init__(
        self, index: int, layers: Mapping[str, nn.Module], parameters: Mapping[str, nn.Parameter], row: Transport
    ) -> None:
        self.index, self._layers, self.parameters, self._row = index, list(layers.values()), dict(parameters), row
        self.buffers = ReplicaBuffers(_Named(layers))
        # An in-place layer must not touch what came in: autograd forbids it, and the stage before may need it.
        self._is_in_place = any(getattr(part, "inplace", False) for layer in self._layers for part in layer.modules())
        self._layout = self._plan()
        self._pool: list[FlatBuffer] = []
        self._last: FlatBuffer | None = None

    def start_step(self, leaves: int) -> None:
        """Forget the step before; the tree has so many leaves."""
        if [name for name, parameter in self.parameters.items() if parameter.requires_grad] != [*self.trainable]:
            self._layout = self._plan()
            self._pool, self._last = [], None
        if self._last is not None:
            self._pool.append(self._last)
            self._last = None
        for parameter in self.parameters.values():
            parameter.grad = None
        self.buffers.start_step()
        self.present: npt.NDArray[np.bool_] = np.zeros(len(self.trainable), dtype=bool)
        self.changed: npt.NDArray[np.bool_] = np.zeros(self.buffers.num_buffers, dtype=bool)
        self.finite: dict[int, bool] = {}
        self._leaves = leaves
        self._flights: dict[int, _Flight] = {}
        self._sums: list[tuple[Node, FlatBuffer]] = []

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
        """Do the forward pass of a micro-batch, keeping what its backward pass needs.

        Args:
            micro: Index of the micro-batch.
            weight: Its share of the batch.
            arrived: From the stage before, None for the first one.
            compute: Returns what the stage returns (of the last stage: the loss).
        """
        gradients: dict[int, Tensor] = {}
        for number, tensor in enumerate(arrived.tensors if arrived is not None else ()):
            if tensor is not None and tensor.requires_grad:
                tensor.register_hook(_keeper(gradients, number))
        self.buffers.start_apart()
        output = compute()
        floats = [torch.empty_like(buffer) for buffer in self.buffers.floats()]
        with torch.no_grad():
            self.buffers.collect(floats, weight, self.changed)
            self.buffers.start_replica()
        parcel = parcel_of(output, self.index)
        count = 0 if arrived is None else len(arrived.tensors)
        self._flights[micro] = _Flight(parcel.tensors, floats, count, gradients)
        return parcel

    def backward(self, micro: int, replica: int, gradients: tuple[Tensor | None, ...]) -> Parcel:
        """Do the backward pass of a micro-batch, add up its leaf, and return the gradients of what came in.

        Args:
            micro: Index of the micro-batch.
            replica: Which leaf of the tree it is.
            gradients: Of what the stage has returned; None where there is none.
        """
        flight = self._flights.pop(micro)
        pairs = [
            (output, gradient)
            for output, gradient in zip(flight.outputs, gradients, strict=True)
            if output is not None and output.requires_grad and gradient is not None
        ]
        if pairs:
            outputs, values = zip(*pairs, strict=True)
            torch.autograd.backward(outputs, values)
        leaf = self._pool.pop() if self._pool else self._layout.new_buffer()
        take_gradients(self.trainable, leaf, self.present)
        for view, value in zip(leaf.views[len(self.trainable) :], flight.floats, strict=True):
            view.copy_(value)
        self.finite[replica] = leaf.is_finite()
        push(self._sums, replica, leaf, self._leaves, self._add)
        return Parcel(tensors=tuple(flight.gradients.get(number) for number in range(flight.num_inputs)))

    def reduce(self, placement: list[range]) -> int:
        """Add up all replicas, and return the sum's checksum; collective among the ranks that have this stage.

        Args:
            placement: The replicas of each of them.
        """
        total = self._sums[0][1] if self._sums else self._layout.new_buffer()
        for group, out in enumerate(total.flats):
            partials = [(node, buffer.flats[group]) for node, buffer in self._sums]
            tree_all_reduce(partials, placement, self._leaves, out, self._row)
        self._pool += [buffer for _, buffer in self._sums[1:]]
        self._last, self._sums = total, []
        views = total.views[len(self.trainable) :]
        self._merged = [view.clone() for view in views]
        for view, is_saved in zip(views, self.buffers.is_saved(), strict=True):
            if not is_saved:  # a resumed run has other values there: no part of the record
                view.zero_()
        return total.checksum()

    def finish_step(self, *, is_kept: bool) -> None:
        """Leave gradients and buffers in the model; collective as `reduce`.

        `present` and `changed` must be what all replicas together have found.

        Args:
            is_kept: Whether an update will follow; otherwise the buffers stay as they were.
        """
        assert self._last is not None
        if is_kept:
            with torch.no_grad():
                self.buffers.finish_step(self._row, self._merged, self.changed)
        else:
            self.buffers.start_replica()
        for parameter, view, is_present in zip(self.trainable.values(), self._last.views, self.present, strict=False):
            parameter.grad = view if is_present else None

    def weights(self) -> dict[str, Tensor]:
        """Return what all ranks with this stage must hold alike, by name."""
        return {**self.parameters, **self.buffers.saved_floats()}

    def _plan(self) -> Layout:
        self.trainable = {name: parameter for name, parameter in self.parameters.items() if parameter.requires_grad}
        return Layout([*self.trainable.values()], self.buffers.floats(), self._row.world_size)

    def _add(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        self._pool.append(right)
        return left.add_(right)


def _keeper(gradients: dict[int, Tensor], number: int) -> Callable[[Tensor], None]:
    def keep(gradient: Tensor) -> None:
        gradients[number] = gradient

    return keep
