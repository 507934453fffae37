"""The exact strategy: gradients whose bits depend on the score alone, not on how many ranks compute them.

In a step every rank runs forward and backward once per replica it hosts, from a generator state and buffers that only
the step and the replica decide. It adds the leaves along the canonical tree as far as it hosts them, and the
owner-computes exchange finishes the tree. World size 1 runs the same code.
"""

from collections.abc import Iterable, Sequence
from typing import Any, final

from torch import Tensor, nn
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
        self._held = [*self._held_alike.values()]
        self._checksum = Checksum()
        overlaps = {"auto": None, "on": True, "off": False}[options.overlap]
        self._sum = LeafSum(dict(model.named_parameters()), self._buffers, self.transport, overlaps, options.codec)
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
        weights = self._checksum(self._held)
        self.begin_step(weights)
        computed = []
        expected = [replica for replica in hosted if replica < shares.leaves]
        try:
            for micro in micros:
                computed.append(micro.replica)
                self._sum.start_replica(micro.replica, self.placement, is_last=computed == expected)
                self._compute(step, micro, shares.weights[micro.replica], loss_function)
            if computed != expected:
                raise StepError(f"step {step}: this rank hosts replicas {hosted}, but got {computed}.")
            checksum, is_finite = self._sum.reduce(self.placement)
        except BaseException:
            self._sum.give_up()
            raise
        if not is_finite:
            report.bad[expected[-1]] = True
        told = report.merge(self.transport, RankReport(step, weights, is_stop_asked=self.is_stop_asked()))
        heads = [rank.head for rank in told]
        is_reached = report.is_reached()
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

    def recorded(self) -> Sequence[Tensor]:
        return [*self._held_alike.values()]

    def _compute(self, step: int, micro: Micro, weight: float, loss_function: LossFunction) -> None:
        """Add up the gradient (and the new buffers) of a replica, weighted by its share of the batch."""
        report = self._report
        self._buffers.start_replica()
        loss = run_backward(loss_function, micro, weight, seed=self.context.seed, step=step, replicas=self.replicas)
        floats = self._buffers.collect(weight, report.changed)
        is_finite = self._sum.add(micro.replica, floats, report.present)
        report.note(micro.replica, loss.item(), is_finite=is_finite)

    def close(self) -> None:
        self._sum.close()
