"""The exact strategy: gradients whose bits depend on the score alone, not on how many ranks compute them.

In a step every rank runs forward and backward once per replica it hosts, from a generator state and buffers that only
the step and the replica decide. It adds the leaves along the canonical tree as far as it hosts them, and the
owner-computes exchange finishes the tree. World size 1 runs the same code. With `compress` every leaf's and every sum's
gradients are rounded, also in a world of one.
"""

from collections.abc import Iterable, Sequence
from typing import Any, final

from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.coding.rounding import ROUNDINGS
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
        kind = ROUNDINGS.get(options.compress)
        rounding = None if kind is None else kind(seed=context.seed)
        codec = options.codec if rounding is None else "none"
        self._sum = LeafSum(dict(model.named_parameters()), self._buffers, self.transport, overlaps, codec, rounding)
        self._report = self._new_report()

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, loss_function: LossFunction
    ) -> Gradients:
        self.transport.step = step
        shares, hosted = self.shares(num_samples), self.placement[self.transport.rank]
        self._sum.start_step(shares.leaves, step)
        self._buffers.start_step()
        if len(self._report.present) != len(self._sum.trainable):
            self._report = self._new_report()
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
            if not self._sum.send(self.placement):
                report.bad[expected[-1]] = True
            self._buffers.tell(report.counted)
            own = RankReport(step, weights, is_stop_asked=self.is_stop_asked())
            say = self._sum.tell(report.message(own)) if self.transport.world_size > 1 else None
            checksum = self._sum.finish()
            told = [own] if say is None else report.take(say())
        except BaseException:
            self._sum.give_up()
            raise
        is_reached = report.is_reached()
        if not is_reached or (len(told) > 1 and any(rank.head != told[0].head for rank in told)):
            self._buffers.start_replica()  # compare what the step began with, not what a replica has left
            compare([rank.head for rank in told], self._held_alike, self.transport)
            check_reached(step, is_reached=is_reached)
        bad = report.bad_replicas()
        self._sum.finish_step(report.present, report.changed, report.counted, is_kept=not bad)
        losses = tuple(report.losses.tolist()[: shares.leaves])
        return Gradients(
            losses=losses,
            loss=shares.mean(losses),
            checksum=checksum,
            weights=weights,
            bad_replicas=bad,
            is_stop_asked=any(rank.is_stop_asked for rank in told),
        )

    def begin_again(self) -> None:
        """See `Strategy.begin_again`: nothing but buffers and sums has been written to."""
        self._buffers.start_replica()
        self._sum.forget()

    def recorded(self) -> Sequence[Tensor]:
        return [*self._held_alike.values()]

    def _new_report(self) -> StepReport:
        buffers = self._buffers
        return StepReport(self.replicas, len(self._sum.trainable), buffers.num_buffers, buffers.num_counted)

    def _compute(self, step: int, micro: Micro, weight: float, loss_function: LossFunction) -> None:
        """Add up the gradient (and the new buffers) of a replica, weighted by its share of the batch."""
        report, buffers = self._report, self._buffers
        if buffers.is_watched:
            buffers.start_replica()
        loss = run_backward(loss_function, micro, weight, seed=self.context.seed, step=step, replicas=self.replicas)
        floats = buffers.collect(weight, report.changed) if buffers.is_watched else ()
        is_finite = self._sum.add(micro.replica, floats, report.present)
        report.note(micro.replica, loss.item(), is_finite=is_finite)

    def close(self) -> None:
        self._sum.close()
