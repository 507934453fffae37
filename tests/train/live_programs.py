"""A small training whose ranks kill themselves at chosen places; what the ranks of the live tests run."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.collectives.shm import board as boards
from unisono.strategies.exact import Exact

STEPS, REPLICAS = 10, 8
MEETINGS = 2  # of a step: the sum, the report


class Kills:
    """Kills this process at a place: (step, meeting of the step from 1, ``before``, ``inside`` or ``after`` it)."""

    def __init__(self, places):
        self.step = self.meeting = 0
        self._places = {tuple(place) for place in places}
        barrier, take = boards.SharedBoard.barrier, boards.take

        def counted(board, note):
            self.meeting += 1
            self._at("before")
            notes = barrier(board, note)
            self._at("after")
            return notes

        def taken(address, look):
            self._at("inside")
            take(address, look)

        boards.SharedBoard.barrier, boards.take = counted, taken

    def begin(self, step):
        """A step begins; its meetings are counted from 1, also those of a second try."""
        self.step, self.meeting = step, 0

    def _at(self, when):
        if (self.step, self.meeting, when) in self._places:
            os.kill(os.getpid(), signal.SIGKILL)


def model():
    return nn.Sequential(
        nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)
    )


def data(size=72):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(size, 6, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (size,), generator=generator))


def _forget_buffers(strategy):
    strategy._sum.forget()


def _keep_a_sum(strategy):
    """Let what the step has added up before count again."""
    sums, start = strategy._sum._sums, strategy._sum.start_step
    strategy._buffers.start_replica()
    strategy._sum.forget()

    def start_step(leaves, step):
        start(leaves, step)
        if sums:
            strategy._sum._sums = [(node, strategy._sum._new_leaf()) for node, _ in sums]
            for (_, new), (_, old) in zip(strategy._sum._sums, sums, strict=True):
                for left, right in zip(new.gradients, old.gradients, strict=True):
                    left.copy_(right)

    strategy._sum.start_step = start_step


def _draw_anew(strategy):
    """Let replicas that are computed again have other random numbers."""
    strategy._buffers.start_replica()
    strategy._sum.forget()
    strategy.context = replace(strategy.context, seed=strategy.context.seed + 1)


BREAKS = {"buffers": _forget_buffers, "sums": _keep_a_sum, "keys": _draw_anew}


def train(out, kills=None, broken=None, raises=None, steps=STEPS, num_workers=0, compress="none", **settings):
    """Train a few steps.

    Args:
        out: Run directory.
        kills: By rank (as text) the places where it kills itself.
        broken: What is done wrong when a step is begun again, a name of `BREAKS`.
        steps: How many.
        num_workers: Data loading processes of each rank.
        raises: Rank and step at which the loss function fails.
        compress: How gradients are rounded.
        settings: Of the run.
    """
    member = os.environ.get("RANK", "0")
    if broken:
        Exact.begin_again = BREAKS[broken]
    found = Kills((kills or {}).get(member, ()))
    strategy = unisono.strategy("exact", compress=compress)
    with unisono.Run(seed=3, replicas=REPLICAS, out=out, strategy=strategy, **settings) as run:
        net = model()
        net, _ = run.prepare(net, torch.optim.Adam(net.parameters(), lr=1e-2))
        seen = []
        for batch in run.steps(run.loader(data(), batch_size=28, num_workers=num_workers), epochs=999, max_steps=steps):
            found.begin(batch.step)
            if raises == [int(member), batch.step]:
                raise ValueError("a bad sample")
            run.step(batch, lambda micro: F.cross_entropy(net(micro.x), micro.y))
            seen.append([batch.step, found.meeting, run.world.rank, run.world.world_size])
        told = {"seen": seen, "fingerprint": run.fingerprint()}
    Path(out, f"told-{member}.json").write_text(json.dumps(told))
