"""A loss over the whole batch, in two passes over its micro-batches.

The first pass computes what every replica puts out, and keeps no graph. All ranks get all of it, in replica order, and
compute the loss and its gradient from the same bits. In the second pass every replica computes the same once more, and
the gradient of its rows goes on backward from there (Gao et al., "Scaling Deep Contrastive Learning Batch Size under
Memory Limited Setup", arXiv 2101.06983). What the loss itself learns, such as a temperature, counts once: as a part of
replica 0's gradient, whoever computes that, so that sums, rounding and checks see nothing new.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, NoReturn, final

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from unisono.collectives.placement import parts_of
from unisono.collectives.rows import RowKind, bytes_of, gather_rows
from unisono.determinism.backward import differentiate
from unisono.determinism.device_reads import DeviceReads, largest_of
from unisono.determinism.seeding import mix
from unisono.determinism.switches import add_checksums, checksum, checksum_part, set_generators
from unisono.errors import RankDivergence, StepError
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import checked_loss, explained
from unisono.strategies.parts.flat import are_finite, strided
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.report import RankReport, StepReport


class Rows(NamedTuple):
    """What `embed` has returned for one micro-batch, or for all of them together."""

    tensors: list[Tensor]  #: Each (samples, ...).
    tree: Any  #: How they were put together.
    #: The same for messages: the tree in words, and of each tensor its place in it, dtype, shape of a row, whether it
    #: has a graph, kind of device; JSON-able.
    form: list[Any]


@final
class WholeBatch:
    """Does the first pass of each step.

    Args:
        context: Where the strategy works.
        buffers: Of the model.
        reads: Is asked for what a GPU has to tell; None: it is told at once.
    """

    def __init__(self, context: StrategyContext, buffers: ReplicaBuffers, reads: DeviceReads | None = None) -> None:
        self._context, self._buffers, self._reads = context, buffers, reads
        self._form: list[Any] | None = None  # as all ranks know it

    def forget(self) -> None:
        """Agree anew: the ranks are others."""
        self._form = None

    def first_pass(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective,
        trained: Mapping[str, nn.Parameter],
    ) -> "SecondPass":  # fmt: skip
        """Return what the second pass goes on with; collective.

        Raises:
            StepError: What `embed` returns is no rows; or the loss is no scalar with a graph, or changes a buffer.
            RankDivergence: The ranks' rows do not fit each other.
        """
        context, embed = self._context, objective.embed
        assert embed is not None
        second = SecondPass(step, parts_of(num_samples, context.replicas), objective, context, self._reads)
        for micro in micros:
            self._buffers.start_replica()
            set_generators(mix(context.seed, "replica", *objective.key(step, micro.replica)))
            with explained(step, micro, context.replicas):
                second.keep(micro, _rows(embed(micro.data), step, micro.num_samples))
        self._buffers.start_replica()
        whole = self._gather(second)
        if second.own:
            second.take(whole, trained)
            self._buffers.ask_changed(self._reads, lambda changed: _refuse_changed(step, changed))
        return second

    def _gather(self, second: "SecondPass") -> list[Tensor]:
        """Return the rows of all samples, as tensors of their own; collective."""
        own = [torch.cat(columns) for columns in zip(*(rows.tensors for rows in second.own.values()), strict=True)]
        if self._context.transport.world_size == 1:
            return own
        while True:
            if self._form is None:
                self._form = self._agree(second)
            here, is_new = self._context.device, second.form not in (None, self._form)
            kinds = [
                RowKind(dtype, shape, here if device == here.type else torch.device(device))
                for _, dtype, shape, _, device in self._form[1]
            ]
            found = gather_rows(own, kinds, second.counts, self._context.transport, is_flagged=is_new)
            if found is not None:
                return found
            self._form = None

    def _agree(self, second: "SecondPass") -> list[Any]:
        """Return what a row looks like on all ranks; collective."""
        every = self._context.transport.all_gather_json(second.form)
        told = {rank: form for rank, form in enumerate(every) if form is not None}
        first, found = min(told.items())
        for rank, form in told.items():
            if form != found:
                raise RankDivergence(
                    f"step {second.step}: embed has returned {_words(form)} on rank {rank}, but {_words(found)} on "
                    f"rank {first}. Hint: {_ALIKE}"
                )
        return list(found)


def _refuse_changed(step: int, changed: Sequence[str]) -> None:
    if changed:
        raise StepError(
            f"step {step}: the loss over the whole batch has changed the buffer {changed[0]!r}, which every "
            "replica begins with as the step before has left it. Hint: change buffers in embed, where those of "
            "all replicas are merged, or in the loop, after run.step()."
        )


@final
class SecondPass:
    """What the second pass of a step needs, on one rank."""

    def __init__(
        self, step: int, parts: Sequence[range], objective: Objective, context: StrategyContext,
        reads: DeviceReads | None = None,
    ) -> None:  # fmt: skip
        self.step, self._objective, self._seed, self._reads = step, objective, context.seed, reads
        self._replicas = context.replicas
        #: Samples of each rank.
        self.counts = [sum(len(parts[replica]) for replica in hosted) for hosted in context.placement]
        self._parts = [part for part in parts if len(part)]
        self._micros: list[Micro] = []
        self.own: dict[int, Rows] = {}  #: What each replica of this rank has put out, without its graph, by replica.
        self.form: list[Any] | None = None  #: See `Rows`; None on a rank without samples.
        self.checksum = 0  #: Of the loss and its gradient; 0 on a rank without samples, which computes neither.
        self._bad: list[int] = []

    def keep(self, micro: Micro, rows: Rows) -> None:
        """Keep a micro-batch, and copies of what was put out for it: that may be a part of something larger."""
        if self.form not in (None, rows.form):
            raise StepError(
                f"step {self.step}: embed has returned {_words(rows.form)}, but {_words(self.form)} for the "
                f"micro-batch before. Hint: {_ALIKE}"
            )
        self.form = rows.form
        self._micros.append(micro)
        self.own[micro.replica] = rows._replace(tensors=[_copy(tensor.detach()) for tensor in rows.tensors])

    def take(self, whole: Sequence[Tensor], trained: Mapping[str, nn.Parameter]) -> None:
        """Compute the loss over all rows, and keep what the replicas of this rank need of its gradient."""
        own = next(iter(self.own.values()))
        learning = [rows.requires_grad_() for rows, (*_, learns, _) in zip(whole, own.form[1], strict=True) if learns]
        set_generators(mix(self._seed, "whole", *self._objective.key(self.step)))
        try:
            if not learning:
                raise StepError(
                    f"step {self.step}: nothing that embed returns depends on a trainable parameter. Hint: compute it "
                    "with the prepared model, outside torch.no_grad() and without .detach()."
                )
            loss = self._objective.loss(pytree.tree_unflatten(whole, own.tree))
            loss = checked_loss(loss, self.step, self._objective.update)
            differentiate(loss, 1.0)
            if all(rows.grad is None for rows in learning):
                raise StepError(
                    f"step {self.step}: the loss depends on nothing that embed returns. Hint: it is called with that, "
                    "a row for every sample of the whole batch."
                )
        except Exception as error:
            error.add_note(f"in step {self.step}, in the loss over the whole batch of {len(whole[0])} samples")
            raise
        self._loss = loss.detach()
        found = {name: strided(name, parameter.grad) for name, parameter in trained.items()}
        self._learned = [(trained[name], grad) for name, grad in found.items() if grad is not None]
        for parameter, _ in self._learned:
            parameter.grad = None
        computed = [self._loss, *(rows.grad for rows in learning if rows.grad is not None)]
        computed += [grad for _, grad in self._learned]
        if self._reads is None:
            self.checksum = checksum(computed)
            self._judge(learning, is_finite=are_finite(computed))
        else:
            self._reads.ask([checksum_part(each) for each in computed], self._take_checksum)
            self._reads.ask(
                largest_of(computed),
                lambda *largest: self._judge(learning, is_finite=all(map(math.isfinite, largest))),
            )
        parts = {replica: self._parts[replica] for replica in self.own}
        self._gradients = {
            replica: [None if rows.grad is None else _copy(rows.grad[part.start : part.stop]) for rows in learning]
            for replica, part in parts.items()
        }

    def _take_checksum(self, *parts: Tensor) -> None:
        self.checksum = add_checksums(map(int, parts))

    def _judge(self, learning: Sequence[Tensor], *, is_finite: bool) -> None:
        """Keep who is to blame for a loss or a gradient that is not finite."""
        if not is_finite:
            of = [[rows[part.start : part.stop] for rows in learning] for part in self._parts]
            culprits = [replica for replica, rows in enumerate(of) if not are_finite(rows)]
            self._bad = culprits or [*range(len(of))]

    def micros(self) -> Iterable[Micro]:
        """Return this rank's micro-batches once more."""
        return self._objective.again(self._micros)

    def objective(self, micro: Micro) -> Objective:
        """Return what stands for the loss in a micro-batch's second pass; its gradient ignores the replica's weight."""

        def loss(data: Any) -> Tensor:
            assert self._objective.embed is not None
            rows = _rows(self._objective.embed(data), self.step, micro.num_samples)
            self._compare(micro, rows)
            if micro.replica == 0:
                for parameter, grad in self._learned:
                    parameter.grad = grad
            outputs = [tensor for tensor, (*_, learns, _) in zip(rows.tensors, rows.form[1], strict=True) if learns]
            handed: Tensor = _hand(self._loss, self._gradients.pop(micro.replica), *outputs)
            return handed

        return replace(self._objective, loss=loss, embed=None)

    def blame(self, report: StepReport) -> None:
        """Name whose rows were not finite, where the loss is not; without such rows, all replicas."""
        if self._bad:
            report.bad[:] = False
            report.bad[self._bad] = True

    def compare_ranks(self, told: Sequence[RankReport]) -> None:
        """Refuse what the ranks tell of the loss and its gradient, if it is not the same on all of them."""
        found = {rank: each.gradient for rank, each in enumerate(told) if self.counts[rank]}
        first, usual = min(found.items())
        for rank, gradient in found.items():
            if gradient != usual:
                raise RankDivergence(
                    f"step {self.step}: the loss over the whole batch, or its gradient, has other bits on rank {rank} "
                    f"({gradient:016x}) than on rank {first} ({usual:016x}). Hint: compute it from what embed has "
                    "returned and from the model alone; it knows no rank, no clock, and nothing of its own."
                )

    def _compare(self, micro: Micro, rows: Rows) -> None:
        """Refuse a second pass that is not like the first."""
        first = self.own.pop(micro.replica)
        if rows.form != first.form:
            self._refuse(_words(rows.form))
        both = zip(rows.tensors, first.tensors, strict=True)
        pairs = [(bytes_of(now.detach()), bytes_of(then)) for now, then in both]
        if self._reads is None:
            self._take_equal(rows.form, *(torch.equal(now, then) for now, then in pairs))
        else:
            flags = [(now == then).all() for now, then in pairs]
            self._reads.ask(flags, functools.partial(self._take_equal_read, micro, rows.form))

    def _take_equal_read(self, micro: Micro, form: list[Any], *are_equal: Tensor) -> None:
        with explained(self.step, micro, self._replicas):
            self._take_equal(form, *map(bool, are_equal))

    def _take_equal(self, form: list[Any], *are_equal: bool) -> None:
        others = [place for (place, *_), is_equal in zip(form[1], are_equal, strict=True) if not is_equal]
        if others:
            self._refuse(f"other numbers {' and '.join(others)}".rstrip())

    def _refuse(self, what: str) -> NoReturn:
        raise StepError(
            f"step {self.step}: embed has returned {what}, unlike in its first pass. Hint: it is called twice for "
            "every micro-batch, with the same generators, buffers and data. What differs is kept elsewhere: an "
            "attribute that counts calls, a generator of its own, the clock, a micro-batch changed in place."
        )


class _Hand(torch.autograd.Function):
    """Stands for a loss whose gradient by some tensors is known."""

    @staticmethod
    def forward(ctx: Any, loss: Tensor, gradients: Sequence[Tensor | None], *tensors: Tensor) -> Tensor:
        ctx.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        return None, None, *ctx.gradients


def _rows(outputs: Any, step: int, num_samples: int) -> Rows:
    """Return what `embed` has returned, if it is a row for each sample."""
    leaves, tree = pytree.tree_flatten_with_path(outputs)
    for path, leaf in leaves or [((), outputs)]:
        is_rows = isinstance(leaf, Tensor) and leaf.layout is torch.strided and leaf.dim() > 0
        if not is_rows or len(leaf) != num_samples:
            got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise StepError(
                f"step {step}: expected embed to return tensors with a row for each of the micro-batch's "
                f"{num_samples} samples, got {got}{pytree.keystr(path) and f' as {pytree.keystr(path)}'}. Hint: a "
                "tensor, or tuples, named tuples, lists or dictionaries of tensors; several views of a sample lie in "
                "a further dimension: (samples, views, ...)."
            )
    form = [
        [pytree.keystr(path), str(leaf.dtype)[6:], [*leaf.shape[1:]], leaf.requires_grad, leaf.device.type]
        for path, leaf in leaves
    ]
    return Rows([leaf for _, leaf in leaves], tree, [" ".join(str(tree).split()), form])


def _words(form: Sequence[Any]) -> str:
    """Return in words what embed has returned."""
    rows = [
        f"{place or 'a tensor'} {dtype} ({', '.join(map(str, ['n', *shape]))}{'' if learns else ', no gradient'})"
        for place, dtype, shape, learns, _ in form[1]
    ]
    return f"{'; '.join(rows)} in {form[0]}"


def _copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


_hand: Any = _Hand.apply
_ALIKE = "the same tensors, dtypes and shapes of a row for every micro-batch of a step."
