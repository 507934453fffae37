"""What `make examples` rests on: its plain loop trains the same job, and bits that differ are found."""

import importlib
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
WAYS = {
    "mean": lambda model: {"loss_function": lambda micro: F.cross_entropy(model(micro.x), micro.y)},
    "weighted sum": lambda model: {
        "loss_function": lambda micro: F.cross_entropy(model(micro.x), micro.y, reduction="sum"),
        "weight": lambda micro: 2 + (micro.y > 0).sum(),
        "reduction": "sum",
    },
    "whole batch": lambda model: {
        "loss_function": lambda rows: F.cross_entropy(rows @ rows.T, torch.arange(len(rows))),
        "embed": lambda micro: model(micro.x),
    },
}


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("example_job"), importlib.import_module("play_examples")


@pytest.mark.parametrize("way", WAYS)
def test_the_plain_loop_trains_the_same_job(parts, way):
    """Weights, as a run with one replica leaves them, up to rounding; also with clipping and a schedule."""
    found = []
    for kind in (unisono.Run, parts[0].Plain):
        run = kind(seed=3, replicas=1, clip_norm=0.5)
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        before = model.weight.detach().clone()
        run.prepare(model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5))
        data = unisono.ArrayDataset(torch.arange(24.0).view(6, 4).sin(), torch.tensor([0, 1, 2, 0, 1, 2]))
        for batch in run.steps(run.loader(data, batch_size=6), epochs=4):
            run.step(batch, **WAYS[way](model))
        assert not torch.allclose(before, model.weight, atol=0.05)
        found.append(model.weight.detach())
    torch.testing.assert_close(*found)


def test_bits_that_differ_end_it(parts, tmp_path):
    """Equal runs pass; another fingerprint, or another line of the ledger, ends with the example and the run named."""
    runs = {name: tmp_path / name for name in ("1 workers", "2 workers")}

    def write(name: str, *, fingerprint: str = "f", loss: str = "0x1p0") -> None:
        runs[name].mkdir(exist_ok=True)
        (runs[name] / "result.json").write_text(json.dumps({"fingerprint": fingerprint}))
        (runs[name] / "ledger.jsonl").write_text(json.dumps({"step": 1, "loss": loss}) + "\n")

    for name in runs:
        write(name)
    parts[1].check_equal("vae", runs)
    for changed in ({"fingerprint": "g"}, {"loss": "0x1p1"}):
        write("2 workers", **changed)
        with pytest.raises(SystemExit, match="vae: 2 workers differs from 1 workers"):
            parts[1].check_equal("vae", runs)
