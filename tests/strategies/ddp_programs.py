"""DDP by hand beside the strategy, for ranks in processes."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import unisono
from ranks import join
from strategies.conformance import loss_of
from strategies.ddp_knobs import KNOBS
from strategies.strategy_runs import toy_data
from unisono.collectives.transport import Transport
from unisono.data.sampler import ExactSampler
from unisono.determinism.switches import set_determinism
from unisono.strategies.ddp import join_alone


def model_of() -> nn.Module:
    """Return a model with batch statistics, always the same."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


def by_hand(rank: int, world_size: int, steps: int, accumulate: int, hook: Any = None) -> dict[str, Tensor]:
    """Train with DDP as its documentation shows."""
    model = model_of()
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    if hook is not None:
        ddp.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    data, sampler = toy_data(96), ExactSampler(96, 16, world_size * accumulate, seed=0)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        parts = sampler.micro_batches(step)[rank * accumulate : (rank + 1) * accumulate]
        for number, part in enumerate(parts, start=1):
            x, y = data.fetch_micro_batch(part)
            if number < len(parts):
                with ddp.no_sync():
                    (F.cross_entropy(ddp(x), y) / accumulate).backward()
            else:
                (F.cross_entropy(ddp(x), y) / accumulate).backward()
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def by_strategy(transport: Transport | None, steps: int, lr: float = 0.05, **options: Any) -> dict[str, Tensor]:
    """Train with the strategy."""
    with unisono.Run(seed=0, strategy=unisono.strategy("ddp", **options), transport=transport or "auto") as run:
        model = model_of()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
        for batch in run.steps(run.loader(toy_data(96), batch_size=16), epochs=9, max_steps=steps + 1):
            run.step(batch, loss_of(front))
            if batch.step == steps:  # before buffers are settled
                return {name: value.clone() for name, value in model.state_dict().items()}
    raise AssertionError


def compare(transport: Transport | None) -> dict[str, Any]:
    """Say for every knob whether the weights (and on rank 0 the buffers too) are those made by hand."""
    set_determinism(1)  # as a run does
    joined = join(transport)
    alone = join_alone(joined)
    try:
        found = {}
        for name, (options, hook) in KNOBS.items():
            expected = by_hand(joined.rank, joined.world_size, 7, options.get("accumulate", 1), hook)
            got = by_strategy(transport, 7, **options)
            found[name] = all(torch.equal(expected[key], got[key]) for key in expected)
        other = by_strategy(transport, 7, lr=0.0500001)
        plain = by_hand(joined.rank, joined.world_size, 7, 1)
        found["control"] = not all(torch.equal(plain[key], other[key]) for key in plain)
        return found
    finally:
        if alone:
            torch.distributed.destroy_process_group()
