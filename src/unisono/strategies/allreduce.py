"""Averaging by hand: after backward, one all-reduce per parameter, or per bucket, with a choice of algorithms.

Local SGD (Stich, "Local SGD Converges Fast and Communicates Little", 2019) is the option `sync_every`: the ranks update
on their own, and every few steps parameters and optimizer state are averaged.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from unisono.collectives.execute import reduce_flat
from unisono.collectives.pieces import padded_length
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError
from unisono.strategies.base import StrategyContext
from unisono.strategies.options import AllReduceOptions
from unisono.strategies.parts.report import RankReport
from unisono.strategies.replicated import Replicated


@final
class AllReduce(Replicated):
    """See the module."""

    options: AllReduceOptions

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: AllReduceOptions
    ) -> None:
        super().__init__(model, optimizer, context, options)
        self.keeps_equal = options.algorithm != "naive_ring" and options.sync_every == 1
        self._step, self._own_samples, self._after = 0, 0, 1.0
        self._turn = -1  # of local steps: how often all have met by the step's number
        self._is_averaged = True
        self._has_warned = False
        if options.algorithm == "torch" and self.transport.world_size > 1 and not dist.is_initialized():
            raise ConfigError("algorithm torch needs processes. Hint: algorithm ring or tree works in threads too.")

    def weight(self, amount: float, total: int) -> float:
        """See `Replicated.weight`; local steps take the mean over the rank's own samples."""
        if self.options.sync_every > 1:
            return amount / self._own_samples
        return amount / total / self._after

    def begin(self, step: int, samples: list[int]) -> None:
        self._step, self._own_samples = step, samples[self.transport.rank]
        if self._turn < 0:
            self._turn = (step - 1) // self.options.sync_every
        if self.options.sync_every == 1:
            super().begin(step, samples)
        factor = self.options.predivide
        # The default divides wholly before the sum; a factor f leaves a division by world_size / f for afterwards.
        self._after = 1.0 if factor is None else factor / self.transport.world_size

    def reduce(self, step: int) -> None:
        if self.options.sync_every > 1:
            return
        grads = self.fill_absent()
        all_reduce(grads, self.options.algorithm, self.options.bucket_mb, self.transport)
        if self._after != 1.0:
            torch._foreach_mul_(grads, self._after)

    def apply(self) -> bool:
        """See `Strategy.apply`; every `sync_every` steps the ranks take their mean."""
        is_done = super().apply()
        if self.options.sync_every > 1:
            self._is_averaged = False
            turn = self._step // self.options.sync_every
            if turn > self._turn:  # later where the step of its turn was left out
                self._turn = turn
                self._average()
        return is_done

    def align(self) -> None:
        """See `Replicated.align`; local steps are averaged first, out of turn."""
        if not self._is_averaged:
            self._average()
        super().align()

    def compare(self, told: list[RankReport]) -> None:
        """See `Replicated.compare`; the naive ring is warned of, not stopped."""
        super().compare(told)
        differ = len({rank.gradient for rank in told}) > 1
        if self.options.algorithm == "naive_ring" and differ and not self._has_warned:
            self._has_warned = True
            if self.transport.rank == 0:
                warnings.warn(
                    f"step {told[0].step}: the naive ring adds in another order on every rank, and the ranks' "
                    "gradients differ now; their weights drift apart from here on. Hint: algorithm='ring' or 'tree'.",
                    stacklevel=2,
                )

    def _average(self) -> None:
        """Give all ranks the mean of their parameters and floating-point optimizer states."""
        world_size = self.transport.world_size
        values = [parameter.detach() for parameter in self.trainable()]
        for parameter in self.trainable():
            state = self.optimizer.state.get(parameter, {})
            values += [
                entry
                for _, entry in sorted(state.items())
                if isinstance(entry, Tensor) and entry.is_floating_point() and entry.shape == parameter.shape
            ]
        with torch.no_grad():
            torch._foreach_div_(values, world_size)
            all_reduce(values, self.options.algorithm, self.options.bucket_mb, self.transport)
        self._is_averaged = True


def all_reduce(tensors: Sequence[Tensor], algorithm: str, bucket_mb: float | None, transport: Transport) -> None:
    """Replace tensors by their sums over all ranks; collective.

    Args:
        tensors: Of any dtypes.
        algorithm: As the option of `AllReduceOptions`.
        bucket_mb: Size of a message; None means one message for each tensor.
        transport: Joins the ranks.
    """
    if transport.world_size > 1:
        for bucket in _buckets(tensors, bucket_mb):
            _reduce_bucket(bucket, algorithm, transport)


def _buckets(tensors: Sequence[Tensor], bucket_mb: float | None) -> Iterator[list[Tensor]]:
    """Yield the tensors one by one, or in groups of one dtype and device up to the bucket's size."""
    if bucket_mb is None:
        yield from ([tensor] for tensor in tensors)
        return
    for kind in dict.fromkeys((tensor.dtype, tensor.device) for tensor in tensors):
        bucket: list[Tensor] = []
        for tensor in (tensor for tensor in tensors if (tensor.dtype, tensor.device) == kind):
            if bucket and sum(t.nbytes for t in bucket) + tensor.nbytes > bucket_mb * 2**20:
                yield bucket
                bucket = []
            bucket.append(tensor)
        yield bucket


def _reduce_bucket(tensors: Sequence[Tensor], algorithm: str, transport: Transport) -> None:
    """Replace tensors of one dtype and device by their sums, as one message."""
    world_size = transport.world_size
    count = sum(tensor.numel() for tensor in tensors)
    flat = tensors[0].new_zeros(padded_length(count, world_size))
    torch.cat([tensor.detach().reshape(-1) for tensor in tensors], out=flat[:count])
    if algorithm == "torch":
        dist.all_reduce(flat)
        transport.bytes_sent += 2 * (world_size - 1) * flat.nbytes // world_size  # as a ring does
    else:
        reduce_flat(flat, algorithm, transport)
    for tensor, piece in zip(tensors, flat[:count].split([t.numel() for t in tensors]), strict=True):
        tensor.detach().copy_(piece.view(tensor.shape))
