"""The exchange of gradients while the backward pass computes others.

`Overlap` watches the backward pass of this rank's last replica. As soon as a bucket's gradients are there, a thread
adds them to those of the rank's other replicas and hands the sum to the exchange, in the buckets' fixed order; a second
thread adds what the other ranks send. Neither changes a bit: the sum of every element is the tree's.

A gradient that changes after its bucket has gone (reentrant checkpointing runs several backward passes in one; a hook
may write into ``.grad``) would be lost. So the first step only watches, and where that happens nothing is sent early;
where it happens later, the step is refused.
"""

import functools
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from unisono.collectives.exchange import Exchange
from unisono.collectives.tree import Node
from unisono.determinism.switches import checksum
from unisono.errors import StepError
from unisono.strategies.parts.flat import Bucket, FlatBuffer, are_finite, is_finite, strided
from unisono.strategies.parts.fold import Fold
from unisono.system.helper import Helper

_STRIDED = torch.strided


@final
class Overlap:
    """Watches gradients arrive, and exchanges them meanwhile.

    A step is `start` before the last replica's forward pass, `end_backward`, `seal`, `wait_sent`, `wait`.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], buckets: Sequence[Bucket], exchange: Exchange,
        hooked: frozenset[int] = frozenset(),
    ) -> None:  # fmt: skip
        self._hooked = hooked
        self._parameters, self._buckets, self._exchange = parameters, buckets, exchange
        self._arrived: list[tuple[Tensor | None, int] | None] | None = None  # None: nobody is watching
        self._is_watched = self._is_refused = False
        self._sums: dict[int, int] = {}  # of the gradients' bits, as they arrived in the step that only watches
        self._step: _Step | None = None
        self._helpers: tuple[Helper, Helper] | None = None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, parameter in enumerate(parameters.values())
        ]

    def watch(self) -> bool:
        """Watch the passes to come; return whether gradients may leave meanwhile."""
        if self._step is not None:
            raise StepError(
                "an earlier step failed while gradients were on their way to the other ranks, which may still wait for "
                "it. Hint: let the run end, and start it again; it goes on at its last checkpoint."
            )
        if self._is_refused:
            return False
        self._hook_last()
        self._arrived = [None] * len(self._parameters)
        return self._is_watched

    def start(self, fold: Fold, placement: Sequence[range], out: FlatBuffer) -> None:
        """Let gradients leave in the passes to come; the sum of the whole tree comes into `out`."""
        if self._helpers is None:
            self._helpers = Helper("unisono-send"), Helper("unisono-add")
        self._step = _Step(self._buckets, len(self._parameters), self._exchange, fold)
        self._sent = self._helpers[0].begin(functools.partial(self._step.send, placement, out))
        self._added = self._helpers[1].begin(self._step.add)

    def end_backward(self, present: npt.NDArray[np.bool_]) -> None:
        """Send what no hook has told of; forget all gradients if they are being sent.

        Args:
            present: bool (parameters,): set where there is a gradient.

        Raises:
            StepError: A gradient has changed after it was sent.
        """
        arrived, self._arrived, step = self._arrived, None, self._step
        if arrived is None:
            return
        for index, ((name, parameter), known) in enumerate(zip(self._parameters.items(), arrived, strict=True)):
            grad = parameter.grad
            if known is not None and self._has_changed(index, grad, *known):
                self._is_refused = True
                if step is not None:
                    raise StepError(
                        f"the gradient of {name!r} changed after it had left for the other ranks; in the first step "
                        "none did. Hint: overlap='off' sends gradients after the backward pass."
                    )
            elif step is not None:
                if known is None:
                    step.take(index, strided(name, grad))
                present[index] |= known is not None or grad is not None
        self._is_watched, self._sums = True, {}
        if self._is_refused:
            self._remove_hooks()
        if step is not None:
            for parameter in self._parameters.values():
                parameter.grad = None

    def seal(self, floats: Sequence[Tensor]) -> None:
        """Send what is left: the floating-point buffers are there."""
        assert self._step is not None
        self._step.take_floats(floats)

    def wait_sent(self) -> bool:
        """Return, when this rank's sums have left, whether all gradients of the last replica were finite."""
        assert self._step is not None
        self._sent.result()
        return self._step.is_finite

    def wait(self) -> None:
        """Return when the sums are in their places."""
        assert self._step is not None
        self._added.result()
        self._step = None

    def give_up(self) -> None:
        """Leave a step that has failed: the threads wait no longer for the rest of it."""
        self._arrived = None
        if self._step is not None:
            self._step.give_up()

    def close(self) -> None:
        """End the threads and take the hooks away; safe to call twice."""
        self.give_up()
        self._remove_hooks()
        for helper in self._helpers or ():
            helper.end()
        self._helpers = None

    def _has_changed(self, index: int, grad: Tensor | None, known: Tensor | None, version: int) -> bool:
        """Whether a gradient is another one than what has arrived."""
        if grad is not known or (grad is not None and grad._version != version):
            return True
        # Writing through ``.data`` leaves the version alone.
        return grad is not None and index in self._sums and self._sums[index] != checksum([grad])

    def _hook_last(self) -> None:
        """Be the last one to hear of a gradient: hooks that the program has added since may write into it."""
        for index, parameter in enumerate(self._parameters.values()):
            hooks = parameter._post_accumulate_grad_hooks
            if not hooks or next(reversed(hooks)) != self._hooks[index].id:
                self._hooks[index].remove()
                self._hooks[index] = parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            arrived, grad, step = self._arrived, parameter.grad, self._step
            if arrived is None or arrived[index] is not None or grad is None or grad.layout is not _STRIDED:
                return
            if step is None or len(parameter._post_accumulate_grad_hooks) > 1 + (index in self._hooked):
                arrived[index] = grad, grad._version
            else:  # its memory is free when it has been added up; another gradient would be seen
                arrived[index] = None, 0
                parameter.grad = None
            if step is not None:
                step.take(index, grad)
            elif not self._is_watched:
                self._sums[index] = checksum([grad])

        return note


@final
class _Step:
    """What is on its way in one step; `take` and `take_floats` belong to the main thread."""

    def __init__(self, buckets: Sequence[Bucket], num_parameters: int, exchange: Exchange, fold: Fold) -> None:
        self.is_finite = True
        self._buckets, self._exchange, self._fold = buckets, exchange, fold
        self._grads: list[Tensor | None] = [None] * num_parameters
        self._floats: Sequence[Tensor] | None = None
        self._missing = [len(bucket.parameters) + bucket.has_buffers for bucket in buckets]
        self._buckets_of: list[list[int]] = [[] for _ in range(num_parameters)]
        for number, bucket in enumerate(buckets):
            for index in bucket.parameters:
                self._buckets_of[index].append(number)
        self._num_ready, self._ready = 0, queue.SimpleQueue[bool]()
        self._has_started: Future[None] = Future()

    def take(self, index: int, grad: Tensor | None) -> None:
        """Note that a parameter's gradient is there, or that there will be none."""
        self._grads[index] = grad
        for number in self._buckets_of[index]:
            self._missing[number] -= 1
        self._release()

    def take_floats(self, floats: Sequence[Tensor]) -> None:
        """Note that the floating-point buffers are there; they come last."""
        self._floats = floats
        self._missing = [0] * len(self._missing)
        self._release()

    def give_up(self) -> None:
        """Let the threads go; whatever this rank does next, the others find it behind the exchange's beginning."""
        self._ready.put(False)
        wait([self._has_started])

    def send(self, placement: Sequence[range], out: FlatBuffer) -> None:
        """Hand over bucket by bucket; a thread's work."""
        try:
            outs = [bucket.of(out) for bucket in self._buckets]
            roundings = [bucket.rounding(self._fold.rounding) for bucket in self._buckets]
            self._exchange.start(outs, placement, self._fold.leaves, roundings if any(roundings) else ())
        except BaseException as error:
            self._has_started.set_exception(error)
            raise
        self._has_started.set_result(None)
        folded: set[int] = set()
        try:
            for number, bucket in enumerate(self._buckets):
                if not self._ready.get():
                    self._exchange.give_up()
                    return
                self._exchange.give(self._partials(number, bucket, folded))
        except BaseException:
            self._exchange.give_up()
            raise

    def add(self) -> None:
        """Add what the others send; a thread's work."""
        self._has_started.result()
        self._exchange.finish()

    def _partials(self, number: int, bucket: Bucket, folded: set[int]) -> list[tuple[Node, Tensor]]:
        """Return the rank's sums of a bucket, the last replica in them."""
        new = [index for index in bucket.parameters if index not in folded]
        folded.update(new)
        self._fold.put(new, [self._grads[index] for index in new])
        if bucket.has_buffers and self._floats is not None:
            self._fold.put_floats(self._floats)
            self._floats = None
        self._fold.round_leaf(bucket)
        rounding, inside = bucket.rounding(self._fold.rounding), bucket.gradients
        if inside and not is_finite(self._fold.target.flats[bucket.group][inside.start : inside.stop]):
            self.is_finite &= rounding is None and are_finite(self._grads[index] for index in bucket.parameters)
        for index in bucket.parameters:
            if self._buckets_of[index][-1] == number:
                self._grads[index] = None
        settle = None if rounding is None else rounding.round_
        return self._fold.sums(bucket.of, lambda left, right: left.add_(right), settle)

    def _release(self) -> None:
        while self._num_ready < len(self._missing) and not self._missing[self._num_ready]:
            self._num_ready += 1
            self._ready.put(True)
