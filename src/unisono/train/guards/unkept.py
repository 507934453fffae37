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
        found = {name: each for name, each in state.tensors.items() if id(each) not in own and not each.is_inference()}
        for name in changing:
            found.pop(name, None)
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
        first, root = self.names[0], self.names[0].partition(".")[0].partition("[")[0]
        return (
            f"{first!r}{', ...' if len(self.names) > 1 else ''}, which the loss function can reach, is changed by the "
            "loop, and no checkpoint holds it: after a resume, or in a worker that joins, it begins with its first "
            f"values, and the result may differ. Hint: run.register({root!r}, {root}) before the loop saves and "
            "restores what has state_dict() and load_state_dict(), as a module has."
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
    """Return some elements: writing to ``.data`` counts in no version. Nothing of a tensor on another device."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.numel():
        return b""
    flat = tensor.detach().flatten()
    return flat[:: -(-flat.numel() // _SAMPLE)].contiguous().view(torch.uint8).numpy().tobytes()
