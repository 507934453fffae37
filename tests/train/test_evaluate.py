"""Evaluation: each sample once, the same bits for any number of ranks, the model's mode put back."""

import copy
import functools

import numpy as np
import pytest
import torch
from torch import nn

from ranks import run_threads
from unisono import CheckpointPolicy, Run
from unisono.checkpoint.store import list_steps
from unisono.collectives.loopback import LoopbackTransport
from unisono.data.datasets import ArrayDataset
from unisono.data.loader import Fetcher
from unisono.errors import ConfigError
from unisono.metrics.base import Accuracy, Mean
from unisono.train.evaluate import evaluate

CPU = torch.device("cpu")


def build(num_samples=37):
    """Return a model and a data set."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    data = ArrayDataset(
        torch.randn(num_samples, 6, generator=generator), torch.randint(0, 4, (num_samples,), generator=generator)
    )
    return nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)), data


def judge(transport, *, batch_size=5, num_samples=37, seen=None):
    """Evaluate; return the metrics' bits."""
    torch.set_num_threads(1)
    model, data = build(num_samples)

    def predict(micro):
        if seen is not None:
            seen.append((transport.rank, micro.x))
        return model(micro.x), micro.y

    means = {"accuracy": Accuracy(), "mean": FirstOutput()}
    found = evaluate(model, Fetcher(data, 0), predict, means, transport=transport, device=CPU, batch_size=batch_size)
    return {name: value.hex() for name, value in found.items()}


class FirstOutput(Mean.__base__):
    """The mean of the first output: of floats, so that order could show."""

    def __init__(self):
        self.mean = Mean()
        self.state = self.mean.state

    def update(self, output, target):
        self.mean.state = self.state
        self.mean.update(output[:, 0], target)
        self.state = self.mean.state

    def compute(self):
        self.mean.state = self.state
        return self.mean.compute()


@pytest.mark.parametrize("world_size", [2, 3, 5, 8, 10])
def test_any_world(world_size):
    """All ranks get the very bits of one rank, also where some have no batch."""
    expected = run_threads(judge, 1)[0]
    assert run_threads(judge, world_size) == [expected] * world_size


def test_the_comparison_can_fail():
    """Negative control: other data have other metrics."""
    assert run_threads(judge, 1) != run_threads(lambda transport: judge(transport, num_samples=36), 1)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_each_sample_once(world_size):
    """Batches are whole, in the data set's own order, and every sample is in exactly one, on one rank."""
    seen = []
    run_threads(lambda transport: judge(transport, seen=seen), world_size)
    seen.sort(key=lambda item: item[0])
    assert [len(x) for _, x in seen] == [5] * 7 + [2]
    assert torch.cat([x for _, x in seen]).equal(build()[1].arrays[0])
    assert {rank for rank, _ in seen} == set(range(world_size))


def test_right_numbers():
    """The metrics are those of the whole data set at once."""
    model, data = build()
    model.eval()
    with torch.no_grad():
        output = model(data.arrays[0])
    found = judge(LoopbackTransport())
    assert float.fromhex(found["accuracy"]) == (output.argmax(1) == data.arrays[1]).double().mean().item()
    assert float.fromhex(found["mean"]) == pytest.approx(output[:, 0].double().mean().item(), rel=1e-6)


@pytest.mark.parametrize("fails", [False, True])
def test_modes_are_put_back(fails):
    """Every module has the mode it had before, one by one, also when the prediction fails; weights are untouched."""
    model, data = build()
    model[2].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    def predict(micro):
        assert not any(module.training for module in model.modules())
        assert torch.is_inference_mode_enabled()
        if fails:
            raise ZeroDivisionError
        return model(micro.x), micro.y

    def play():
        metrics = {"accuracy": Accuracy()}
        return evaluate(
            model, Fetcher(data, 0), predict, metrics, transport=LoopbackTransport(), device=CPU, batch_size=8
        )

    if fails:
        with pytest.raises(ZeroDivisionError):
            play()
    else:
        play()
    assert [module.training for module in model] == [True, True, False]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_metrics_start_afresh():
    """What a metric has seen before does not count."""
    model, data = build()
    accuracy = Accuracy()
    accuracy.state = [1000, 1000]
    found = evaluate(
        model, Fetcher(data, 0), lambda micro: (model(micro.x), micro.y), {"accuracy": accuracy},
        transport=LoopbackTransport(), device=CPU, batch_size=5,
    )  # fmt: skip
    assert found["accuracy"].hex() == judge(LoopbackTransport())["accuracy"]
    assert accuracy.state[1] == 37


def test_no_metrics():
    """Nothing to measure is an empty answer on all ranks."""

    def program(transport):
        model, data = build()
        return evaluate(
            model, Fetcher(data, 0), lambda micro: (model(micro.x), micro.y), {},
            transport=transport, device=CPU, batch_size=5,
        )  # fmt: skip

    assert run_threads(program, 2) == [{}, {}]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (lambda model, micro: model(micro.x), "got one Tensor"),
        (lambda model, micro: {"output": 1, "target": 2}, "got one dict"),
        (lambda model, micro: (model(micro.x), micro.y, 3), "got 3 values"),
    ],
)
def test_a_predict_that_returns_no_pair(told, said):
    """It is told what to return; a tensor of two rows is no pair either."""
    model, data = build(2)
    how = {"transport": LoopbackTransport(), "device": CPU, "batch_size": 2}
    with pytest.raises(ConfigError, match=rf"expected \(output, target\) from predict, {said}\. Hint: return model"):
        evaluate(model, Fetcher(data, 0), lambda micro: told(model, micro), {"accuracy": Accuracy()}, **how)


@pytest.mark.parametrize(("best", "steps"), [("test_accuracy", {4, 10, 12}), (None, {10, 12})], ids=str)
def test_the_best_evaluation_is_saved_at_once(best, steps, tmp_path):
    """Between two checkpoints, on all ranks alike; without a metric to go by nothing more is saved."""
    scores = {2: 0.1, 4: 0.9, 6: 0.3, 8: 0.2}

    def program(transport):
        model, data = build()
        policy = CheckpointPolicy(keep=2, best=best, in_background=False)
        with Run(replicas=2, transport=transport, out=tmp_path, checkpoint_every=5, checkpoints=policy) as run:
            model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.steps(run.loader(data, batch_size=12, last="drop"), max_steps=12):
                run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
                if (score := scores.get(batch.step)) is not None:
                    fixed = functools.partial(torch.full, fill_value=score)
                    run.evaluate(data, lambda micro: (fixed(micro.y.shape), micro.y), {"accuracy": Mean()}, name="test")  # noqa: B023

    run_threads(program, 2)
    assert {step for step, _ in list_steps(tmp_path / "checkpoints")} == steps


STARTS = {
    "count": 0, "found": [], "total": torch.zeros(1), "matrix": np.zeros(2), "seen_by": {},
    "size": None, "begun": False,
}  # fmt: skip
"""What a metric may hold beside its state; the last two are found out once, and counted by nobody."""


class Counting(Accuracy.__base__):
    """Counts samples beside its state."""

    def __init__(self, name):
        self.state, self.name = [0], name
        setattr(self, name, copy.deepcopy(STARTS[name]))

    def update(self, output, target):
        self.state[0] += len(target)
        kept, count = getattr(self, self.name), len(target)
        if self.name == "found":
            kept.append(count)
        elif self.name == "seen_by":
            kept[0] = kept.get(0, 0) + count
        elif self.name == "matrix":
            kept += count
        else:
            setattr(self, self.name, {"size": output.shape[1], "begun": True}.get(self.name) or kept + count)

    def compute(self):
        return float(self.state[0])


@pytest.mark.parametrize("name", STARTS)
def test_a_metric_that_counts_beside_its_state(name):
    """Only this rank's samples are in it: refused, whatever it is; what is found out once is not."""
    model, data = build()

    def run():
        return evaluate(
            model, Fetcher(data, 0), lambda micro: (model(micro.x), micro.y), {"own": Counting(name)},
            transport=LoopbackTransport(), device=CPU, batch_size=5,
        )  # fmt: skip

    if name in ("size", "begun"):
        assert run() == {"own": 37.0}
    else:
        with pytest.raises(ConfigError, match=rf"metric 'own' changes its {name} in update\(\).*self\.state"):
            run()


def test_registered_models_are_switched_too():
    """An average of weights is evaluated as the model is, and gets its mode back."""
    model, data = build()
    with Run(seed=0, replicas=2) as run:
        model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run.register("average", average := torch.optim.swa_utils.AveragedModel(model))
        for batch in run.steps(run.loader(data, batch_size=8), epochs=1):
            run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
        modes = []

        def predict(micro):
            modes.append((model.training, average.training, average.module[1].training))
            return average(micro.x), micro.y

        run.evaluate(data, predict, {"accuracy": Accuracy()}, batch_size=8)
        assert {*modes} == {(False, False, False)}
        assert average.training
