"""Strategies whose ranks all hold the whole model and compute gradients of their own part of the batch.

A subclass says how gradients meet. The loss of a micro-batch is weighted by its share of the batch, so the sum over
all ranks is the gradient of the mean over the whole batch, however unevenly it is cut. Several micro-batches per rank
(more replicas than ranks) accumulate.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.placement import cut
from unisono.determinism.switches import checksum
from unisono.errors import RankDivergence, StepError
from unisono.strategies.base import (
    Gradients,
    LossFunction,
    Micro,
    Strategy,
    StrategyContext,
    check_reached,
    mean_loss,
)
from unisono.strategies.parts.backward import run_backward
from unisono.strategies.parts.drift import Head, compare
from unisono.strategies.parts.front import Front
from unisono.strategies.parts.rank_buffers import RankBuffers
from unisono.strategies.parts.report import StepReport


class Replicated(Strategy):
    """The common part."""

    keeps_equal = True

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: Any) -> None:
        super().__init__(model, optimizer, context, options)
        self.front: Front = Front(model, self.forward)
        self._buffers = RankBuffers(model, context.transport)
        self.buffer_root = 0  # whose batch statistics are the run's
        self._parameters = dict(model.named_parameters())

    def compute_gradients(
        self, step: int, micros: Iterable[Micro], num_samples: int, loss_function: LossFunction
    ) -> Gradients:
        """See `Strategy.compute_gradients`."""
        replicas = self.context.replicas
        sizes = [len(part) for part in cut(num_samples, replicas)]
        report = StepReport(replicas)
        for parameter in self._parameters.values():
            parameter.grad = None
        self.begin(step, [sum(sizes[replica] for replica in hosted) for hosted in self.placement])
        weights = self.weights_checksum()
        hosted = [replica for replica in self.placement[self.transport.rank] if sizes[replica]]
        done = 0
        for micro in micros:
            done += 1
            with self.passing(is_last=done == len(hosted)):
                loss = run_backward(
                    self.wrapped(loss_function), micro, self.weight(micro.num_samples, num_samples),
                    seed=self.context.seed, step=step, replicas=replicas,
                )  # fmt: skip
            report.note(micro.replica, loss.item())
        if done != len(hosted):
            raise StepError(f"step {step}: this rank computes replicas {hosted}, but got {done} micro-batches.")
        self.reduce(step)
        grads = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        head = [step, weights, checksum(grads), int(self.are_finite(grads)), int(self.is_stop_asked()), len(grads)]
        heads = report.merge(self.transport, self.placement, self.speakers(), head)
        check_reached(step, is_reached=any(told[5] for told in heads))
        self.compare(heads)
        bad = [replica for replica in range(replicas) if sizes[replica] and not report.finite[replica]]
        if not bad and self.refuses_non_finite() and not all(told[3] for told in heads):
            bad = [replica for replica in range(replicas) if sizes[replica]]  # the sum says not whose it is
        return Gradients(
            loss=mean_loss(sizes, report.losses, num_samples),
            checksum=self.merged_checksum(heads),
            weights=heads[0][1],
            bad_replicas=tuple(bad),
            is_stop_asked=any(told[4] for told in heads),
        )

    def reading(self) -> contextlib.AbstractContextManager[None]:
        """See `Strategy.reading`; calls go to the plain model meanwhile."""
        return self._reading()

    def settle(self) -> None:
        """See `Strategy.settle`."""
        self._buffers.sync(self.buffer_root)

    # What subclasses change.

    def settle_for_reading(self) -> None:
        """Bring weights and buffers, but not optimizer states, to all ranks."""
        self._buffers.sync(self.buffer_root)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do what a call of the model does in training."""
        return self.model(*args, **kwargs)

    def wrapped(self, loss_function: LossFunction) -> LossFunction:
        """Return the loss function as it is to be called."""
        return loss_function

    def begin(self, step: int, samples: list[int]) -> None:
        """Prepare a step of which each rank computes so many samples."""
        self._buffers.sync(self.buffer_root)

    @contextlib.contextmanager
    def passing(self, *, is_last: bool) -> Iterator[None]:
        """Surround one micro-batch's forward and backward pass."""
        yield

    def weight(self, num_samples: int, total: int) -> float:
        """Return the factor of a micro-batch's gradient."""
        return num_samples / total

    def reduce(self, step: int) -> None:
        """Leave the sum over all ranks in every ``param.grad``."""

    def speakers(self) -> list[int]:
        """Return the ranks that know the losses of the replicas placed on them."""
        return list(range(self.transport.world_size))

    def refuses_non_finite(self) -> bool:
        """Whether NaN and infinity in gradients stop the run; in a loss they always do."""
        return True

    def merged_checksum(self, heads: list[tuple[int, ...]]) -> int:
        """Return the checksum of the whole gradient from every rank's head."""
        return heads[0][2]

    def told_gradient(self, head: tuple[int, ...]) -> int:
        """Return the checksum of a head's gradient, as far as it must be equal on all ranks."""
        return head[2]

    def compare(self, heads: list[tuple[int, ...]]) -> None:
        """Stop where ranks hold different weights or gradients.

        Raises:
            RankDivergence: Names the rank.
        """
        if not self.keeps_equal:
            return
        compare([Head(*head[:2]) for head in heads], self._parameters, self.transport)
        gradients = [self.told_gradient(head) for head in heads]
        usual = max(gradients, key=gradients.count)
        for rank, gradient in enumerate(gradients):
            if gradient != usual:
                raise RankDivergence(
                    f"step {heads[rank][0]}: rank {rank} has another gradient ({gradient:016x}) than the others "
                    f"({usual:016x}), from equal weights. Hint: all ranks must change gradients alike."
                )

    # Helpers.

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

    def weights_checksum(self) -> int:
        """Return the checksum of the weights on this rank."""
        return checksum(self._parameters.values())

    @staticmethod
    def are_finite(grads: Iterable[Tensor]) -> bool:
        """Whether no gradient is NaN or infinite."""
        return all(bool(grad.sum().isfinite()) or bool(grad.isfinite().all()) for grad in grads)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        self.settle_for_reading()
        self.front.call = self.model
        try:
            yield
        finally:
            self.front.call = self.forward
