"""The exact strategy: gradients whose bits depend on the score alone, not on how many ranks compute them.

One step: every rank runs forward and backward once per replica it hosts, from a generator state and buffers that only
the step and the replica decide; adds the leaves along the canonical tree as far as it hosts them; and the
owner-computes exchange finishes the tree. World size 1 runs the same code.
"""

import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import final

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from unisono.collectives.placement import parts_of
from unisono.collectives.reduce import tree_all_reduce
from unisono.collectives.transport import Transport
from unisono.collectives.tree import accumulate
from unisono.determinism.switches import Checksum
from unisono.errors import StepError
from unisono.strategies.base import (
    Gradients,
    LossFunction,
    Micro,
    Strategy,
    StrategyContext,
    check_reached,
)
from unisono.strategies.options import ExactOptions
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.drift import Head, compare
from unisono.strategies.parts.flat import FlatBuffer, Layout, take_gradients
from unisono.strategies.parts.replica_buffers import ReplicaBuffers


@final
class Exact(Strategy):
    """Gradients by micro-batch and canonical tree; nothing of the model is changed."""

    keeps_equal = True
    saves_alone = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: ExactOptions) -> None:
        super().__init__(model, optimizer, context, options)
        self._names = dict(model.named_parameters())
        self._replicas = context.replicas
        self._buffers = ReplicaBuffers(model)
        self._parameters = [*self._names.values()]
        self._held_alike = [*self._parameters, *self._buffers.saved_floats().values()]
        self._checksum = Checksum()
        self._is_trainable: list[bool] = []
        self._trainable: dict[str, nn.Parameter] = {}
        self._shares: dict[int, _Shares] = {}
        self._pool: list[FlatBuffer] = []
        self._last: FlatBuffer | None = None  # whose views are the gradients now
        self._plan()

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, loss_function: LossFunction
    ) -> Gradients:
        """See `Strategy.compute_gradients`."""
        self.transport.step = step
        self._plan()
        shares = self._shares.get(num_samples) or self._shares.setdefault(
            num_samples, _Shares(num_samples, self._replicas)
        )
        leaves, report = shares.leaves, self._report
        report.clear()
        weights = self._checksum(self._held_alike)
        hosted = self.placement[self.transport.rank]
        self._buffers.start_step()
        leaf_values = self._leaves(step, micros, shares.weights, loss_function, report)
        partials = accumulate(hosted.start, leaf_values, leaves, self._add)
        covered = partials[-1][0][1] - partials[0][0][0] if partials else 0  # one after the other
        if covered != max(0, min(hosted.stop, leaves) - hosted.start):
            raise StepError(
                f"step {step}: this rank hosts replicas {hosted}, but got {[node for node, _ in partials]}."
            )
        total = self._reduce(partials, leaves)
        is_stop_asked = self.is_stop_asked()
        if self.transport.world_size > 1:
            report.stop[0] = is_stop_asked
            heads = report.merge(self.transport, self.placement, weights, step)
            is_stop_asked = bool(report.stop[0])
            if any(head != heads[0] for head in heads):
                self._buffers.start_replica()  # compare what the step began with, not what a replica has left
                compare(heads, {**self._names, **self._buffers.saved_floats()}, self.transport)
        present = report.present.tolist()
        if True not in present:
            self._buffers.start_replica()
            check_reached(step, is_reached=False)
        finite = report.finite[:leaves].tolist()
        bad_replicas = () if all(finite) else tuple(replica for replica in range(leaves) if not finite[replica])
        if bad_replicas:  # no update will follow: the buffers stay as they were
            self._buffers.start_replica()
        elif self._buffers.num_buffers:
            merged = total.buffers
            self._buffers.finish_step(self.transport, merged, report.changed)
            for view, is_saved in zip(merged, self._buffers.is_saved(), strict=False):
                if not is_saved:  # a resumed run has other values there: no part of the record
                    view.zero_()
        for parameter, view, is_present in zip(self._trainable.values(), total.gradients, present, strict=True):
            parameter.grad = view if is_present else None
        self._last = total
        losses = tuple(report.losses[:leaves].tolist())
        return Gradients(
            losses=losses,
            loss=math.fsum(map(operator.mul, shares.weights, losses)),
            checksum=total.checksum(),
            weights=weights,
            bad_replicas=bad_replicas,
            is_stop_asked=is_stop_asked,
        )

    def _plan(self) -> None:
        """Lay out the flat buffers anew when the set of trainable parameters has changed."""
        is_trainable = [parameter.requires_grad for parameter in self._parameters]
        if is_trainable != self._is_trainable:
            trainable = {name: parameter for name, parameter in self._names.items() if parameter.requires_grad}
            self._trainable, self._is_trainable = trainable, is_trainable
            self._layout = Layout([*trainable.values()], self._buffers.floats(), self.transport.world_size)
            counts = (self._replicas, len(trainable), self._buffers.num_buffers)
            self._report = _Report(*counts, self.transport.world_size)
            self._pool, self._last = [], None
        if self._last is not None:
            self._pool.append(self._last)  # the gradients of the step before are no longer needed
            self._last = None
        for parameter in self._parameters:  # frozen ones too: an old gradient would go on being applied
            parameter.grad = None

    def _leaves(
        self,
        step: int,
        micros: Iterable[Micro],
        weights: Sequence[float],
        loss_function: LossFunction,
        report: "_Report",
    ) -> Iterator[FlatBuffer]:
        """Yield the gradient (and the new buffers) of each local replica, weighted by its share of the batch."""
        for micro in micros:
            self._buffers.start_replica()
            weight = weights[micro.replica]
            seed, replicas = self.context.seed, self._replicas
            loss = run_backward(loss_function, micro, weight, seed=seed, step=step, replicas=replicas)
            leaf = self._pool.pop() if self._pool else self._layout.new_buffer()
            take_gradients(self._trainable, leaf, report.present)
            self._buffers.collect(leaf.buffers, weight, report.changed)
            value = loss.item()
            report.losses[micro.replica] = value
            report.finite[micro.replica] = math.isfinite(value) and leaf.is_finite()
            yield leaf

    def _add(self, left: FlatBuffer, right: FlatBuffer) -> FlatBuffer:
        left.add_(right)
        self._pool.append(right)
        return left

    def _reduce(self, partials: list[tuple[tuple[int, int], FlatBuffer]], leaves: int) -> FlatBuffer:
        total = partials[0][1] if partials else self._layout.new_buffer()
        if self.transport.world_size == 1 and len(partials) == 1:
            return total  # the whole tree is here
        for group, out in enumerate(total.flats):
            tree_all_reduce(
                [(node, buffer.flats[group]) for node, buffer in partials],
                self.placement,
                leaves,
                out,
                self.transport,
            )
        self._pool += [buffer for _, buffer in partials[1:]]
        return total


class _Shares:
    """How a batch of so many samples is shared out.

    Attributes:
        weights: The share of each replica, 0 for those without a sample, which come last.
        leaves: Replicas with a sample.
    """

    def __init__(self, num_samples: int, replicas: int) -> None:
        self.weights = [len(part) / num_samples for part in parts_of(num_samples, replicas)]
        self.leaves = min(num_samples, replicas)


class _Report:
    """What ranks tell each other about a step besides gradients, in one small message of fixed layout.

    Attributes:
        losses: float64 (replicas,): mean loss of each replica's micro-batch.
        finite: bool (replicas,): loss and gradient are finite.
        present: bool (parameters,): some replica has a gradient for it.
        changed: bool (buffers,): some replica has changed it.
        stop: bool (1,): some rank has been asked to stop the run.
    """

    def __init__(self, num_replicas: int, num_parameters: int, num_buffers: int, world_size: int) -> None:
        ends = np.cumsum([16, 8 * num_replicas, num_replicas, num_parameters, num_buffers, 1])
        self._mine, self._everyone = np.zeros(ends[-1], np.uint8), np.zeros((world_size, ends[-1]), np.uint8)
        self._blank = self._mine.copy()
        self._cuts = [slice(start, stop) for start, stop in itertools.pairwise(ends)]
        self._head, self.losses = self._mine[:16].view(np.uint64), self._mine[self._cuts[0]].view(np.float64)
        self.finite, self.present, self.changed, self.stop = (self._mine[cut].view(bool) for cut in self._cuts[1:])
        self._blank[self._cuts[1]] = True  # finite

    def clear(self) -> None:
        """Begin a step."""
        self._mine[:] = self._blank

    def merge(self, transport: Transport, placement: Sequence[range], weights: int, step: int) -> list[Head]:
        """Replace every field by what all ranks together know, and return each rank's step and weights; collective."""
        self._head[:] = step, weights
        rows, (losses, finite, *_) = self._everyone, self._cuts
        transport.all_gather(torch.from_numpy(self._mine), torch.from_numpy(rows.reshape(-1)))
        flags = slice(finite.stop, None)
        np.bitwise_or.reduce(rows[:, flags], axis=0, out=self._mine[flags])
        for row, hosted in zip(rows, placement, strict=True):
            own = slice(hosted.start, hosted.stop)
            self.losses[own] = row[losses].view(np.float64)[own]
            self.finite[own] = row[finite].view(bool)[own]
        return [Head(*head) for head in rows[:, :16].view(np.uint64).tolist()]
