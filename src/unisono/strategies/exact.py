"""The exact strategy: gradients whose bits depend on the score alone, not on how many ranks compute them.

In a step every rank runs forward and backward once per replica it hosts, from a generator state and buffers that only
the step and the replica decide. It adds the leaves along the canonical tree as far as it hosts them, and the
owner-computes exchange finishes the tree. World size 1 runs the same code.
"""

from collections.abc import Iterable
from typing import Any, final

from torch import nn
from torch.optim import Optimizer

from unisono.determinism.switches import Checksum
from unisono.errors import StepError
from unisono.strategies.base import Gradients, LossFunction, Micro, Strategy, StrategyContext, check_reached
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.drift import compare
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.report import RankReport, StepReport


@final
class Exact(Strategy):
    """Gradients by micro-batch and canonical tree; nothing of the model is changed."""

    keeps_equal = True
    saves_alone = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: Any) -> None:
        super().__init__(model, optimizer, context, options)
        self._buffers = ReplicaBuffers(model.named_modules())
        self._held_alike = {**dict(model.named_parameters()), **self._buffers.saved_floats()}
        self._checksum = Checksum()
        self._sum = LeafSum(dict(model.named_parameters()), self._buffers, self.transport)
        self._report = StepReport(self.replicas, 0, self._buffers.num_buffers)

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, loss_function: LossFunction
    ) -> Gradients:
        self.transport.step = step
        shares, hosted = self.shares(num_samples), self.placement[self.transport.rank]
        self._sum.start_step(shares.leaves)
        self._buffers.start_step()
        if len(self._report.present) != len(self._sum.trainable):
            self._report = StepReport(self.replicas, len(self._sum.trainable), self._buffers.num_buffers)
        report = self._report
        report.clear()
        weights = self._checksum([*self._held_alike.values()])
        computed = []
        for micro in micros:
            self._compute(step, micro, shares.weights[micro.replica], loss_function)
            computed.append(micro.replica)
        if computed != [replica for replica in hosted if replica < shares.leaves]:
            raise StepError(f"step {step}: this rank hosts replicas {hosted}, but got {computed}.")
        checksum = self._sum.reduce(self.placement)
        told = report.merge(self.transport, RankReport(step, weights, is_stop_asked=self.is_stop_asked()))
        heads = [rank.head for rank in told]
        is_reached = bool(report.present.any())
        if not is_reached or any(head != heads[0] for head in heads):
            self._buffers.start_replica()  # compare what the step began with, not what a replica has left
            compare(heads, self._held_alike, self.transport)
            check_reached(step, is_reached=is_reached)
        bad = report.bad_replicas()
        self._sum.finish_step(report.present, report.changed, is_kept=not bad)
        losses = tuple(report.losses[: shares.leaves].tolist())
        return Gradients(
            losses=losses,
            loss=shares.mean(losses),
            checksum=checksum,
            weights=weights,
            bad_replicas=bad,
            is_stop_asked=any(rank.is_stop_asked for rank in told),
        )

    def _compute(self, step: int, micro: Micro, weight: float, loss_function: LossFunction) -> None:
        """Add up the gradient (and the new buffers) of a replica, weighted by its share of the batch."""
        report = self._report
        self._buffers.start_replica()
        loss = run_backward(loss_function, micro, weight, seed=self.context.seed, step=step, replicas=self.replicas)
        leaf = self._sum.take(report.present)
        self._buffers.collect(leaf.buffers, weight, report.changed)
        report.note(micro.replica, loss.item(), is_finite=leaf.is_finite())
        self._sum.add(micro.replica, leaf)
