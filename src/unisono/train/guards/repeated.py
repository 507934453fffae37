"""A loss function that keeps what decides its result: found by calling it again for the same micro-batch.

What `kept_state` sees change may be a log, a cache or a queue. So the same call is made once more, with the same
random numbers and the same buffers, and only where loss or draws are others then, the step is refused. Where nothing
has changed, and in all steps but some, there is one call; in the first step of a launch always a second one, and one
for replica 0, whose loss the ranks compare.

What is kept may decide the gradient alone: hooks of gradients, an autograd.Function. So where something has changed by
the end of the step's passes, loss and backward pass are computed twice more, for their gradients only.
"""

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from unisono.collectives.places import HERE
from unisono.data.batches import duplicated
from unisono.determinism.backward import differentiate
from unisono.determinism.loss_hooks import LossJudge
from unisono.errors import StepError
from unisono.strategies.base import Strategy
from unisono.strategies.parts import streams
from unisono.strategies.witness.first_loss import number_of
from unisono.train.guards.kept_state import KeptState
from unisono.train.guards.unkept import Unkept


class _Called(NamedTuple):
    """A call of a step that is looked at, until the end of the step's passes."""

    function: Callable[[Any], Any]
    micro: Any  #: As it was before the call.
    drawn: bytes  #: The generators before it.
    names: list[str]  #: What it has changed; if that is nothing, `after` is what is kept.
    after: KeptState | None


@final
class Repeated:
    """Calls loss functions, the first time in a step that is looked at also a second time if need be."""

    def __init__(self, strategy: Strategy, device: torch.device, unkept: Unkept) -> None:
        self._model, self._device, self._unkept = strategy.model, device, unkept
        self._first_loss = strategy.first_loss
        self._called: _Called | None = None

    def call(self, step: int, function: Callable[[Any], Any], micro: Any, key: tuple[int, ...], *, speaks: bool) -> Any:
        """Return what a loss function returns for a micro-batch.

        Args:
            step: 1-based.
            function: The loss function.
            micro: The first micro-batch of this rank.
            key: In the first step of a launch that of replica 0, whose loss the ranks compare; else empty.
            speaks: Whether this rank warns.

        Raises:
            StepError: It returns another loss, or draws other random numbers, when it is called again.
        """
        drawn, buffers = streams.capture(self._device), _buffers(self._model)
        spare, is_whole = duplicated(micro)  # the function may take its micro-batch apart
        before = KeptState(function, self._model)
        self._unkept.look(step, before, speaks=speaks)
        found = function(micro)
        after = KeptState(function, self._model)
        self._unkept.note(after, names := after.changed(before))
        self._called = _Called(function, spare, drawn, names, None if names else after)
        if not names and not (key and is_whole):
            return found
        del before
        found = found.detach().cpu() if isinstance(found, Tensor) else found  # one graph is held at a time
        first, values, end = _bits(found), after.values(names), streams.capture(self._device)
        if key and self._first_loss is not None and not self._first_loss.is_over:
            self._first_loss.reads = functools.partial(after.told, {*names})
            _put(buffers)
            self._first_loss.compute(key, function, spare, number_of(found))
        streams.restore(drawn, self._device)
        _put(buffers)
        found = function(duplicated(spare)[0])
        if _bits(found) != first or streams.capture(self._device) != end:
            _refuse(step, names, "loss" if _bits(found) != first else "random numbers", after.generators)
        after.put_back(values)
        return found

    def end(self, step: int, judge: LossJudge) -> None:
        """Compare gradients of the micro-batch that was called for, if the step's passes have changed what is kept.

        They are computed anew, and all that this changes is put back: gradients, buffers, generators and what is kept.

        Args:
            step: 1-based.
            judge: Of the loss function.

        Raises:
            StepError: A parameter has another gradient when loss and backward pass are computed again.
        """
        called, self._called = self._called, None
        if called is None:
            return
        start = KeptState(called.function, self._model)
        names = called.names if called.after is None else start.changed(called.after)
        if not names:
            return
        values, drawn, buffers = start.values(names), streams.capture(self._device), _buffers(self._model)
        first = self._gradients(called, judge)
        names = KeptState(called.function, self._model).changed(start)
        if first is not None and names:
            _put(buffers)
            second = self._gradients(called, judge) or {}
            for name, gradient in first.items():
                if _bits(gradient) != _bits(second.get(name)):
                    _refuse_gradient(step, name, names)
        _put(buffers)
        streams.restore(drawn, self._device)
        start.put_back(values, replaces=True)

    def _gradients(self, called: _Called, judge: LossJudge) -> dict[str, Tensor | None] | None:
        """Return the gradients of a call by parameter, with its random numbers; None where it has no loss."""
        streams.restore(called.drawn, self._device)
        HERE.loss = judge
        try:
            found = called.function(duplicated(called.micro)[0])
        finally:
            HERE.loss = None
        if not isinstance(found, Tensor) or not found.requires_grad or found.numel() != 1:
            return None
        named = dict(self._model.named_parameters())
        leaves = {id(each): each for each in (*named.values(), *leaves_of([found]))}.values()
        held = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        HERE.is_in_backward = True
        try:
            differentiate(found, 1.0)
            return {name: each.grad for name, each in named.items()}
        finally:
            HERE.is_in_backward = False
            for leaf, gradient in zip(leaves, held, strict=True):
                leaf.grad = gradient


def leaves_of(outputs: Iterable[Any]) -> Iterator[Any]:
    """Yield the leaves that a graph leads to, from tensors or edges."""
    nodes: list[Any] = []
    for output in outputs:
        if isinstance(output, Tensor) and output.grad_fn is None:
            yield output
        else:
            nodes.append(output.grad_fn if isinstance(output, Tensor) else output.node)
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        for after, _ in node.next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                nodes.append(after)


def _refuse_gradient(step: int, parameter: str, names: list[str]) -> None:
    raise StepError(
        f"step {step}: the gradient of {parameter!r} is another one when loss and backward pass are computed again for "
        "the same micro-batch, by what a hook of gradients, the backward of an autograd.Function or the loss function "
        f"keeps from call to call: {_listed(names)}. The weights would depend on the number of workers. Hint: compute "
        "it from the gradient and the micro-batch alone; a schedule goes by batch.step, set in the loop before "
        "run.step(); draw from torch's own generators, which are keyed. More: docs/determinism.md, 'What a loss "
        "function keeps'."
    )


def _refuse(step: int, names: list[str], what: str, generators: list[str]) -> None:
    drawn = [name for name in names if name in generators]
    if drawn:
        why = f"by random numbers from a generator of the program's own: {_listed(drawn)}. {_DEPENDS}. Hint: {_DRAW}"
    elif names:
        why = (
            f"by what it keeps from call to call: {_listed(names)}. {_DEPENDS}. Hint: in a model "
            "register_buffer(name, tensor); else change it in the loop, after run.step(), and run.register(name, it); "
            "a schedule goes by batch.step; draw from torch's own generators, which are keyed"
        )
    else:
        why = (
            "although nothing that it keeps has changed: it may ask for the clock, for random numbers of the system, "
            f"or make a generator without a seed. {_DEPENDS}, and no run could be repeated. Hint: {_DRAW}"
        )
    raise StepError(
        f"step {step}: the loss function has {'another' if what == 'loss' else 'other'} {what} when it is "
        f"called again for the same micro-batch, {why}. More: docs/determinism.md, 'What a loss function keeps'."
    )


_DEPENDS = "The weights would depend on the number of workers"
_DRAW = (
    "draw from torch.rand(), random.random() or numpy.random.rand() themselves, which a run seeds for each step and "
    "replica; take a schedule from batch.step"
)


def _listed(names: list[str]) -> str:
    shown = [*dict.fromkeys(re.sub(r" \(\d+\)$", "", name) or "its state" for name in names)]  # see KeptState._place
    return ", ".join(shown[:3]) + (", ..." if len(shown) > 3 else "")


def _bits(found: Any) -> Any:
    if not isinstance(found, Tensor):
        return repr(found)
    found = found.to_dense() if found.layout is not torch.strided else found
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
