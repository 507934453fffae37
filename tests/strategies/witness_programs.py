"""Ranks that compute wrong: one bit of a product, or of a gradient, is flipped on one of them; what the others notice.

No update is made, so that every step is a trial of its own; its data, and the fault, are drawn from its number.
"""

import random
import re
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from ranks import join
from unisono.collectives.placement import place_whole
from unisono.determinism.switches import set_determinism
from unisono.errors import PeerLost, RankDivergence
from unisono.strategies.base import Micro, StrategyContext
from unisono.strategies.exact import Exact
from unisono.strategies.objective import Objective
from unisono.strategies.options import ExactOptions
from unisono.strategies.witness.choice import witnesses

SIZE = 3  # samples of a replica


@dataclass
class Fault:
    """One flipped bit: `once` in this replica's own computation, or whenever it is computed on this rank (None)."""

    is_product: bool
    element: int
    bit: int
    once: int | None

    def strikes(self, replica: int) -> bool:
        """Whether the replica that is computed now is hit."""
        return self.once in (None, replica)

    def flip(self, values: torch.Tensor) -> None:
        """Flip the bit in place."""
        words = values.detach().view(torch.int32).view(-1)
        words[self.element % len(words)] ^= (1 << self.bit) - (1 << 32 if self.bit == 31 else 0)


class Bench:
    """A tiny model under `exact` with a witness, whose rank may have a fault."""

    def __init__(self, transport, replicas, rate):
        set_determinism(threads=1)
        torch.manual_seed(1)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.model = nn.ModuleList([self.first, self.norm, self.last])
        self.transport, self.replicas = transport, replicas
        self.placement = [*place_whole(replicas, transport.world_size)]
        context = StrategyContext(
            transport=transport, placement=self.placement, seed=3, device=torch.device("cpu")
        )  # fmt: skip
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.strategy = Exact(self.model, optimizer, context, ExactOptions())
        self.witness = self.strategy.watch(rate) if rate else None
        if self.witness is not None:
            self.witness.fetch = lambda step, replica: [self.micro(step, replica)]
        self.fault, self.replica, self.checksum = None, -1, 0
        self.last.weight.register_post_accumulate_grad_hook(self._spoil)

    def micro(self, step, replica):
        """Return the micro-batch of a step and replica."""
        generator = torch.Generator().manual_seed(1000 * step + replica)
        data = replica, torch.randn(SIZE, 4, generator=generator), torch.randint(0, 3, (SIZE,), generator=generator)
        return Micro(replica, SIZE, data)

    def loss(self, data):
        """Return the loss of a micro-batch, with dropout."""
        self.replica, x, y = data
        hidden = self.first(x)
        if self.fault is not None and self.fault.is_product and self.fault.strikes(self.replica):
            self.fault.flip(hidden)
        return F.cross_entropy(self.last(F.dropout(self.norm(hidden).relu(), 0.1)), y)

    def step(self, number):
        """Compute a step's gradients; return who is said to be wrong, None where nobody is."""
        micros = [self.micro(number, replica) for replica in self.placement[self.transport.rank]]
        named = None
        try:
            found = self.strategy.compute_gradients(number, micros, SIZE * self.replicas, Objective(self.loss))
            self.checksum = found.checksum
        except (RankDivergence, PeerLost) as error:
            named = sorted({int(rank) for rank in re.findall(r"rank (\d+)", str(error))})
            self.strategy.begin_again(is_within=True)
        for parameter in self.model.parameters():
            parameter.grad = None
        return named

    def leaf(self, replica):
        """Return the bits of a replica of this step, computed on this rank as it is."""
        kept = [buffer.clone() for buffer in self.model.buffers()]  # as the step has left them
        before = self.witness._own
        self.witness._compute(replica, self.strategy._sum.trainable)
        found, self.witness._own = self.witness._own, before
        for buffer, value in zip(self.model.buffers(), kept, strict=True):
            buffer.copy_(value)
        return found

    def _spoil(self, parameter):
        if self.fault is not None and not self.fault.is_product and self.fault.strikes(self.replica):
            self.fault.flip(parameter.grad)


def inject(transport, count, replicas, rate, seed=0):
    """Return of each trial, from the rank with the fault, what it was and who was named.

    Each is ``[is persistent, changed leaves, probability to be noticed, is to be noticed, who is wrong, who was named,
    is missed where the same rank computes twice]``.
    """
    transport = join(transport)
    bench, found = Bench(transport, replicas, rate), []
    rank, size = transport.rank, transport.world_size
    for step in range(1, count + 1):
        draw = random.Random(f"{seed} {step}")
        wrong, is_persistent = draw.randrange(size), draw.random() < 0.5
        own = bench.placement[wrong]
        fault = Fault(draw.random() < 0.5, draw.randrange(18), draw.randrange(32), None)
        fault.once = None if is_persistent else draw.choice(own)
        bench.fault = fault if rank == wrong else None
        named = bench.step(step)
        if rank != wrong:
            found.append([step, named])
            continue
        spoilt = {replica: bench.leaf(replica) for replica in range(replicas) if fault.strikes(replica)}
        again = {replica: bench.leaf(replica) for replica in spoilt}
        bench.fault = None
        changed = [replica for replica, bits in spoilt.items() if bench.leaf(replica) != bits]
        owners = {replica: at for at, hosted in enumerate(bench.placement) for replica in hosted}
        able = {at: witnesses(bench.placement, replicas, at) for at in range(size)}
        chance = 0.0
        for replica in changed:
            owner = owners[replica]
            chance += 1.0 if owner == wrong else (wrong in able[owner]) / len(able[owner])
        watched = bench.witness._watched
        is_due = watched is not None and watched.replica in changed and wrong in watched[1:]
        is_missed = is_persistent and bool(changed) and spoilt == again
        found.append([
            is_persistent, len(changed), rate * chance / replicas, is_due, wrong, named, is_missed
        ])  # fmt: skip
    return found


def clean(transport, count, replicas, rate, first=1):
    """Return how many steps without a fault were refused, and the last sum's checksum."""
    bench = Bench(join(transport), replicas, rate)
    alarms = sum(bench.step(step) is not None for step in range(first, first + count))
    return [alarms, bench.checksum, bench.witness.report()["replicas_checked"] if rate else 0]


def trials(told):
    """Return the trials as the ranks with the faults tell them, and whether all ranks have named the same."""
    own = [next(trial for trial in row if len(trial) > 2) for row in zip(*told, strict=True)]
    are_alike = all(
        (trial[1] is None) == (mine[5] is None)
        for row, mine in zip(zip(*told, strict=True), own, strict=True)
        for trial in row
        if len(trial) == 2
    )
    return own, are_alike


def summary(told, world_size):
    """Return the counts of some trials; raises where a trial ends otherwise than it must."""
    own, are_alike = trials(told)
    assert are_alike, "ranks disagree"
    effective = [trial for trial in own if trial[1]]
    noticed = [trial for trial in own if trial[5] is not None]
    for trial in own:
        assert (trial[5] is not None) == trial[3], f"noticed although not due, or the other way round: {trial}"
    everyone = [*range(world_size)]
    wanted = [everyone if world_size == 2 else [trial[4]] for trial in noticed]
    blamed = sum(trial[5] == names for trial, names in zip(noticed, wanted, strict=True))
    expected = sum(trial[2] for trial in own)
    spread = sum(trial[2] * (1 - trial[2]) for trial in own) ** 0.5
    persistent = [trial for trial in effective if trial[0]]
    return {
        "injected": len(own), "changed_no_leaf": len(own) - len(effective), "due": sum(trial[3] for trial in own),
        "noticed": len(noticed), "expected": expected, "spread": spread, "blamed_right": blamed,
        "persistent": len(persistent), "missed_by_the_same_rank": sum(trial[6] for trial in persistent),
    }  # fmt: skip
