"""A replica's gradients on their way into the sums of its rank: one pass over memory, and no copy where the tree adds.

The tree says that a leaf is either kept until its right neighbour comes, or added to its left neighbour at once. Only
the first kind needs memory of its own; where leaves are rounded, every one does. Large gradients are taken in one by
one, while the backward pass goes on, and freed: all gradients of a replica need not be there at once, beside the sums.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from unisono.collectives.coding.rounding import Rounding
from unisono.collectives.tree import Node, are_siblings, push
from unisono.determinism.device_reads import DeviceReads, flaws_of
from unisono.determinism.switches import checksum
from unisono.errors import StepError
from unisono.strategies.parts.flat import Bucket, FlatBuffer, are_finite, fold, is_finite

T = TypeVar("T")

_LARGE_BYTES = 1 << 20
"""A gradient of so many bytes takes 50 times as long to be added as its hook takes to be called."""

NONE = itertools.repeat(None)  #: No gradient, for as many parameters as there are.
_GRADS = itertools.repeat("grad")


def leave(parameters: Iterable[Tensor], grads: Iterable[Tensor | None]) -> None:
    """Put gradients into parameters, one after the other; a loop of Python's own takes three times as long."""
    any(map(setattr, parameters, _GRADS, grads))


@final
class Fold:
    """Where a replica's gradients and buffers go.

    Args:
        sums: Of the rank's replicas before it, left to right.
        replica: Its index.
        leaves: Leaves of the whole tree.
        new_leaf: Returns memory for a leaf.
        rounding: How leaves and sums are rounded in this step; None: they are not.
    """

    def __init__(
        self, sums: Sequence[tuple[Node, FlatBuffer]], replica: int, leaves: int, new_leaf: Callable[[], FlatBuffer],
        rounding: Rounding | None = None,
    ) -> None:  # fmt: skip
        self._sums, self._replica, self.leaves, self.rounding = sums, replica, leaves, rounding
        self._adds = rounding is None and bool(sums) and are_siblings(sums[-1][0], (replica, replica + 1), leaves)
        self.target = sums[-1][1] if self._adds else new_leaf()  #: What they are copied into, or added to.

    @property
    def out(self) -> FlatBuffer:
        """What will hold the sum of the whole tree."""
        return self._sums[0][1] if self._sums else self.target

    def put(self, indices: Sequence[int], grads: Sequence[Tensor | None]) -> None:
        """Take in the gradients of some parameters, by their index in the layout; None where there is none."""
        fold([self.target.gradients[index] for index in indices], grads, adds=self._adds)

    def put_all(self, grads: Sequence[Tensor | None]) -> None:
        """Take in the gradients of all parameters."""
        fold(self.target.gradients, grads, adds=self._adds)

    def are_finite(self, indices: tuple[int, ...], grads: Sequence[Tensor | None]) -> bool:
        """Whether no element of these gradients, which have been taken in, is NaN or infinite; indices ascend."""
        return all(map(is_finite, self.target.covering(indices))) or are_finite(grads)

    def flaws(self, grads: Sequence[Tensor | None], reads: DeviceReads) -> list[Tensor]:
        """Return what `flaws_of` says of the replica's gradients, all of which have been taken in."""
        return flaws_of(grads, reads) if self._adds else self.target.flaws(reads)

    def round_leaf(self, bucket: Bucket) -> None:
        """Round a piece of the replica's gradients, all of which have been taken in."""
        rounding = bucket.rounding(self.rounding)
        if rounding is not None:
            rounding.round_((self._replica, self._replica + 1), bucket.of(self.target))

    def put_floats(self, floats: Sequence[Tensor]) -> None:
        """Take in the floating-point buffers."""
        fold(self.target.buffers, floats, adds=self._adds)

    def sums(
        self, part: Callable[[FlatBuffer], T], add: Callable[[T, T], T], settle: Callable[[Node, T], T] | None = None
    ) -> list[tuple[Node, T]]:
        """Return the rank's sums with the replica in them.

        Args:
            part: Which part of the buffers; what it covers must have been taken in.
            add: Returns left + right, in the memory of left.
            settle: Rounds a sum in its place, and returns it; None where nothing is rounded.
        """
        if not self._sums:
            return [((self._replica, self._replica + 1), part(self.target))]
        stack: list[tuple[Node, Any]] = [(node, part(buffer)) for node, buffer in self._sums]
        leaf = None if self._adds else part(self.target)  # None: its neighbour holds it already
        into: Callable[[Any, Any], Any] = lambda left, right: left if right is None else add(left, right)  # noqa: E731
        push(stack, self._replica, leaf, self.leaves, into, settle)
        return stack


@final
class EarlyFold:
    """Takes large gradients off the model as soon as autograd has left them there.

    One that arrives twice in a pass (reentrant checkpointing), or that a hook of the program writes into, must be whole
    before it is added to others. So the first replica is only watched: where that happens, nothing is taken early from
    then on; where it happens later for the first time, the step is refused.

    Args:
        parameters: The trainable ones by name, in the layout's order.
        num_hooks: Of ours on a parameter, this one's among them; where there are more, a program may read gradients.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], num_hooks: int = 1) -> None:
        self._num_hooks = num_hooks
        self._large = {
            index: (name, parameter)
            for index, (name, parameter) in enumerate(parameters.items())
            if parameter.nbytes >= _LARGE_BYTES and parameter.device.type == "cpu"
        }
        self.hooked = frozenset(self._large)  #: The parameters that have its hook, by index.
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(index))
            for index, (_, parameter) in self._large.items()
        ]
        self._is_open = self._is_watched = self._is_refused = False
        self._fold: Fold | None = None
        self._arrived: dict[int, int] = {}  # while only watching: checksums; else whether what was taken is finite

    def start(self, new_fold: Callable[[], Fold]) -> None:
        """Look at the passes to come, which are a replica's; `new_fold` returns where its gradients go."""
        if self._hooks:
            self._is_open, self._arrived = True, {}
            self._fold = new_fold() if self._is_watched else None

    def end(self) -> tuple[Fold | None, Mapping[int, int]]:
        """Return where gradients have gone, None if nowhere; which ones, by index, and whether each was finite."""
        fold, self._fold, is_open, self._is_open = self._fold, None, self._is_open, False
        if fold is None:
            if is_open:
                self._is_watched = True
                if self._is_refused or any(self._has_changed(index) for index in self._arrived):
                    self.close()
            return None, {}
        for index in self._arrived:
            name, parameter = self._large[index]
            if parameter.grad is not None:
                raise StepError(
                    f"the gradient of {name!r} arrived again after it had been added to those of other replicas; in "
                    "the first replica none did. Hint: overlap='off' takes gradients after the backward pass."
                )
        return fold, self._arrived

    def give_up(self) -> None:
        """Leave a step that has failed."""
        self._fold, self._is_open = None, False

    def close(self) -> None:
        """Take the hooks away; safe to call twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.give_up()

    def _has_changed(self, index: int) -> bool:
        grad = self._large[index][1].grad
        return grad is None or checksum([grad]) != self._arrived[index]

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def take(parameter: Tensor) -> None:
            grad = parameter.grad
            if not self._is_open or grad is None or grad.layout is not torch.strided:
                return
            if index in self._arrived:
                self._is_refused = True
            elif self._fold is None:
                self._arrived[index] = checksum([grad])
            elif len(parameter._post_accumulate_grad_hooks) == self._num_hooks:
                parameter.grad = None
                self._fold.put([index], [grad])
                self._arrived[index] = self._fold.are_finite((index,), [grad])

        return take
