"""ignite: ``idist.Parallel`` with ``auto_model``, ``auto_dataloader``, an engine and metrics on two ranks."""

import logging
import sys

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from recorded import record
from torch.nn import functional as F
from torch.utils.data import TensorDataset


def train(local_rank: int, folder: str) -> None:
    """Train an epoch, evaluate, and use the collectives."""
    torch.manual_seed(1)
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(40, 8, generator=draw)
    data = TensorDataset(x, x[:, :3].argmax(1))
    model = idist.auto_model(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3)))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    loader = idist.auto_dataloader(data, batch_size=10, shuffle=True)
    trainer = create_supervised_trainer(model, optimizer, F.cross_entropy, device=idist.device())
    metrics = {"accuracy": Accuracy(), "loss": Loss(F.cross_entropy)}
    evaluator = create_supervised_evaluator(model, metrics, device=idist.device())
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda engine: loader.sampler.set_epoch(engine.state.epoch))
    trainer.run(loader, max_epochs=1)
    evaluator.run(idist.auto_dataloader(data, batch_size=10))
    group = idist.new_group([0, 1])
    seen = {
        "metrics": {name: float(value) for name, value in evaluator.state.metrics.items()},
        "world": [idist.get_world_size(), idist.get_rank(), idist.get_nproc_per_node(), idist.get_nnodes()],
        "sum": idist.all_reduce(torch.tensor([idist.get_rank() + 1]), group=group),
        "gathered": idist.all_gather({"rank": idist.get_rank()}),
        "told": idist.broadcast("from 1" if idist.get_rank() == 1 else None, src=1, safe_mode=True),
    }
    idist.barrier()
    record(folder, model.module, seen)


if __name__ == "__main__":
    logging.disable(logging.INFO)
    with idist.Parallel(backend="gloo") as parallel:
        parallel.run(train, sys.argv[1])
