"""A loop of a program's own that records, as ranks and as a process run it."""

import os
import signal
import sys
from typing import Any

import torch
from torch.nn import functional as F

import unisono


def play(transport: Any, out: str, kill: int = 0) -> str:
    """Train ten steps, checkpoints after every third; before the update of step `kill` the process ends, as by -9."""
    generator = torch.Generator().manual_seed(0)
    data = unisono.ArrayDataset(
        torch.randn(40, 6, generator=generator), torch.randint(0, 4, (40,), generator=generator)
    )
    with unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=3, transport=transport or "auto") as run:
        model = torch.nn.Linear(6, 4)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))

        def score(name: str) -> None:
            run.evaluate(data, lambda micro: (model(micro.x), micro.y), {"accuracy": unisono.Accuracy()}, name=name)

        for batch in run.steps(run.loader(data, batch_size=8), epochs=2):
            if batch.step % 3 == 1:
                score("now")  # with the weights of the step before, whose line may be in the file
            if batch.step == kill:
                os.kill(os.getpid(), signal.SIGKILL)
            loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            run.record(my_loss=loss, rank=run.world.rank)
            if batch.step % 4 == 0 and run.world.is_leader:
                run.record(leaders=batch.step)
        score("end")
        return run.fingerprint()


if __name__ == "__main__":
    play(None, sys.argv[1], **{name: int(value) for name, value in (each.split("=") for each in sys.argv[2:])})
