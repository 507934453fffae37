"""Weights from a file that only the leader can read: on all ranks, or on none."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from train.conftest import build_batch_norm, build_mlp
from unisono.callbacks import EMA
from unisono.checkpoint.format import fingerprint


@pytest.fixture
def saved(tmp_path):
    """A file of weights, and their fingerprint."""
    model = build_batch_norm()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.add_(1)
    torch.save(model.state_dict(), tmp_path / "x.pt")
    return tmp_path / "x.pt", fingerprint(model)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_leader_reads_and_all_receive(saved, ranks):
    """The other ranks never look at the path; prepared or not, every model holds the weights; names are told."""
    path, expected = saved

    def program(transport):
        with unisono.Run(replicas=3, transport=transport) as run:
            model, other = build_batch_norm(), build_batch_norm()
            mine = path if run.world.is_leader else path.with_name("nowhere.pt")
            found = run.load_weights(mine, model)
            assert (found.missing, found.unexpected, found.prefix) == ((), (), "")
            run.prepare(other, sgd(other))
            run.load_weights(mine)
            return [fingerprint(model), fingerprint(other), run._prepared().description["model"]["initial_weights"]]

    assert run_threads(program, ranks) == [[expected, expected, expected[:16]]] * ranks


def test_what_does_not_fit_changes_no_rank(saved, tmp_path):
    """A file that cannot be read, or does not fit, is an error on every rank, and no model has changed."""
    torch.save({"0.weight": torch.ones(8, 6)}, tmp_path / "part.pt")

    def program(transport):
        heard = []
        with unisono.Run(replicas=2, transport=transport) as run:
            model = build_batch_norm()
            before = fingerprint(model)
            for path in (tmp_path / "none.pt", tmp_path / "part.pt"):
                try:
                    run.load_weights(path, model)
                except unisono.UnisonoError as error:
                    heard.append(str(error))
            assert fingerprint(model) == before
            found = run.load_weights(tmp_path / "part.pt", model, strict=False)
            return [heard, list(found.missing)[:1], float(model[0].weight.detach().sum())]

    for heard, missing, total in run_threads(program, 2):
        assert len(heard) == 2
        assert "where nothing is" in heard[0]
        assert "does not fit Sequential: missing 0.bias" in heard[1]
        assert missing == ["0.bias"]
        assert total == 48


def test_loaded_by_the_leader_alone(saved):
    """Weights below an ``if`` on the rank: refused before the first step, with the line to write instead."""

    def program(transport):
        with unisono.Run(replicas=2, transport=transport) as run:
            model = build_batch_norm()
            if run.world.is_leader:
                unisono.load_weights(model, saved[0])
            with pytest.raises(unisono.RankDivergence, match=r"run\.load_weights\(path, model\) on all ranks"):
                run.prepare(model, sgd(model))
        return True

    assert run_threads(program, 2) == [True, True]


def test_models_that_differ_are_found(saved, tmp_path):
    """Where a rank holds other weights that the file does not have, all hear of it."""
    torch.save({"0.weight": torch.ones(8, 6)}, tmp_path / "part.pt")

    def program(transport):
        with unisono.Run(replicas=2, transport=transport) as run:
            model = build_mlp()
            with torch.no_grad():
                model[2].bias.fill_(transport.rank)
            with pytest.raises(unisono.RankDivergence, match=r"rank 0 and rank 1 hold different weights after"):
                run.load_weights(tmp_path / "part.pt", model, strict=False)
        return True

    assert run_threads(program, 2) == [True, True]


def test_loaded_weights_are_the_same_as_loaded_by_each(saved, toy, tmp_path):
    """A training from them has the bits, and the score, of one in which each rank reads the file itself."""
    path, _ = saved

    def play(out, load, prepared):
        with unisono.Run(replicas=4, out=out) as run:
            model = build_batch_norm()
            if not prepared:
                load(run, model)
            run.prepare(model, sgd(model))
            if prepared:
                load(run, model)
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            return run.fingerprint(), json.loads((out / "score.json").read_text())

    expected = play(tmp_path / "a", lambda run, model: unisono.load_weights(model, path), False)
    assert play(tmp_path / "b", lambda run, model: run.load_weights(path, model), False) == expected
    assert play(tmp_path / "c", lambda run, model: run.load_weights(path), True) == expected
    assert play(tmp_path / "d", lambda run, model: None, False)[0] != expected[0]  # control


def test_where_it_would_come_too_late(saved, toy):
    """Without a model, after the first step, or where an average or a shard holds copies: refused, with the way out."""
    path, _ = saved
    with unisono.Run(replicas=2) as run:
        with pytest.raises(unisono.ConfigError, match=r"run\.prepare\(model, optimizer\) first"):
            run.load_weights(path)
        model = build_batch_norm()
        trainer = unisono.Trainer(run, model, sgd(model), loss=nn.CrossEntropyLoss(), callbacks=[EMA()])
        with pytest.raises(
            unisono.ConfigError, match=r"'callback/EMA' may hold copies.*run\.load_weights\(path, model\)"
        ):
            run.load_weights(path)
        trainer.fit(toy.data, epochs=1, batch_size=12, show_progress=False, max_steps=1)
        with pytest.raises(unisono.ConfigError, match=r"before run\.steps\(\)"):
            run.load_weights(path)
    with unisono.Run(replicas=1, strategy="fsdp") as run:
        model = build_mlp()
        run.prepare(model, sgd(model))
        with pytest.raises(unisono.ConfigError, match="strategy fsdp may hold copies"):
            run.load_weights(path)


def test_the_best_checkpoint_by_a_score(toy, tmp_path):
    """The one with the largest accuracy or the smallest loss, the newest of equal ones; no such score is refused."""
    scores = {3: (0.5, 0.9), 6: (0.8, 0.7), 9: (0.8, 0.2), 12: (0.1, 0.1)}
    fingerprints = {}
    with toy.run(out=tmp_path, checkpoint_every=3, checkpoints=unisono.CheckpointPolicy(keep=9)) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=4), epochs=9, max_steps=12):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step in scores:
                run.record(dict(zip(("accuracy", "loss"), scores[batch.step], strict=True)))
                fingerprints[batch.step] = run.fingerprint()
    for best, step in (("accuracy", 9), ("loss", 12)):
        unisono.load_weights(model, tmp_path, step=3)
        unisono.load_weights(model, tmp_path, best=best)
        assert fingerprint(model) == fingerprints[step]
    with pytest.raises(unisono.CheckpointError, match=r"score of the checkpoints in .* \(accuracy, loss\), got 'f1'"):
        unisono.load_weights(model, tmp_path, best="f1")
