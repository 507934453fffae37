"""A loss function that keeps what decides its result: found by calling it again for the same micro-batch.

What `kept_state` sees change may be a log, a cache or a queue. So the same call is made once more, with the same
random numbers and the same buffers, and only where loss or draws are others then, the step is refused. Where nothing
has changed, and in all steps but some, there is one call.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from unisono.errors import StepError
from unisono.strategies.parts import streams
from unisono.train.guards.kept_state import KeptState
from unisono.train.guards.unkept import Unkept


@final
class Repeated:
    """Calls loss functions, the first time in a step that is looked at also a second time if need be."""

    def __init__(self, model: nn.Module, device: torch.device, unkept: Unkept) -> None:
        self._model, self._device, self._unkept = model, device, unkept

    def call(self, step: int, function: Callable[[Any], Any], micro: Any, *, speaks: bool) -> Any:
        """Return what a loss function returns for a micro-batch.

        Raises:
            StepError: It returns another loss, or draws other random numbers, when it is called again.
        """
        drawn, buffers = streams.capture(self._device), _buffers(self._model)
        before = KeptState(function, self._model)
        self._unkept.look(step, before, speaks=speaks)
        found = function(micro)
        after = KeptState(function, self._model)
        self._unkept.note(after, names := after.changed(before))
        if not names:
            return found
        del before
        first, values, end = _bits(found), after.values(names), streams.capture(self._device)
        del found
        streams.restore(drawn, self._device)
        _put(buffers)
        found = function(micro)
        if _bits(found) != first or streams.capture(self._device) != end:
            _refuse(step, names, "loss" if _bits(found) != first else "random numbers")
        after.put_back(values)
        return found


def _refuse(step: int, names: list[str], what: str) -> None:
    kept = ", ".join(name or "its state" for name in names[:3]) + (", ..." if len(names) > 3 else "")
    raise StepError(
        f"step {step}: the loss function has {'another' if what == 'loss' else 'other'} {what} when it is "
        f"called again for the same micro-batch, by what it keeps from call to call: {kept}. The weights "
        "would depend on the number of workers. Hint: in a model register_buffer(name, tensor); else change it in the "
        "loop, after run.step(), and run.register(name, it); a schedule goes by batch.step; draw from torch's own "
        "generators, which are keyed. More: docs/determinism.md, 'What a loss function keeps'."
    )


def _bits(found: Any) -> Any:
    if not isinstance(found, Tensor):
        return repr(found)
    return found.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor | None, Tensor | None]]:
    return [
        (module, name, each, None if each is None else each.clone())
        for module in model.modules()
        for name, each in module._buffers.items()
    ]


def _put(buffers: list[tuple[nn.Module, str, Tensor | None, Tensor | None]]) -> None:
    with torch.no_grad():
        for module, name, buffer, start in buffers:
            module._buffers[name] = buffer
            if buffer is not None and start is not None:
                buffer.copy_(start)
