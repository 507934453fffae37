"""The exact strategy: gradients whose bits depend on the score alone, not on how many ranks compute them.

In a step every rank runs forward and backward once per replica it hosts, from a generator state and buffers that only
the step and the replica decide. It adds the leaves along the canonical tree as far as it hosts them, and the
owner-computes exchange finishes the tree. World size 1 runs the same code. With `compress` every leaf's and every sum's
gradients are rounded, also in a world of one. With a witness one replica is computed by two ranks.
"""

import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from unisono.collectives.coding.rounding import ROUNDINGS
from unisono.determinism.device_reads import DeviceReads, reads_of
from unisono.determinism.switches import Checksum, add_checksums
from unisono.errors import StepError
from unisono.strategies.base import Gradients, Micro, Strategy, StrategyContext, check_reached
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import add_gradient, key_generators
from unisono.strategies.parts.drift import compare
from unisono.strategies.parts.flat import sparse_again, sparse_parameters
from unisono.strategies.parts.fold import Fold
from unisono.strategies.parts.leaf_sum import LeafSum
from unisono.strategies.parts.replica_buffers import ReplicaBuffers
from unisono.strategies.parts.report import RankReport, StepReport
from unisono.strategies.whole_batch import SecondPass, WholeBatch
from unisono.strategies.witness.first_loss import FirstLoss
from unisono.strategies.witness.witness import Witness, refuse_witness


@final
class Exact(Strategy):
    """Gradients by micro-batch and canonical tree; nothing of the model is changed."""

    keeps_equal = True
    saves_alone = True

    def __init__(self, model: nn.Module, optimizer: Any, context: StrategyContext, options: Any) -> None:
        super().__init__(model, optimizer, context, options)
        self._buffers = ReplicaBuffers(model.named_modules())
        self._held_alike = {**dict(model.named_parameters()), **self._buffers.saved_floats()}
        self._held = (*self._held_alike.values(),)
        self._checksum = Checksum()
        overlaps = {"auto": None, "on": True, "off": False}[options.overlap]
        kind = ROUNDINGS.get(options.compress)
        rounding = None if kind is None else kind(seed=context.seed)
        codec = options.codec if rounding is None else "none"
        self._sparse = sparse_parameters(model)
        how = (self._buffers, self.transport, overlaps, codec, rounding, frozenset(self._sparse))
        #: What a step on a GPU has to tell, which the CPU waits for once; None: it is told at once.
        self._reads = reads_of(self._held)
        self._new_sum: Callable[[Any], LeafSum] = lambda parameters: LeafSum(parameters, *how)
        self._sum = self._new_sum(dict(model.named_parameters()))
        self._sums: dict[str | None, LeafSum] = {None: self._sum}  # by the optimizer that steps; None: there is one
        self._whole = WholeBatch(context, self._buffers, self._reads)
        self._second: SecondPass | None = None
        self._report = self._new_report()
        self.witness: Witness | None = None
        self.first_loss: FirstLoss = FirstLoss(context)
        self._signed = self._laid_out = -1

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        self.begin(step, num_samples, objective)
        try:
            if objective.embed is not None:
                if self.witness is not None:
                    refuse_witness("the loss is one over the whole batch (embed=)")
                self._second = self._whole.first_pass(step, micros, num_samples, objective, self._sum.trainable)
                micros = self._second.micros()
            for micro in micros:
                self.start_replica(micro)
                self.add_replica(micro, objective if self._second is None else self._second.objective(micro))
            return self.finish()
        except BaseException:
            self._sum.give_up()
            raise

    def begin(self, step: int, num_samples: int, objective: Objective) -> list[int]:
        """Begin a step whose micro-batches come one by one; return the replicas that this rank has to compute.

        `compute_gradients` in pieces: after this `start_replica` and `add_replica` for each, and `finish`. Whoever
        calls them and fails between them calls `begin_again`.
        """
        self.transport.step = step
        if (trained := objective.trained) is not None:  # in memory of its own: the gradients of others stay in theirs
            self._sum = self._sums.get(objective.update) or self._new_sum(trained)
            self._sums[objective.update] = self._sum
        if num_samples != self._laid_out:
            self._lay_out(num_samples)
        self._sum.start_step(self._shares.leaves, step, objective.number)
        if self._buffers.is_watched:
            self._buffers.start_step()
        if len(self._report.present) != len(self._sum.trainable):
            self._report = self._new_report()
        self._report.clear()
        self._step, self._objective, self._second = step, objective, None
        self._computed: list[int] = []
        self._busy_ns = 0
        if self.witness is not None:
            self._signed = self.witness.begin(step, num_samples, self._shares.leaves, objective)
        if self._reads is None:
            self._weights = self._checksum(self._held)
            self.begin_step(self._weights)
        else:
            self._reads.forget()
            self._reads.ask(self._checksum.parts(self._held), self._take_weights)
        return self._expected

    def _lay_out(self, num_samples: int) -> None:
        """Settle what depends on the batch's size and the placement alone."""
        self._laid_out, self._shares = num_samples, self.shares(num_samples)
        hosted = self.placement[self.transport.rank]
        self._expected = [replica for replica in hosted if replica < self._shares.leaves]

    def start_replica(self, micro: Micro) -> None:
        """Begin the passes of a replica: generators and buffers as only step and replica decide them."""
        self._began_ns = _now_ns()
        self._computed.append(micro.replica)
        if micro.replica != self._signed:  # its gradients stay until they have been looked at
            self._sum.start_replica(micro.replica, self.placement, is_last=self._computed == self._expected)
        if self._buffers.is_watched:
            self._buffers.start_replica()
        key_generators(self.context.seed, self._objective.key(self._step, micro.replica))

    def add_replica(self, micro: Micro, objective: Objective) -> None:
        """Add up the gradient of a replica, and its new buffers, weighted by its share of the batch's samples."""
        report, buffers, shares = self._report, self._buffers, self._shares
        loss, weight = add_gradient(objective, micro, shares.num_samples, step=self._step, replicas=self.replicas)
        if micro.replica == self._signed and self.witness is not None:
            self.witness.sign(loss, weight, self._sum.trainable, self._reads)
        share = shares.weights[micro.replica]
        reads = self._reads
        floats = buffers.collect(share, report.changed, reads) if buffers.is_watched else ()
        if reads is None:
            is_finite = self._sum.add(micro.replica, floats, report.present)
            report.note(micro.replica, loss.item(), weight, is_finite=is_finite)
        else:
            found = self._sum.add(micro.replica, floats, report.present, functools.partial(Fold.flaws, reads=reads))
            flaws = [torch.tensor([0.0 if found else 1.0])] if isinstance(found, bool) else found
            reads.ask([loss, *flaws], functools.partial(report.note_read, micro.replica, weight))
        self._busy_ns += _now_ns() - self._began_ns

    def finish(self) -> Gradients:
        """Finish the tree over all ranks, and leave its sum in every ``param.grad``; collective."""
        step, report, shares, second = self._step, self._report, self._shares, self._second
        told, checksum, is_finite = self._tell() if self._reads is None else self._read_and_tell(self._reads)
        losses = report.losses[: shares.leaves].tolist()
        weighed = report.weigh(self._objective, shares, losses)
        if self._objective.score is not None:
            checksum, is_finite = self._sum.scale(weighed.factor)
        is_reached = report.is_reached() or bool(weighed.bad)
        if len(told) > 1:
            self._sum.await_seal()
        if not is_reached or (len(told) > 1 and any(rank.head != told[0].head for rank in told)):
            self._buffers.start_replica()  # compare what the step began with, not what a replica has left
            compare([rank.head for rank in told], self._held_alike, self.transport)
            check_reached(step, is_reached=is_reached)
        if self.witness is not None:
            self.witness.compare(told, self._sum.trainable)
        elif second is not None:
            second.compare_ranks(told)
        elif len(told) > 1:
            self.first_loss.compare(step, [rank.gradient for rank in told])
        bad = weighed.bad or report.bad_replicas()
        if not (bad or is_finite):
            bad = tuple(range(shares.leaves))  # the sum says not whose it is
        self._sum.finish_step(report.present, report.changed, report.counted, is_kept=not bad)
        asked = told[0].is_stop_asked
        for rank in told[1:]:
            asked |= rank.is_stop_asked
        self.is_join_asked = asked > 1
        if self.transport.world_size > 1:
            self.busy_ns = [rank.busy_ns for rank in told] if shares.leaves == self.replicas else ()
        return Gradients(
            losses=tuple(losses),
            loss=weighed.loss if second is None else losses[0],
            samples_weight=weighed.total,
            checksum=checksum,
            weights=self._weights,
            bad_replicas=bad,
            is_stop_asked=asked % 2 == 1,
        )

    def _tell(self) -> tuple[list[RankReport], int, bool]:
        """Finish the tree, and tell of the step meanwhile.

        Returns:
            The word of every rank; the checksum of the sum; whether that is finite, where it matters.
        """
        self._send()
        if self._second is not None:
            self._second.blame(self._report)
        if self._buffers.is_watched:
            self._buffers.tell(self._report.counted)
        if self.witness is not None:
            self.witness.look_again(self._sum.trainable)
        own = self._own_word()
        say = None if self.transport.world_size == 1 else self._sum.tell(self._report.message(own))
        total = self._sum.arrive()
        told = [own] if say is None else self._report.take(say())
        self._sum.part_buffers()
        # The sum may overflow where no replica's gradient does.
        is_finite = not self._may_overflow() or total.is_finite()
        return told, total.checksum(), is_finite

    def _read_and_tell(self, reads: DeviceReads) -> tuple[list[RankReport], int, bool]:
        """Do what `_tell` does after the tree is finished, with what is read from the GPU then, all at once."""
        self._send()
        if self.witness is not None:
            self.witness.look_again(self._sum.trainable, reads)
        total, sums, largest = self._sum.finish_unread(), list[int](), list[float]()
        if self._buffers.is_watched:
            self._buffers.tell(self._report.counted, reads)
        reads.ask(total.checksum_parts(), lambda *read: sums.extend(int(each) for each in read))
        if self._may_overflow():
            reads.ask(total.largest(), lambda *read: largest.extend(float(each) for each in read))
        reads.read()
        if self._second is not None:
            self._second.blame(self._report)
        told = self._report.merge(self.transport, self._own_word())
        return told, add_checksums(sums), all(map(math.isfinite, largest))

    def _may_overflow(self) -> bool:
        return self._objective.score is None and self.context.precision.scale != 1

    def _take_weights(self, *parts: Tensor) -> None:
        self._weights = add_checksums(int(part) for part in parts)

    def _send(self) -> None:
        """Let what this rank has added up leave for the others."""
        report = self._report
        if self._computed != self._expected:
            hosted = self.placement[self.transport.rank]
            raise StepError(f"step {self._step}: this rank hosts replicas {hosted}, but got {self._computed}.")
        if not self._sum.send(self.placement):
            report.bad[self._expected[-1]] = True

    def _own_word(self) -> RankReport:
        gradient = self.first_loss.tell() if self._second is None else self._second.checksum
        if self.witness is not None:
            gradient = self.witness.tell()
        return RankReport(
            self._step, self._weights, gradient,
            is_stop_asked=self.is_stop_asked(), busy_ns=self._busy_ns, is_training=self.model.training,
        )  # fmt: skip

    def clip_gradients(self) -> None:
        """See `Strategy.clip_gradients`; what an optimizer for sparse gradients is to get is sparse from here on."""
        super().clip_gradients()
        for parameter in self._sparse.values() if self._sparse else ():
            if parameter.grad is not None:
                parameter.grad = sparse_again(parameter.grad)

    def begin_again(self, *, is_within: bool) -> None:
        """See `Strategy.begin_again`: nothing but buffers and sums has been written to."""
        self._sum.give_up()
        self._laid_out = -1
        if is_within:
            self._buffers.start_replica()
        for each in self._sums.values():
            each.forget()
        self._whole.forget()

    def watch(self, rate: float) -> Witness:
        """Have a replica computed by two ranks in a share of the steps, from now on."""
        self.witness = self.witness or Witness(rate, self.context, self._buffers, self._sparse)
        return self.witness

    def report(self) -> dict[str, Any]:
        """See `Strategy.report`."""
        return {} if self.witness is None else {"witness": self.witness.report()}

    def recorded(self) -> Sequence[Tensor]:
        return [*self._held_alike.values()] if self._reads is None else ()

    def _new_report(self) -> StepReport:
        buffers = self._buffers
        return StepReport(self.replicas, len(self._sum.trainable), buffers.num_buffers, buffers.num_counted)

    def close(self) -> None:
        for each in self._sums.values():
            each.close()


_now_ns = time.perf_counter_ns
