"""Tensors that a loss function can reach and the loop changes, and that no checkpoint holds: a teacher, an average.

Every rank changes them alike, so no comparison of ranks finds them; but a resumed run, or a worker that joins, begins
with their first values, and trains other weights. Looked at in the steps of `Repeated`: as one such step leaves them
and as the next one finds them.
"""

import weakref
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from unisono.system.messages import warn
from unisono.train.guards.kept_state import KeptState

_SAMPLE = 256
_prepared: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()
"""The models of all runs of this process: each is held by the checkpoints of its own."""


@final
class Unkept:
    """What a run's loop has been seen to change.

    Args:
        model: The prepared one.
        registered: Objects that checkpoints hold beside it, by name; may still grow.

    Attributes:
        names: Of what was found; none as long as nothing was.
    """

    def __init__(self, model: nn.Module, registered: Mapping[str, Any]) -> None:
        self._model, self._registered = model, registered
        _prepared.add(model)
        self._noted: dict[str, tuple[weakref.ref[Tensor], int, bytes]] = {}
        self.names: list[str] = []

    def note(self, state: KeptState, changing: list[str]) -> None:
        """Note tensors as a step leaves them, but for those that the loss itself is `changing`."""
        if self.names:
            return
        own = {*map(id, self._model.parameters())}
        found = {
            name: each for name, each in state.tensors.items()
            if id(each) not in own and name not in changing and not is_lazy(each) and not each.is_inference()
        }  # fmt: skip
        for name, each in found.items():  # those of the losses of other updates stay
            self._noted[name] = (weakref.ref(each), each._version, _sample(each))

    def look(self, step: int, state: KeptState, *, speaks: bool) -> None:
        """Compare tensors with what was noted; warn once, where this rank `speaks`."""
        changed = [name for name, each in state.tensors.items() if self._is_changed(name, each)]
        if self.names or not changed:
            return
        kept = {id(each) for each in self._kept()}
        self.names = [name for name in changed if id(state.tensors[name]) not in kept]
        if self.names and speaks:
            warn(f"step {step}: {self.describe()}")

    def describe(self) -> str:
        """Return what was found, as a sentence with a hint."""
        return (
            f"{self.names[0]!r}{', ...' if len(self.names) > 1 else ''}, which the loss function can reach, is changed "
            "by the loop, and no checkpoint holds it: after a resume, or in a worker that joins, it begins with its "
            "first values, and the result may differ. Hint: run.register('teacher', teacher), before the loop, saves "
            "and restores a module, or what else has state_dict() and load_state_dict(); a tensor of its own goes into "
            "a module by register_buffer(name, tensor)."
        )

    def _is_changed(self, name: str, now: Tensor) -> bool:
        made, version, sample = self._noted.get(name, (None, 0, b""))
        return made is not None and made() is now and (now._version != version or _sample(now) != sample)

    def _kept(self) -> Iterator[Tensor]:
        """Yield the tensors that the registered objects hold, and the runs' models."""
        nothing = nn.Module()
        for model in _prepared:
            yield from (*model.parameters(), *model.buffers())
        for each in self._registered.values():
            yield from KeptState(each, nothing).tensors.values()


def _sample(tensor: Tensor) -> bytes:
    """Return some elements, where they can be read at once: writing to ``.data`` counts in no version."""
    is_plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided and not tensor.is_quantized
    if not is_plain or tensor.device.type != "cpu" or not tensor.numel():
        return b""
    flat = tensor.detach().resolve_conj().resolve_neg().flatten()
    return flat[:: -(-flat.numel() // _SAMPLE)].contiguous().view(torch.uint8).numpy().tobytes()
