"""One small training with any strategy, and what is left of it, as JSON-able values."""

import json
from typing import Any

import torch
from torch import nn

import unisono
from reference import bits
from strategies.conformance import loss_of, mlp
from unisono.collectives.transport import Transport
from unisono.strategies.options import StrategyOptions


def toy_data(num_samples: int = 97) -> unisono.ArrayDataset:
    """Return random inputs with a learnable target."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(num_samples, 64, generator=generator)
    return unisono.ArrayDataset(x, x[:, :10].argmax(1))


def train(
    transport: Transport | None,
    strategy: StrategyOptions,
    *,
    steps: int = 8,
    batch_size: int = 12,
    settle: bool = True,
    scale: float = 1.0,
    lr: float = 0.05,
    build: Any = mlp,
    **settings: Any,
) -> dict[str, Any]:
    """Train for some steps; return this rank's weights (and their hash), losses, bytes sent, and the report."""
    with unisono.Run(seed=0, strategy=strategy, transport=transport or "auto", **settings) as run:
        model: nn.Module = build()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
        loss = loss_of(front)
        losses, state, sent = [], {}, 0
        before = run.transport.bytes_sent
        used = run._prepared().strategy
        for batch in run.steps(run.loader(toy_data(), batch_size=batch_size), epochs=9):
            losses.append(run.step(batch, lambda micro: loss(micro) * scale))
            if batch.step == steps:  # leaving the loop would save, and so settle
                sent = run.transport.bytes_sent - before
                if settle:
                    used.settle()
                state = {name: value.detach().clone() for name, value in model.state_dict().items()}
                break
        return {
            "weights": b"".join(bits(value) for value in state.values()).hex(),
            "values": [number for value in state.values() for number in value.flatten().tolist()],
            "losses": losses,
            "bytes": sent,
            "report": json.loads(json.dumps(used.context.precision.report() | used.report())),
        }
