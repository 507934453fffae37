"""Strategies whose ranks all hold the whole model and compute gradients of their own part of the batch.

A subclass says how gradients meet. The loss of a micro-batch is weighted by its share of the batch, so the sum over
all ranks is the gradient of the mean over the whole batch, however unevenly it is cut. Several micro-batches per rank
(more replicas than ranks) accumulate.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.determinism.device_reads import largest_of, reads_of
from unisono.determinism.switches import Checksum, add_checksums, checksum, checksum_part
from unisono.errors import RankDivergence, StepError
from unisono.strategies.base import Gradients, Micro, Strategy, StrategyContext, check_reached
from unisono.strategies.objective import Objective
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.drift import compare
from unisono.strategies.parts.front import Front, calling
from unisono.strategies.parts.report import RankReport, StepReport
from unisono.strategies.parts.tensor_bytes import broadcast
from unisono.strategies.parts.weighing import scale


class Replicated(Strategy):
    """The common part."""

    keeps_equal = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: Any) -> None:
        super().__init__(model, optimizer, context, options)
        self.front: Front = Front(model, self.forward)
        self.buffer_root = 0  # whose batch statistics are the run's
        self._parameters = dict(model.named_parameters())
        #: What a step on a GPU has to tell, which the CPU waits for once; None: it is told at once.
        self._reads = reads_of(self._parameters.values())
        self._checksum = Checksum()
        self._weights = 0

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, objective: Objective
    ) -> Gradients:
        shares, report = self.shares(num_samples), StepReport(self.replicas)
        for parameter in self._parameters.values():
            parameter.grad = None
        self.begin(step, [sum(shares.sizes[replica] for replica in hosted) for hosted in self.placement])
        self._look_at_weights()
        hosted = [replica for replica in self.placement[self.transport.rank] if replica < shares.leaves]
        done = 0
        for micro in micros:
            done += 1
            with self.passing(is_last=done == len(hosted)):
                loss, weight = run_backward(
                    objective, micro, num_samples, seed=self.context.seed, step=step,
                    replicas=self.replicas, share=self.weight, silenced=self.silenced,
                )  # fmt: skip
            if self._reads is None:
                report.note(micro.replica, loss.item(), weight)
            else:
                self._reads.ask([loss], functools.partial(report.note_read, micro.replica, weight))
        if done != len(hosted):
            raise StepError(f"step {step}: this rank computes replicas {hosted}, but got {done} micro-batches.")
        self.reduce(step)
        grads = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        if objective.weight is not None:
            if self._reads is not None:
                self._reads.read()
            report.merge(self.transport, RankReport(step, self._weights))
            scale(grads, report.weigh(objective, shares).factor)
        gradient, is_finite = self._look_at(grads)
        told = report.merge(
            self.transport,
            RankReport(
                step, self._weights, gradient, is_finite=is_finite, is_reached=bool(grads),
                is_stop_asked=self.is_stop_asked(), is_training=self.model.training,
            ),
        )  # fmt: skip
        weighed = report.weigh(objective, shares)
        check_reached(step, is_reached=any(rank.is_reached for rank in told) or bool(weighed.bad))
        self.compare(told)
        bad = weighed.bad or report.bad_replicas()
        if not bad and not all(rank.is_finite for rank in told):
            bad = tuple(range(shares.leaves))  # the sum says not whose it is
        return Gradients(
            loss=weighed.loss,
            samples_weight=weighed.total,
            checksum=self.merged_checksum(told),
            weights=told[0].weights,
            bad_replicas=bad,
            is_stop_asked=any(rank.is_stop_asked for rank in told),
        )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """See `Strategy.reading`; calls go to the plain model meanwhile."""
        self.align()
        with calling(self.front, self.forward_alone):
            yield

    def forward_alone(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the plain model does, without the other ranks."""
        return self.model(*args, **kwargs)

    def settle(self) -> None:
        self.align()

    def recorded(self) -> Sequence[Tensor]:
        return [*self._parameters.values()] if self._reads is None else ()

    def _look_at_weights(self) -> None:
        """Take the checksum of the weights that a step begins with, or ask for it."""
        if self._reads is None:
            self._weights = checksum(self._parameters.values())
            self.begin_step(self._weights)
        else:
            self._reads.forget()
            self._reads.ask(self._checksum.parts([*self._parameters.values()]), self._take_weights)

    def _take_weights(self, *parts: Tensor) -> None:
        self._weights = add_checksums(map(int, parts))

    def _look_at(self, grads: Sequence[Tensor]) -> tuple[int, bool]:
        """Return the checksum of gradients, and whether they are finite; reads from a GPU all that was asked for."""
        if self._reads is None:
            return checksum(grads), self.are_finite(grads)
        sums, largest = list[int](), list[float]()
        self._reads.ask([*map(checksum_part, grads)], lambda *read: sums.extend(map(int, read)))
        self._reads.ask(largest_of(grads), lambda *read: largest.extend(map(float, read)))
        self._reads.read()
        return add_checksums(sums), all(map(math.isfinite, largest))

    # What subclasses change.

    def align(self) -> None:
        """Bring the run's weights and buffers to all ranks; collective."""
        self.sync_buffers()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do what a call of the model does in training."""
        return self.model(*args, **kwargs)

    def begin(self, step: int, samples: list[int]) -> None:
        """Prepare a step of which each rank computes so many samples."""
        self.sync_buffers()

    @contextlib.contextmanager
    def passing(self, *, is_last: bool) -> Iterator[None]:
        """Surround one micro-batch's forward and backward pass."""
        yield

    silenced: Callable[[], contextlib.AbstractContextManager[None]] | None = None
    """See `run_backward`."""

    def weight(self, amount: float, total: int) -> float:
        """Return the factor of a micro-batch's gradient that counts so much of the batch's `total` samples."""
        return amount / total

    def reduce(self, step: int) -> None:
        """Leave the sum over all ranks in every ``param.grad``."""

    def merged_checksum(self, told: list[RankReport]) -> int:
        """Return the checksum of the whole gradient from what every rank says."""
        return told[0].gradient

    def compare(self, told: list[RankReport]) -> None:
        """Stop where ranks hold different weights or gradients."""
        if not self.keeps_equal:
            return
        compare([rank.head for rank in told], self._parameters, self.transport)
        if not self.options.shares_gradients:
            return
        gradients = [rank.gradient for rank in told]
        usual = max(gradients, key=gradients.count)
        for rank, gradient in enumerate(gradients):
            if gradient != usual:
                raise RankDivergence(
                    f"step {told[rank].step}: rank {rank} has another gradient ({gradient:016x}) than the others "
                    f"({usual:016x}), from equal weights. Hint: all ranks must change gradients alike."
                )

    # Helpers.

    def sync_buffers(self) -> None:
        """Overwrite every rank's buffers with those of the rank `buffer_root`; collective."""
        broadcast([buffer for _, buffer in self.model.named_buffers()], self.transport, self.buffer_root)

    def fill_absent(self) -> list[Tensor]:
        """Give zeros to every parameter that has a gradient on another rank only; return all gradients; collective."""
        trainable = self.trainable()
        mine = torch.tensor([parameter.grad is not None for parameter in trainable], dtype=torch.uint8)
        everyone = torch.empty(len(mine) * self.transport.world_size, dtype=torch.uint8)
        self.transport.all_gather(mine, everyone)
        present = everyone.view(-1, len(mine)).amax(dim=0).tolist()
        for parameter, is_present in zip(trainable, present, strict=True):
            if is_present and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in trainable if parameter.grad is not None]

    def trainable(self) -> list[nn.Parameter]:
        """Return the trainable parameters, in the model's order."""
        return [parameter for parameter in self._parameters.values() if parameter.requires_grad]

    @staticmethod
    def are_finite(grads: Iterable[Tensor]) -> bool:
        """Whether no gradient is NaN or infinite."""
        return all(bool(grad.sum().isfinite()) or bool(grad.isfinite().all()) for grad in grads)
