"""What monitors log is right, and the same on all ranks."""

import json

import pytest
import torch

from ranks import run_threads
from train.callbacks.small import data, fit
from unisono.callbacks import (
    Callback,
    GradientMonitor,
    LearningRateMonitor,
    LossAverage,
    MemoryMonitor,
    SamplePredictions,
    warmup_cosine,
)
from unisono.errors import ConfigError


def logged(folder):
    """Return the values of metrics.jsonl by step."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["values"] for line in lines}


def test_learning_rates(tmp_path):
    """Those of the step to come, of every parameter group."""
    fit([LearningRateMonitor()], out=tmp_path, schedule=lambda o: warmup_cosine(o, total_steps=10, warmup_steps=5))
    found = logged(tmp_path)
    assert found[2]["lr/0"] == pytest.approx(0.1 * 3 / 5)
    assert found[4]["lr/0"] == pytest.approx(0.1)


def test_the_average_of_the_loss(tmp_path):
    """The weighted mean of all losses so far, by its definition; after a resume as without one."""
    losses = []

    class Keep(Callback):
        def on_step_end(self, loop):
            losses.append(loop.loss)

    fit([LossAverage(0.5), Keep()], out=tmp_path / "whole")
    whole = {step: values["train/loss_ema"] for step, values in logged(tmp_path / "whole").items()}
    for step, found in whole.items():
        weights = [0.5 ** (step - number) for number in range(1, step + 1)]
        expected = sum(w * loss for w, loss in zip(weights, losses, strict=False)) / sum(weights)
        assert found == pytest.approx(expected, rel=1e-12)
    fit([LossAverage(0.5)], epochs=1, out=tmp_path / "parts")
    fit([LossAverage(0.5)], epochs=2, out=tmp_path / "parts")
    assert {step: values["train/loss_ema"] for step, values in logged(tmp_path / "parts").items()} == whole
    with pytest.raises(ConfigError, match="decay"):
        LossAverage(1.0)


def test_gradient_and_weight_norms(tmp_path):
    """Overall and by parameter: those of the model as it stands after the step."""
    kept = {}

    class Look(Callback):
        def on_step_end(self, loop):
            if loop.step == 4:
                for kind in ("weight", "gradient"):
                    each = [p.detach() if kind == "weight" else p.grad for p in loop.model.parameters()]
                    kept[kind] = torch.cat([tensor.reshape(-1) for tensor in each]).norm().item()
                    kept[f"{kind} of bias"] = each[1].norm().item()

    fit([GradientMonitor(every=4, by_parameter=True), Look()], out=tmp_path, epochs=1)
    found = logged(tmp_path)
    assert "gradient_norm" not in found[2]
    assert found[4]["weight_norm"] == pytest.approx(kept["weight"], rel=1e-6)
    assert found[4]["gradient_norm"] == pytest.approx(kept["gradient"], rel=1e-6)
    assert found[4]["gradient_norm/0.bias"] == pytest.approx(kept["gradient of bias"], rel=1e-6)
    assert found[4]["gradient_to_weight"] == pytest.approx(kept["gradient"] / kept["weight"], rel=1e-6)
    with pytest.raises(ConfigError, match="every as a whole number of steps from 1"):
        GradientMonitor(0)


def test_memory(tmp_path):
    """The peak of this process, in MiB."""
    fit([MemoryMonitor()], out=tmp_path, epochs=1)
    assert 50 < logged(tmp_path)[5]["memory_peak_mib"] < 100_000


def test_sample_predictions():
    """The leader alone sees outputs of the chosen samples, in evaluation mode; modes are put back."""

    def program(transport):
        seen = []

        def show(loop, output, target):
            seen.append([loop.step, list(output.shape), target.tolist(), loop.model.training])

        samples = SamplePredictions(data(), [3, 0, 9], show)
        fit([samples], transport=transport)
        return seen

    targets = data().arrays[1][[3, 0, 9]].tolist()
    assert run_threads(program, 2) == [[[5, [3, 4], targets, True], [10, [3, 4], targets, True]], []]
