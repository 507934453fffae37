"""State of which every rank holds a part, brought to all ranks before it is saved or hashed."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.checkpoint import format as checkpoint_format
from unisono.checkpoint.format import State
from unisono.collectives.transport import Transport
from unisono.errors import CheckpointError
from unisono.strategies.base import Strategy
from unisono.strategies.parts.tensor_bytes import broadcast

Tensors = dict[str, dict[str, Tensor]]


class Whole(NamedTuple):
    """What no rank holds alone."""

    tensors: Tensors  #: By file stem and name, on the CPU.
    notes: Mapping[str, Any]  #: What the optimizer keeps of each parameter beside tensors.


class SpreadStrategy(Strategy):
    """A strategy whose ranks hold parts of the state, gathered at most once after each step."""

    is_sharded = True
    evaluates_alike = True
    whole: Whole | None = None  # since the last step

    @abstractmethod
    def gather(self) -> Whole:
        """Return the state of all ranks; collective."""

    def settle(self) -> None:
        """See `Strategy.settle`; gathers the whole state, which `pack` and `fingerprint` read."""
        super().settle()
        self.whole = self.gather()

    def pack(self, scheduler: Any, objects: Mapping[str, checkpoint_format.Stateful]) -> State:
        """See `Strategy.pack`; gathers the whole state where that has not been done since the last step."""
        whole, state = self._known(), super().pack(scheduler, objects)
        values = {**state.values, "optimizer": {**state.values["optimizer"], **whole.notes}}
        return replace(state, tensors={**state.tensors, **whole.tensors}, values=values)

    def fingerprint(self) -> str:
        """See `Strategy.fingerprint`; gathers as `pack`."""
        return checkpoint_format.fingerprint_of(self._known().tensors["model"])

    def _known(self) -> Whole:
        if self.whole is None:
            self.whole = self.gather()
        return self.whole


def gather(
    model: nn.Module,
    optimizer: Optimizer,
    is_own: Callable[[str], bool],
    transport: Transport,
    stems: Sequence[str] = ("model", "optimizer"),
) -> Whole:
    """Return what the ranks hold between them, on all ranks; collective."""
    packed = checkpoint_format.pack(model, optimizer, None, {})
    refuse_nested(packed)
    own = {
        # In name order: after a resume each rank's dictionaries have an order of their own.
        stem: {name: tensor for name, tensor in sorted(packed.tensors[stem].items()) if is_own(_owner(name))}
        for stem in stems
    }
    notes = {
        kind: {name: value for name, value in packed.values["optimizer"][kind].items() if is_own(_owner(name))}
        for kind in ("scalars", "strides")
    }
    merged: dict[str, Any] = {kind: {} for kind in notes}
    for told in transport.all_gather_json(notes):
        for kind, entries in told.items():
            merged[kind] |= entries
    return Whole(gather_tensors(own, transport), merged)


def refuse_nested(packed: State) -> None:
    """Refuse (`CheckpointError`) state of an optimizer of which ranks hold parts that have no parameter's name."""
    if places := packed.tensors.get("objects"):
        raise CheckpointError(
            f"cannot save {next(iter(places))}: each rank holds a part of the optimizer's state with this strategy, "
            "and of that only tensors directly under optimizer.state[parameter], by a text. Hint: strategy exact."
        )


def _owner(name: str) -> str:
    """Return the parameter or buffer that a name is about: of the optimizer's ``fc.weight/exp_avg`` the first part."""
    return name.rpartition("/")[0] or name


def gather_tensors(own: Tensors, transport: Transport) -> Tensors:
    """Return every rank's tensors, as copies; what several ranks have is taken from the lowest one; collective."""
    described = {
        stem: {name: [str(tensor.dtype)[6:], list(tensor.shape)] for name, tensor in part.items()}
        for stem, part in own.items()
    }
    whole: Tensors = {stem: {} for stem in own}
    for root, told in enumerate(transport.all_gather_json(described)):
        values: list[Tensor] = []
        for stem, part in told.items():
            for name, (dtype, shape) in part.items():
                if name in whole[stem]:
                    continue
                if root == transport.rank:
                    values.append(own[stem][name].detach().cpu().contiguous().clone())
                else:
                    values.append(torch.empty(shape, dtype=getattr(torch, dtype)))
                whole[stem][name] = values[-1]
        broadcast(values, transport, root)
    return whole
