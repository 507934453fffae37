"""Sharded trainings beside exact ones, for ranks in processes."""

import hashlib
from typing import Any

import torch
from torch import nn

import unisono
from ranks import join
from reference import bits
from strategies.conformance import loss_of
from strategies.strategy_runs import toy_data
from unisono.collectives.transport import Transport
from unisono.strategies.sharded.fsdp import FSDP


def model_of() -> nn.Module:
    """Return a model with batch statistics, dropout, and sizes that divide unevenly."""
    return nn.Sequential(
        nn.Linear(64, 33), nn.BatchNorm1d(33), nn.ReLU(), nn.Sequential(nn.Linear(33, 48), nn.Dropout(0.2)),
        nn.ReLU(), nn.Linear(48, 10),
    )  # fmt: skip


class Cast(nn.Module):
    """Let a model of another dtype have float32 inputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.dtype)


def leg(
    transport: Transport | None, strategy: str, steps: int, *, out: str | None = None, clip: float | None = None,
    clip_value: float | None = None, samples: int = 93, dtype: torch.dtype | None = None, kind: str = "AdamW",
    **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train to a step, four replicas, and say what is there."""
    chosen = unisono.strategy(strategy, **options)
    with unisono.Run(
        seed=0, replicas=4, strategy=chosen, out=out, clip_norm=clip, clip_value=clip_value,
        transport=transport or "auto", checkpoint_every=4,
    ) as run:  # fmt: skip
        model = nn.Sequential(Cast(dtype), model_of().to(dtype)) if dtype else model_of()
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=3e-3)
        front, optimizer = run.prepare(model, optimizer)
        losses = [
            run.step(batch, loss_of(front)).hex()
            for batch in run.steps(run.loader(toy_data(samples), batch_size=16), epochs=9, max_steps=steps)
        ]
        used = run._prepared().strategy
        kept = used.state_bytes() if isinstance(used, FSDP) else 0
        used.settle()  # once more: after a resume, too, all ranks must gather in one order
        moments = hashlib.sha256()
        for name, value in sorted(run._prepared().pack().tensors["optimizer"].items()):
            moments.update(name.encode() + bits(value))
        return {
            "fingerprint": run.result()["fingerprint"],
            "losses": losses,
            "bytes": kept,
            "moments": moments.hexdigest(),
        }


def compare(transport: Transport | None, out: str) -> dict[str, Any]:
    """Train with both strategies, with and without clipping and groups; then halfway into a run directory."""
    joined = join(transport)
    found = {
        name: [leg(transport, strategy, 8, **settings) for strategy in ("exact", "fsdp")]
        for name, settings in {
            "plain": {},
            "clip": {"clip": 0.05},
            "value": {"clip_value": 1e-3},
            "double": {"dtype": torch.float64},
            "bf16": {"dtype": torch.bfloat16},
            "adagrad": {"kind": "Adagrad"},  # its state is there before the first step
        }.items()
    }
    found["wrap"] = [found["plain"][0], leg(transport, "fsdp", 8, wrap=("Linear",))]
    found["half"] = [leg(transport, "fsdp", 4, out=out)]
    joined.barrier()
    return found


def resume(transport: Transport | None, out: str) -> dict[str, Any]:
    """Go on with a run directory."""
    joined = join(transport)
    found = leg(transport, "fsdp", 8, out=out)
    joined.barrier()
    return found
