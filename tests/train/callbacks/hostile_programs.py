"""Callbacks that misbehave, one a program, for ranks in processes of their own (see `test_hostile`)."""

import time

from train.callbacks.small import fit
from unisono.callbacks import Callback


class Sleeps(Callback):
    def on_step_end(self, loop):
        if loop.step == 3 and loop.run.world.rank == 1:
            time.sleep(600)


class MeetsInACondition(Callback):
    """Says that it runs everywhere, and then does not."""

    def on_step_end(self, loop):
        if loop.run.world.rank == 0 and loop.step == 3:
            loop.run.transport.barrier()


class RaisesOnOneRank(Callback):
    def on_step_end(self, loop):
        if loop.step == 3 and loop.run.world.rank == 1:
            raise ZeroDivisionError("divided by hand")


def play(kind: str) -> None:
    """Train with one of them."""
    fit([{"sleeps": Sleeps, "meets": MeetsInACondition, "raises": RaisesOnOneRank}[kind]()], deadline_s=2.0)
