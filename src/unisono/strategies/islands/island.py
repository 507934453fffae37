"""One island: weights, buffers and optimizer state of its own, in the program's model while it is computed."""

import contextlib
import copy
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.collectives.loopback import LoopbackTransport
from unisono.determinism import optimizer_step
from unisono.determinism.device_reads import DeviceReads
from unisono.determinism.switches import Checksum, add_checksums
from unisono.errors import StepError
from unisono.strategies.parts.fold import Fold
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.whole import refuse_nested

_OptimizerState = defaultdict[Any, dict[str, Any]]


@final
class Island:
    """Trains on its replicas' micro-batches.

    A step is `start_step`, `start_replica` and `add` for each replica, `finish_step`, all within `inside`; `conclude`
    within it, too, once all that was asked of `reads` is known; and `update` once nothing speaks against it.

    Args:
        number: Its index among all islands.
        replicas: Those that it has, consecutive.
        model: The program's; as it is whenever no island is inside.
        optimizer: Of its parameters; its groups are all islands', its state is empty whenever none is inside.
        state: What the optimizer has held of each parameter when the run began; copied.
        reads: Is asked for what a GPU has to tell of a step; None: it is told at once.
    """

    def __init__(
        self, number: int, replicas: range, model: nn.Module, optimizer: Optimizer,
        state: Mapping[Any, dict[str, Any]], reads: DeviceReads | None = None,
    ) -> None:  # fmt: skip
        self._reads = reads
        self.number, self.replicas = number, replicas
        self._model, self._optimizer = model, optimizer
        self._parameters = dict(model.named_parameters())
        self._kept = ReplicaBuffers(model.named_modules())
        self._live = self._kept.named()
        self._sum = LeafSum(self._parameters, self._kept, LoopbackTransport())
        self._checksum = Checksum()
        self._own_state = empty_state()
        self._own_state.update({parameter: _copied(entry) for parameter, entry in state.items()})
        self.weights: dict[str, Tensor] = {}  #: Those of its parameters that may differ from the model's, by name.
        #: All its buffers, floating-point ones first.
        self.buffers: list[Tensor] = [buffer.clone() for buffer in self._live.values()]
        self._left: list[Tensor] = []  # what the step leaves in the buffers
        self._gradients: list[Tensor | None] = []
        self._size = 0  # its replicas with a sample in this step
        #: bool (trainable parameters,): it has a gradient for them in this step.
        self.present: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self.weights_sum = 0  #: Checksum of its weights and of those buffers that are saved, as a step has begun.
        self.gradient_sum = 0  #: Checksum of the step's gradient.

    @property
    def trainable(self) -> Sequence[nn.Parameter]:
        """The parameters that are trainable in this step; valid after `start_step`."""
        return [*self._sum.trainable.values()]

    def start_round(self, names: Sequence[str]) -> None:
        """Begin at what the model holds."""
        self.weights = {name: self.weights[name] for name in names if name in self.weights}
        for name, mine in self.weights.items():
            mine.copy_(self._parameters[name].detach())
        self.own(names)
        if self.buffers:
            torch._foreach_copy_(self.buffers, [*self._live.values()])

    def own(self, names: Sequence[str]) -> None:
        """Take copies of those parameters of the model that it has none of."""
        for name in names:
            if name not in self.weights:
                self.weights[name] = self._parameters[name].detach().clone()

    def look_at_weights(self) -> None:
        """Take the checksum of its weights and of those buffers that are saved."""
        saved = self._kept.saved()
        floats = [
            value
            for (name, live), value in zip(self._live.items(), self.buffers, strict=True)
            if name in saved and live.is_floating_point()
        ]
        held = [*self.weights.values(), *floats]
        if self._reads is None:
            self.weights_sum = self._checksum(held)
        else:
            self._reads.ask(self._checksum.parts(held), self._take_weights)

    def _take_weights(self, *parts: Tensor) -> None:
        self.weights_sum = add_checksums(map(int, parts))

    def _take_gradient(self, *parts: Tensor) -> None:
        self.gradient_sum = add_checksums(map(int, parts))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Let the model's parameters and buffers be the island's; afterwards they are the model's own again."""
        buffers = [buffer.clone() for buffer in self._live.values()]
        with self._weights_inside():
            self.put_buffers()
            try:
                yield
            finally:
                self._kept.start_replica()  # a module may have put another tensor in a buffer's place
                if buffers:
                    torch._foreach_copy_([*self._live.values()], buffers)

    def put_buffers(self) -> None:
        """Put its buffers' values into the model's buffers."""
        if self.buffers:
            torch._foreach_copy_([*self._live.values()], self.buffers)

    def start_step(self, size: int) -> None:
        """Begin a step in which so many of its replicas have a sample; within `inside`."""
        self._size, self._gradients, self._left, self.gradient_sum = size, [], [], 0
        self._sum.start_step(max(1, size))
        self._kept.start_step()
        self.present = np.zeros(len(self._sum.trainable), bool)
        self._changed = np.zeros(self._kept.num_buffers, bool)
        self._counted = np.zeros(self._kept.num_counted, np.int64)

    def start_replica(self) -> None:
        """Let a replica's passes begin with the island's buffers."""
        self._kept.start_replica()

    def add(self, replica: int, weight: float) -> Any:
        """Take what a replica's passes have left in the model.

        Returns:
            Whether its gradient is finite; of a GPU's, what `flaws_of` says.

        Args:
            replica: Among those of the whole step.
            weight: Its share of the island's samples, by which its gradient is weighted already.
        """
        floats, place = self._kept.collect(weight, self._changed, self._reads), replica - self.replicas.start
        if self._reads is None:
            return self._sum.add(place, floats, self.present)
        return self._sum.add(place, floats, self.present, functools.partial(Fold.flaws, reads=self._reads))

    def finish_step(self) -> None:
        """Add up what the replicas have left; within `inside`."""
        if not self._size:
            return
        self._sum.send([range(self._size)])
        total = self._sum.finish_unread()
        self._kept.tell(self._counted, self._reads)
        if self._reads is None:
            self.gradient_sum = total.checksum()
            self.conclude()
        else:
            self._reads.ask(total.checksum_parts(), self._take_gradient)

    def conclude(self) -> None:
        """Keep what the step has left; within `inside`."""
        if not self._size:
            return
        self._sum.finish_step(self.present, self._changed, self._counted, is_kept=True)
        self._left = [buffer.clone() for buffer in self._live.values()]
        trainable = self.trainable
        self._gradients = [parameter.grad for parameter in trainable]
        _clear(trainable)

    def give_up(self) -> None:
        """Leave a step that has failed: no gradient stays in the model."""
        _clear(self._parameters.values())

    def update(self, clip: Callable[[], None]) -> None:
        """Clip the gradient and step the optimizer; nothing where it had no sample."""
        if not self._size:
            return
        trainable, before = self.trainable, _settings(self._optimizer)
        with self._weights_inside(), self.lent():
            for parameter, gradient in zip(trainable, self._gradients, strict=True):
                parameter.grad = gradient
            try:
                clip()
                optimizer_step.step(self._optimizer)
            finally:
                _clear(trainable)
        self.buffers, self._gradients = self._left, []
        _check_settings(before, self._optimizer)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Let the optimizer's state be the island's; it is empty afterwards."""
        self._optimizer.state = self._own_state
        try:
            yield
        finally:
            self._own_state, self._optimizer.state = self._optimizer.state, empty_state()

    def pack(self, *, with_weights: bool) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return its state: tensors by name, and what the optimizer keeps beside tensors; see `unpack`."""
        with self.lent():
            packed = checkpoint_format.pack(self._model, self._optimizer, None, {})
        refuse_nested(packed)
        found = {f"{self.number}/optimizer/{name}": value for name, value in packed.tensors["optimizer"].items()}
        if with_weights:
            saved, named = self._kept.saved(), zip(self._live, self.buffers, strict=True)
            found |= {f"{self.number}/weights/{name}": value for name, value in self.weights.items()}
            found |= {f"{self.number}/buffers/{name}": value for name, value in named if name in saved}
        notes = {kind: value for kind, value in packed.values["optimizer"].items() if kind != "groups"}
        return dict(sorted(found.items())), notes

    def unpack(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any], whole: State) -> None:
        """Take over its state.

        Args:
            tensors: Of all islands, by name, as `pack` has named them.
            notes: As `pack` has returned them.
            whole: The run's state, which the model has taken over already.

        Raises:
            CheckpointError: Names or shapes are not those of this model and optimizer.
        """
        own = {kind: _under(f"{self.number}/{kind}/", tensors) for kind in ("optimizer", "weights", "buffers")}
        values = {**whole.values, "optimizer": {**whole.values["optimizer"], **notes}}
        values |= {"objects": {}, "model_extra": {}}
        state = State(tensors={"model": whole.tensors["model"], "optimizer": own["optimizer"]}, values=values)
        with self.lent():
            checkpoint_format.unpack(state, self._model, self._optimizer, None)
        self.start_round([])
        self.own([*own["weights"]])
        for name, value in own["weights"].items():
            self.weights[name].copy_(value)
        for name, value in zip(self._live, self.buffers, strict=True):
            if name in own["buffers"]:
                value.copy_(own["buffers"][name])

    @contextlib.contextmanager
    def _weights_inside(self) -> Iterator[None]:
        """Let the parameters have the island's memory."""
        common = {name: self._parameters[name].data for name in self.weights}
        for name, mine in self.weights.items():
            self._parameters[name].data = mine
        try:
            yield
        finally:
            for name, values in common.items():
                self._parameters[name].data = values


def empty_state() -> _OptimizerState:
    """Return the state of an optimizer that has not stepped."""
    return defaultdict(dict)


def _copied(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, Tensor) else copy.deepcopy(value) for key, value in entry.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _clear(parameters: Any) -> None:
    for parameter in parameters:
        parameter.grad = None


def _settings(optimizer: Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def _check_settings(before: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Refuse (`StepError`) an optimizer whose step has changed its groups."""
    for old, group in zip(before, optimizer.param_groups, strict=True):
        for key, value in group.items():
            is_same = key == "params" or (key in old and (old[key] is value or _is_equal(old[key], value)))
            if not is_same:
                raise StepError(
                    f"{type(optimizer).__name__} has changed its group's {key!r} in a step: islands share the groups "
                    "and have a state of each parameter of their own, so the result would depend on which island "
                    "comes first. Hint: an optimizer that keeps what it learns in its state (torch's do), or leave "
                    "island_steps out."
                )


def _is_equal(old: Any, new: Any) -> bool:
    return not isinstance(new, Tensor) and type(old) is type(new) and bool(old == new)
