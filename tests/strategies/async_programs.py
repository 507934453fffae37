"""Trainings with the asynchronous server, for ranks in processes of their own."""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch

import unisono
from ranks import join
from strategies.conformance import loss_of, mlp
from strategies.strategy_runs import toy_data, train
from unisono.collectives.transport import Transport
from unisono.metrics.base import Accuracy


def hold_back(seconds: float) -> None:
    """Make this rank slow, as one that waits for its data; the others keep their cores."""
    threading.Event().wait(seconds)


def bounded(transport: Transport | None) -> dict[str, Any]:
    """Train with a slow worker under several bounds; and synchronously, in both ways."""
    joined = join(transport)
    found: dict[str, Any] = {}
    for bound in (0, 1, 3):
        with unisono.Run(strategy=unisono.strategy("ps_async", max_staleness=bound)) as run:
            model = mlp()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.02))
            loss = loss_of(front)
            for batch in run.steps(run.loader(toy_data(), batch_size=12), epochs=4):
                if joined.rank == 2:
                    hold_back(0.04)
                run.step(batch, loss)
            found[f"staleness {bound}"] = run.result().get("staleness", {})
    found["zero"] = train(None, unisono.strategy("ps_async", max_staleness=0))["weights"]
    found["ps"] = train(None, unisono.strategy("ps"))["weights"]
    joined.barrier()
    return found


def lose(lost: int, folder: str) -> None:
    """Train; the rank `lost` kills itself in its fifth step; the others write down how it ended."""
    rank = int(os.environ["RANK"])
    try:
        with unisono.Run(strategy=unisono.strategy("ps_async", timeout_s=60), out=f"{folder}/run") as run:
            model = mlp()
            front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05))
            loss = loss_of(front)
            for batch in run.steps(run.loader(toy_data(), batch_size=12), epochs=3):
                if batch.step == 5 and rank == lost:
                    os.kill(os.getpid(), signal.SIGKILL)
                run.step(batch, loss)
            scores = run.evaluate(toy_data(), lambda micro: (front(micro.x), micro.y), {"accuracy": Accuracy()})
            Path(folder, f"{rank}.json").write_text(json.dumps({"result": run.result(), "scores": scores}))
    except Exception as error:
        Path(folder, f"{rank}.json").write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
        raise


if __name__ == "__main__":
    lose(int(sys.argv[1]), sys.argv[2])
