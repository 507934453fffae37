"""Several models and optimizers by name: what does not fit is refused before anything has started, each with a way."""

import json
import re
import warnings

import pytest
import torch
from torch import nn

import unisono
from unisono.errors import ConfigError


def game():
    torch.manual_seed(0)  # else a run warns, in a process where nothing has been seeded yet
    models = {"G": nn.Linear(3, 2), "D": nn.Linear(2, 1)}
    return models, {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()}


def decay(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 3)


def shared(models, optimizers):
    both = [*models["G"].parameters(), *models["D"].parameters()]
    return models, {**optimizers, "both": torch.optim.SGD(both, lr=0.1)}, None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m, o: (m, o["G"], None), "optimizers by name, as the others are, got SGD. Hint: run.prepare("),
        (lambda m, o: (m["G"], o, None), "models by name, as the others are, got Linear. Hint: run.prepare("),
        (lambda m, o: ({}, o, None), "models by name, as the others are, got dict"),
        (lambda m, o: (m, {}, None), "optimizers by name, as the others are, got dict"),
        (shared, "shape (2, 3) is in the optimizers 'G' and 'both', which would both move it. Hint: leave it to one"),
        (lambda m, o: ({**m, "H": m["G"]}, o, None), "'G' and 'H' are the same model. Hint: leave one of them out"),
        (lambda m, o: ({"D.0": m["D"]}, o, None), "names of models that are Python's and no attribute"),
        (lambda m, o: ({"train": m["D"], **m}, o, None), "torch.nn.Module, got 'train'. Hint: 'D', 'critic'"),
        (lambda m, o: ({1: m["D"]}, o, None), "got 1. Hint: 'D'"),
        (lambda m, o: ({**m, "D": 3}, o, None), "expected the model as a torch.nn.Module, got int"),
        (lambda m, o: (m, {**o, "": o["D"]}, None), "names of optimizers as texts, got ''"),
        (lambda m, o: (m, {**o, "D": 3}, None), "expected the optimizer as a torch.optim.Optimizer, got int"),
        (lambda m, o: ({"G": m["G"]}, o, None), "2 of 4 parameters that the model does not have"),
        (lambda m, o: (m, o, {"C": decay(o["G"])}), "schedulers by the names of optimizers, ['D', 'G'], got ['C']"),
        (lambda m, o: (m, o, decay(o["G"])), "names of optimizers, ['D', 'G'], got StepLR. Hint: {'D': ...}"),
        (lambda m, o: (m, o, {"D": decay(o["G"])}), "the scheduler 'D' moves the optimizer 'G'. Hint: give it that"),
        (lambda m, o: (m, o, {"D": 3}), "a scheduler with step() and state_dict(), got int"),
        (lambda m, o: (m, o, None, {"C": 1.0}), "clip_norm by the names of optimizers, ['D', 'G'], got ['C']"),
        (lambda m, o: (m, o, None, 1.0), "clip_norm by the names of optimizers, ['D', 'G'], got float"),
        (lambda m, o: (m, o, None, {"D": -1.0}), "clip_norm"),
        (lambda m, o: (m["G"], o["G"], None, {"G": 1.0}), "one model with one optimizer has no names, and Run(clip_n"),
        (lambda m, o: (m, {**o, "D": torch.optim.LBFGS(m["D"].parameters())}, None), "LBFGS"),
    ],
)
def test_what_does_not_fit_is_refused(change, said):
    """Each is named, with what to write; then a right call is taken."""
    models, optimizers = game()
    with unisono.Run(replicas=1) as run:
        model, optimizer, scheduler, *limits = change(*game())
        with pytest.raises(ConfigError, match=re.escape(said)):
            run.prepare(model, optimizer, scheduler, clip_norm=limits[0] if limits else None)
        run.prepare(models, optimizers, {"G": decay(optimizers["G"])}, clip_norm={"D": 1.0})
        with pytest.raises(ConfigError, match=r"a second time.*in one call, by name: run\.prepare"):
            run.prepare(*game())


@pytest.mark.parametrize(
    "strategy", ["ddp", "fsdp", "allreduce", "pipeline", unisono.strategy("exact", island_steps=2)]
)
def test_other_strategies_name_the_way(strategy):
    """Only exact trains several; the message says what to leave out, and what else to do."""
    with (
        unisono.Run(replicas=2, strategy=strategy) as run,
        pytest.raises(ConfigError, match=r"by strategy exact alone, got .*Hint: leave it out; or put the models into"),
    ):
        run.prepare(*game())


def test_the_trainer_names_the_loop():
    """It trains one model; several need a loop of their own."""
    with unisono.Run() as run, pytest.raises(ConfigError, match=r"got several by name\. Hint: run\.prepare and a loop"):
        unisono.Trainer(run, *game(), loss=nn.MSELoss())


def test_only_models_that_learn_have_idle_parameters():
    """A model none of whose parameters has an optimizer is a teacher; one that learns in part is warned of."""
    models, optimizers = game()
    with warnings.catch_warnings(), unisono.Run() as run:
        warnings.simplefilter("error")
        run.prepare({**models, "teacher": nn.Linear(2, 2)}, optimizers)
    optimizers["D"] = torch.optim.SGD([models["D"].weight], lr=0.1)
    with unisono.Run() as run, pytest.warns(UserWarning, match=r"1 trainable parameters are in no group .*: D\.bias"):
        run.prepare(models, optimizers)


def test_names_and_limits_are_part_of_the_score(tmp_path):
    """Classes of models, optimizers with schedule and limit, by name: a directory refuses to go on with others."""
    x = torch.arange(24.0).view(8, 3).numpy()

    def play(limit, **more):
        with unisono.Run(replicas=2, out=tmp_path, clip_norm=5.0) as run:
            models, optimizers = game()
            run.prepare(models, optimizers, {"G": decay(optimizers["G"])}, clip_norm={"D": limit})
            for batch in run.steps(run.loader(unisono.ArrayDataset(x, x[:, 0]), batch_size=4), epochs=1, **more):
                run.step(batch, lambda micro: models["D"](models["G"](micro.x)).mean(), update="D")

    play(1.0, max_steps=1)
    score = json.loads((tmp_path / "score.json").read_text())
    assert score["model"]["class"] == {"G": "Linear", "D": "Linear"}
    assert {name: each["clip_norm"] for name, each in score["optimizers"].items()} == {"G": 5.0, "D": 1.0}
    assert [score["optimizers"][name]["scheduler"] for name in ("G", "D")] == ["StepLR", None]
    assert "optimizer" not in score
    with pytest.raises(unisono.ScoreMismatch, match=r"optimizers\.D\.clip_norm: 1\.0 -> 2\.0"):
        play(2.0)
    play(1.0)


def test_updates_count_alike():
    """A weight in one of two updates is refused; the hint's, samples, leaves the bits of the other as they were."""
    x = torch.arange(24.0).view(8, 3).numpy() / 24

    def play(*weights):
        with unisono.Run(replicas=3) as run:
            models, optimizers = game()
            run.prepare(models, optimizers)
            for batch in run.steps(run.loader(unisono.ArrayDataset(x, x[:, 0]), batch_size=4), epochs=1):
                for name, weight in zip("DG", weights, strict=True):
                    loss = lambda micro: models["D"](models["G"](micro.x)).square().mean()  # noqa: E731
                    run.step(batch, loss, update=name, weight=weight)
            return run.fingerprint()

    samples = lambda micro: len(micro.x)  # noqa: E731
    with pytest.raises(unisono.ScoreMismatch, match=re.escape("weight=lambda micro: len(micro.x)), or another")):
        play(samples, None)
    assert play(samples, samples) == play(None, None)
    assert play(lambda micro: micro.y.abs().sum(), samples) != play(None, None)
