"""The synchronous parameter server: workers push gradients, servers add them up, update, and everyone pulls.

The first ranks are servers and compute no gradients. With several servers each owns some of the parameters: it alone
adds up their gradients, along the canonical tree over the workers, and alone keeps their optimizer state. Per step a
server sends its parameters to every other rank: with one server and n workers n times the model, the bottleneck that
gave way to all-reduce. (Li et al., "Scaling Distributed Machine Learning with the Parameter Server", 2014.)
"""

from collections.abc import Iterator
from typing import final

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.collectives.reductions import combine_values
from unisono.determinism.device_reads import brought
from unisono.determinism.switches import add_checksums
from unisono.strategies.base import StrategyContext, scale_gradients
from unisono.strategies.parts.report import RankReport
from unisono.strategies.parts.split import share_out
from unisono.strategies.parts.tensor_bytes import broadcast
from unisono.strategies.parts.whole import SpreadStrategy, Whole, gather
from unisono.strategies.replicated import Replicated
from unisono.strategies.servers.options import PSOptions


@final
class ParameterServer(SpreadStrategy, Replicated):
    """See the module."""

    is_sharded = False
    evaluates_alike = False

    def __init__(self, model: nn.Module, optimizer: Optimizer, context: StrategyContext, options: PSOptions) -> None:
        super().__init__(model, optimizer, context, options)
        self.buffer_root = options.servers
        self._servers = options.servers
        self._num_workers = self.transport.world_size - options.servers
        parameters = list(self._parameters.values())
        owners = share_out([parameter.nbytes for parameter in parameters], options.servers)
        self._owners = dict(zip(parameters, owners, strict=True))

    def reduce(self, step: int) -> None:
        """See `Replicated.reduce`: push; afterwards servers hold the sums of their parameters, workers nothing."""
        self.whole = None
        self.fill_absent()
        is_server = self.transport.rank < self._servers
        for group in self._groups():
            nothing = torch.empty(0, dtype=next(p.dtype for part in group for p in part), device=self.context.device)
            flats = [
                torch.cat([p.grad.reshape(-1) for p in part if p.grad is not None]) if part else nothing
                for part in group
            ]
            lengths = [flat.numel() for flat in flats]
            own = lengths[self.transport.rank] if is_server else 0
            recv = nothing.new_empty(own * self._num_workers)
            self.transport.all_to_all(
                nothing if is_server else torch.cat(flats),
                [0] * self.transport.world_size if is_server else [*lengths, *[0] * self._num_workers],
                recv,
                [own if rank >= self._servers else 0 for rank in range(self.transport.world_size)],
            )
            if own:
                total = nothing.new_empty(own)
                combine_values(list(recv.split(own)), "SUM", total)
                part = group[self.transport.rank]
                for parameter, piece in zip(part, total.split([p.numel() for p in part]), strict=True):
                    parameter.grad = piece.view(parameter.shape)
        for parameter, owner in self._owners.items():
            if owner != self.transport.rank:
                parameter.grad = None

    def clip_norm(self, limit: float) -> None:
        """See `Strategy.clip_norm`; the norm is over the parameters of all servers."""
        grads = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        told = brought([grad.double().square().sum() for grad in grads])
        squares = torch.tensor([sum(map(float, told))], dtype=torch.float64)
        everyone = torch.empty(self.transport.world_size, dtype=torch.float64)
        self.transport.all_gather(squares, everyone)
        if grads:
            scale_gradients(grads, everyone.sum().sqrt().to(self.context.device), limit)

    def apply(self) -> bool:
        """See `Strategy.apply`: each server updates its parameters (elsewhere they have no gradient); all pull."""
        is_done = super().apply()
        trainable = self.trainable()
        for server in range(self._servers):
            owned = [parameter for parameter in trainable if self._owners[parameter] == server]
            broadcast(owned, self.transport, server)
        return is_done

    def gather(self) -> Whole:
        """See `SpreadStrategy.gather`; only the optimizer's state is spread."""
        return gather(self.model, self.optimizer, self._is_own, self.transport, ["optimizer"])

    def fingerprint(self) -> str:
        return Replicated.fingerprint(self)

    def merged_checksum(self, told: list[RankReport]) -> int:
        """See `Replicated.merged_checksum`: the sum of the servers'."""
        return add_checksums(rank.gradient for rank in told[: self._servers])

    def _is_own(self, name: str) -> bool:
        return self._owners[self._parameters[name]] == self.transport.rank

    def _groups(self) -> Iterator[list[list[nn.Parameter]]]:
        """Yield, dtype by dtype, each server's trainable parameters that have a gradient."""
        chosen = [parameter for parameter in self.trainable() if parameter.grad is not None]
        for dtype in dict.fromkeys(parameter.dtype for parameter in chosen):
            yield [
                [p for p in chosen if p.dtype == dtype and self._owners[p] == server] for server in range(self._servers)
            ]
