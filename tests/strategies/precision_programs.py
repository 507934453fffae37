"""Small trainings under autocast, as programs that ranks run: what must not depend on who computes it."""

import contextlib
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.collectives.transport import Transport
from unisono.strategies.catalog import find

PLANTED = 11  # the sample whose gradient does not fit into float16 under a large scale


def data(planted: float = 1.0, num_samples: int = 30) -> unisono.ArrayDataset:
    """Return inputs, a target that can be learned, and weights, all 1 but one."""
    x = torch.randn(num_samples, 64, generator=torch.Generator().manual_seed(0))
    weights = torch.ones(num_samples)
    weights[PLANTED] = planted
    return unisono.ArrayDataset(x, x[:, :10].argmax(1), weights)


def model_of() -> nn.Module:
    """Return layers that autocast computes in 16 bits, and one that draws."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 10))


def loss_of(model: nn.Module, micro: Any) -> Tensor:
    """Return the weighted mean."""
    x, y, weights = micro
    return (F.cross_entropy(model(x), y, reduction="none") * weights).mean()


def play(
    transport: Transport | None, precision: str, strategy: str = "exact", options: dict[str, Any] | None = None,
    planted: float = 1.0, replicas: int | None = 4, out: str | None = None, steps: int = 14, lr: float = 0.1,
) -> dict[str, Any]:  # fmt: skip
    """Train some steps and evaluate; return all that must be equal."""
    warnings.filterwarnings("ignore", message="the run ends .* after its islands have met")
    joined = [] if transport is None else [transport]
    with contextlib.ExitStack() as stack:
        if out is None and (transport is None or transport.rank == 0):
            scratch = stack.enter_context(tempfile.TemporaryDirectory())
        else:
            scratch = ""
        chosen = out or (joined[0].all_gather_json(scratch)[0] if joined else scratch)
        how: dict[str, Any] = {"clip_norm": 2.0, "checkpoint_every": 5, "transport": transport or "auto"}
        how |= {"strategy": find(strategy, options or {}), "out": chosen if joined else out}
        run = stack.enter_context(unisono.Run(replicas=replicas, precision=precision, **how))
        model = model_of()
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
        losses = [
            run.step(batch, lambda micro: loss_of(front, micro)).hex()
            for batch in run.steps(run.loader(data(planted), batch_size=24), epochs=9, max_steps=steps)
        ]
        dtypes = set()

        def predict(micro: Any) -> tuple[Tensor, Tensor]:
            output = front(micro[0])
            dtypes.add(str(output.dtype))
            return output, micro[1]

        metrics = run.evaluate(data(), predict, {"accuracy": unisono.Accuracy(), "rows": _Rows()})
        ledger = Path(chosen, "ledger.jsonl").read_text() if chosen and run.world.is_leader and joined else ""
        return {
            "losses": losses, "metrics": metrics, "ledger": ledger, "fingerprint": run.fingerprint(),
            "scale": run.precision.scale, "skipped": run.result().get("skipped_steps"), "dtypes": sorted(dtypes),
        }  # fmt: skip


def play_both(transport: Transport | None, planted: float) -> list[dict[str, Any]]:
    """Train with the two strategies whose ranks must be processes."""
    return [
        play(transport, "fp16", "ddp", {"find_unused_parameters": True}, planted, None),
        play(transport, "fp16", "fsdp", {}, planted),
    ]


class _Rows(unisono.Mean):
    """The mean of the outputs, which must arrive in float32."""

    def update(self, output: Tensor, target: Tensor) -> None:
        """Take the mean of each row."""
        assert output.dtype == torch.float32
        super().update(output.mean(dim=1), target)
