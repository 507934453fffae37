"""What the scripts and tests of both interfaces share; `run` is what a script makes, an Accelerator or a Fabric."""

import torch
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from ranks import run_threads


class Killed(BaseException):
    """What ends a script in the middle of a turn."""


def data(samples: int = 67):
    """Return inputs and classes."""
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(5))
    return TensorDataset(x, (x.sum(dim=1) > 0).long())


def trained_by(classify, folder, ranks, **how):
    """Return what a script returns on every rank, and its ledger."""
    results = run_threads(lambda transport: classify(transport, folder / str(ranks), **how), ranks)
    assert all(result == results[0] for result in results)
    return results[0], (folder / str(ranks) / "ledger.jsonl").read_text()


def turn(run, model, optimizer, batch):
    """Do what a turn of the loop does."""
    run.backward(F.cross_entropy(model(batch[0]), batch[1]))
    optimizer.step()
    optimizer.zero_grad()
