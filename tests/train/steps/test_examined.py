"""Steps of a run are looked at without a bit of it changing."""

import json
import time

import pytest
import torch
from torch.nn import functional as F

import unisono
from unisono.errors import ConfigError, StepError


def train(out, *, loss=None, stream=False, noise=None, **step):
    """Train nine steps of a model with dropout and batch norm; return its ledger and fingerprint."""
    run = unisono.Run(seed=0, replicas=4, out=out)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4)
    )
    model, _ = run.prepare(model, torch.optim.Adam(model.parameters()))
    draws = torch.Generator().manual_seed(1)
    x, y = torch.randn(48, 6, generator=draws), torch.randint(0, 4, (48,), generator=draws)
    data = unisono.ArrayDataset(x, y)
    transform = None if noise is None else lambda sample: (sample[0] + noise * torch.randn(6), sample[1])
    if stream:
        data = unisono.Stream([(x[n], y[n]) for n in range(48)])
    loader = run.loader(data, batch_size=16, transform=transform)
    for batch in run.steps(loader, epochs=3, max_steps=9):
        run.step(batch, loss or (lambda micro: F.cross_entropy(model(micro.x), micro.y)), **step)
    run.close()
    return (out / "ledger.jsonl").read_text(), run.fingerprint()


@pytest.fixture
def asked(monkeypatch, tmp_path):
    def ask(**changed):
        question = {"first": 2, "last": 3, "out": str(tmp_path / "found.jsonl"), "without": [], "show": 1} | changed
        monkeypatch.setenv("UNISONO_EXAMINE", json.dumps(question))
        return tmp_path / "found.jsonl"

    return ask


def test_no_bit_changes(tmp_path, asked):
    """Ledger and weights are those of a run that nobody looks at, in the steps after those looked at too."""
    plain = train(tmp_path / "plain", noise=0.1)
    found = asked(without=[3])
    assert train(tmp_path / "looked", noise=0.1) == plain
    lines = [json.loads(line) for line in found.read_text().splitlines()]
    told = [json.loads(line) for line in plain[0].splitlines()]
    assert [line["step"] for line in lines] == [2, 3]
    assert [line["loss"] for line in lines] == [float.fromhex(line["loss"]) for line in told[1:3]]
    assert all(len(line["samples"]) == 16 and len(line["shown"]) == 1 for line in lines)
    assert len({sample["index"] for line in lines for sample in line["samples"]}) == 32
    assert all(("without" in line) == (3 in [one["index"] for one in line["samples"]]) for line in lines)


def test_a_loss_that_is_another_one_each_time_is_refused(tmp_path, asked):
    """What is computed again is compared, replica by replica: else it would be about another step."""
    asked()
    torch.manual_seed(0)
    weight = torch.nn.Linear(6, 4)

    def loss(micro):
        now = time.perf_counter() if batch.step == 2 else 0.0  # in step 1 it would be refused by the run itself
        return F.cross_entropy(weight(micro.x), micro.y) * (1 + now % 1)  # float32 sees microseconds

    run = unisono.Run(seed=0, replicas=4)
    weight, _ = run.prepare(weight, torch.optim.SGD(weight.parameters(), lr=0.1))
    data = unisono.ArrayDataset(torch.randn(48, 6), torch.arange(48) % 4)
    with pytest.raises(StepError, match="step 2: the loss function, called again with the same weights and samples"):
        for batch in run.steps(run.loader(data, batch_size=16), epochs=1):
            run.step(batch, loss)


def test_what_has_no_single_samples_is_refused(tmp_path, asked):
    """A stream, and a loss over the whole batch; each with what works in its place."""
    asked(first=1)
    with pytest.raises(ConfigError, match=r"the data is a stream.*Hint: unisono replay --step without --detail"):
        train(tmp_path / "stream", stream=True)
    with pytest.raises(ConfigError, match="one over the whole batch"):
        train(tmp_path / "embed", embed=lambda micro: micro.x, loss=lambda rows: rows.sum())


def test_the_debugger_is_left_at_its_replica(tmp_path, asked, monkeypatch):
    """It stops in the loss function of the replica that was asked for, with its data; leaving it ends the run."""
    stops = []

    def stop(debugger, function, micro):
        stops.append((len(micro.y), function(micro).item()))
        return

    monkeypatch.setattr("pdb.Pdb.runcall", stop)
    found = asked(replica=2, first=3, last=3)
    with pytest.raises(SystemExit):
        train(tmp_path / "run")
    assert len(stops) == 1
    told = [json.loads(line) for line in found.read_text().splitlines()]
    assert [(line["step"], line["replica"], line["is_left"]) for line in told] == [(3, 2, False), (3, 2, True)]
