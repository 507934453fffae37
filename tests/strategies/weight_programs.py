"""Trainings whose loss is a mean over tokens, as programs that ranks run; see `test_objective`."""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from ranks import join
from unisono.errors import UnisonoError

REPLICAS, BATCH, SAMPLES, LENGTH, IGNORED = 5, 24, 60, 7, -100


def tokens(first_is_empty: bool = True) -> unisono.ArrayDataset:
    """Return rows of inputs with targets for 0 to 7 places of each; unshuffled, replica 1 of step 1 has no target."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, LENGTH, 6, generator=generator)
    y = torch.randint(4, (SAMPLES, LENGTH), generator=generator)
    counts = torch.randint(LENGTH + 1, (SAMPLES, 1), generator=generator)
    y[torch.arange(LENGTH) >= counts] = IGNORED
    if first_is_empty:
        y[5:10] = IGNORED
    return unisono.ArrayDataset(x, y)


class Tagger(nn.Module):
    """A class for each place."""

    def __init__(self, *, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.embed, self.classify = nn.Linear(6, 16), nn.Linear(16, 4)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores (n * places, classes)."""
        hidden = self.dropout(self.norm(torch.tanh(self.embed(x.flatten(0, 1)))))
        return self.classify(hidden)


def counted(micro: Any) -> Tensor:
    """Return the number of targets."""
    return (micro.y != IGNORED).sum()


def loss_of(model: nn.Module, reduction: str) -> Any:
    """Return the usual loss: NaN for a mean over nothing."""
    return lambda micro: F.cross_entropy(model(micro.x), micro.y.flatten(), ignore_index=IGNORED, reduction=reduction)


def train(
    transport: Any, *, weight: Any = counted, reduction: str = "mean", strategy: Any = "exact", steps: int = 5,
    out: str | None = None, dataset: Any = None, loss: Any = None, model: dict[str, Any] | None = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Train and return losses, fingerprint, the first step's gradient and the batch norm's running mean after it."""
    found: dict[str, Any] = {"losses": []}
    settings = {"seed": 0, "replicas": REPLICAS, **settings}
    with unisono.Run(transport=transport or "auto", out=out, strategy=strategy, **settings) as run:
        net = Tagger(**({"dropout": 0.2, "norm": True} if model is None else model))
        front, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9))
        loader = run.loader(dataset or tokens(), batch_size=BATCH, shuffle=False)
        for batch in run.steps(loader, epochs=3, max_steps=steps):
            function = (loss or loss_of)(front, reduction)
            found["losses"].append(run.step(batch, function, weight=weight, reduction=reduction).hex())
            if batch.step == 1:
                found["grads"] = [
                    [] if p.grad is None or run.strategy.is_sharded else p.grad.flatten().tolist()
                    for p in net.parameters()
                ]
                found["running"] = net.norm.running_mean.tolist() if isinstance(net.norm, nn.BatchNorm1d) else []
        found["fingerprint"] = run.fingerprint()
    return found


def one_batch(weights: Any, *, num_samples: int = BATCH) -> tuple[float, list[list[float]]]:
    """Return loss and gradients of a plain step over the whole batch: the mean over what is counted."""
    torch.manual_seed(0)
    net, data = Tagger(), tokens()
    x, y = (array[:num_samples] for array in data.arrays)
    each = F.cross_entropy(net(x), y.flatten(), ignore_index=IGNORED, reduction="none")
    loss = (each * weights(x, y).flatten()).sum() / weights(x, y)[y != IGNORED].sum()
    loss.backward()
    return loss.item(), [p.grad.flatten().tolist() for p in net.parameters() if p.grad is not None]


def same_everywhere(transport: Any) -> dict[str, Any]:
    """Train in all ways that must have the same bits on any number of ranks."""
    rank = join(transport).rank
    weights = {"odd": lambda micro: (7.0, 0.0, 31.0, 1e-3, 1e6)[int(counted(micro)) % 5]}
    ways: dict[str, dict[str, Any]] = {
        "mean": {}, "sum": {"reduction": "sum"}, "plain sum": {"reduction": "sum", "weight": None},
        "odd": {"weight": weights["odd"], "loss": lambda model, _: lambda m: model(m.x).square().mean()},
    }  # fmt: skip
    found = {name: train(transport, **way) for name, way in ways.items()}
    return {name: [report["fingerprint"], report["losses"]] for name, report in found.items()} | {"rank": rank}


def ledgers(transport: Any, reduction: str = "mean", **settings: Any) -> list[dict[str, Any]]:
    """Return the ledger's lines and the score of a training with a run directory."""
    joined = join(transport)
    with tempfile.TemporaryDirectory() as folder:
        out = joined.all_gather_json(folder)[0]
        train(transport, reduction=reduction, out=f"{out}/run", **settings)
        joined.barrier()
        lines = [json.loads(line) for line in Path(out, "run/ledger.jsonl").read_text().splitlines()]
        score = json.loads(Path(out, "run/score.json").read_text())
        joined.barrier()
    return [*lines, score]


def refused(transport: Any, weight: Any, **settings: Any) -> str:
    """Return the error that a training with such weights ends with."""
    try:
        train(transport, weight=weight, **settings)
    except UnisonoError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def over_processes(transport: Any) -> dict[str, Any]:
    """Train over processes: what must have one process's bits, and what only rounding may part from it."""
    exact = train(transport)
    report: dict[str, Any] = {"exact": exact["fingerprint"], "loss": exact["losses"]}
    for name in ("auto", "gloo"):
        found = train(name, strategy=unisono.strategy("exact", overlap="on"))
        report[f"overlap {name}"] = found["fingerprint"]
    model = {"dropout": 0.0, "norm": False}
    for name in ("fsdp", "ddp", "allreduce"):
        found = train(transport, strategy=name, model=model, reduction="sum" if name == "allreduce" else "mean")
        report[name] = [found["losses"], found["grads"], found["fingerprint"]]
    report["plain"] = train(transport, model=model)["fingerprint"]
    return report


def far(mine: list[list[float]], theirs: list[list[float]]) -> float:
    """Return how far gradients are from others, relative to their norm."""
    own, other = (torch.tensor([value for part in parts for value in part]).double() for parts in (mine, theirs))
    return ((own - other).norm() / other.norm()).item()
