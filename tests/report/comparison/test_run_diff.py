"""Planted causes are found: the step, what differed first, and with detail the replica, samples and parameter."""

import json
import re
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from train import several_programs
from train.several_programs import Gan
from unisono.errors import ConfigError
from unisono.report.comparison.run_diff import compare_runs

PLANTED_AT = 4


class Plant:
    """One training of ten steps (five an epoch) with something planted in it."""

    def __init__(self, folder):
        self.folder = folder
        generator = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(56, 6, generator=generator), torch.randint(0, 4, (56,), generator=generator)

    def play(self, name, *, swap=None, before=None, lr=0.1, batch_size=12, transport="auto", stop=None, **settings):
        """Train and return the run directory; `before(step, model)` runs before each step."""
        x, y = self.x.clone(), self.y.clone()
        if swap:
            x[list(swap)], y[list(swap)] = x[list(swap)[::-1]], y[list(swap)[::-1]]
        settings = {"seed": 0, "replicas": 4, "detail": True, **settings}
        with unisono.Run(out=self.folder / name, transport=transport, **settings) as run:
            model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Tanh(), nn.Linear(8, 4))
            model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9))
            data = Data(x, y)
            for batch in run.steps(run.loader(data, batch_size=batch_size), epochs=2):
                if before:
                    before(batch.step, model)
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                if batch.step == stop:
                    break
        return self.folder / name


class Data:
    """Samples whose contents are not part of the score."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


@pytest.fixture(scope="module")
def plant(tmp_path_factory):
    return Plant(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def plain(plant):
    """The run that all others are compared with."""
    return plant.play("plain")


def test_equal_runs(plant, plain):
    """Run again, on three ranks, or interrupted and resumed: nothing differs."""
    run_threads(lambda transport: str(plant.play("three", transport=transport)), 3)
    plant.play("resumed", stop=7)
    plant.play("resumed")
    for name in ("three", "resumed"):
        found = compare_runs(plain, plant.folder / name)
        assert (found.equal, found.step, found.first) == (True, None, None)
        assert found.score == found.metrics == found.notes == []
        assert (plain / "detail.jsonl").read_bytes() == (plant.folder / name / "detail.jsonl").read_bytes()


def test_detail_changes_nothing(plant, plain):
    """With and without detail: the same ledger bytes and fingerprint; the file is only there when asked for."""
    without = plant.play("without", detail=False)
    assert not (without / "detail.jsonl").exists()
    assert (plain / "ledger.jsonl").read_bytes() == (without / "ledger.jsonl").read_bytes()
    assert compare_runs(plain, without).equal


def test_another_seed(plant, plain):
    """The score says it; the ledgers part at step 1 in weights, samples and generator seed, in this order."""
    found = compare_runs(plain, plant.play("seed", seed=5))
    assert not found.equal
    assert "seed: 0 -> 5" in found.score
    assert (found.step, found.first) == (1, "weights")
    assert found.fields[:4] == ["weights", "samples", "generator seed", "loss"]
    assert found.parameters == ["0.weight", "0.bias", "3.weight", "3.bias"]
    assert "the runs began with different ones" in found.notes[0]
    assert "12 of 12 places differ" in found.notes[1]


def test_the_generator_seed_alone(plant, plain):
    """Same weights and same order, but other random numbers: what differs first is the generator seed."""

    def play(name, seed):
        with unisono.Run(out=plant.folder / name, seed=seed, replicas=4) as run:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 4))
            model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.steps(run.loader(Data(plant.x, plant.y), batch_size=12, shuffle=False), epochs=1):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        return plant.folder / name

    found = compare_runs(play("g0", 0), play("g1", 1))
    assert (found.step, found.first) == (1, "generator seed")
    assert found.fields == ["generator seed", "loss", "gradient"]


def test_one_swapped_sample(plant, plain):
    """Two samples changed places in the data: the first step that uses one of them, its replica, its samples."""
    order = [json.loads(line)["indices"] for line in (plain / "detail.jsonl").read_text().splitlines()]
    early, late = order[2][4], order[4][0]  # used in steps 3 and 5 for the first time
    found = compare_runs(plain, plant.play("swapped", swap=(early, late)))
    assert found.score == []
    assert (found.step, found.first) == (3, "loss")
    assert found.replicas == [1]
    assert found.samples == order[2][3:6]
    assert early in found.samples
    assert found.hint == ""


def test_other_samples_are_told_without_detail(plant):
    """The samples of a step follow from the score: which places differ is known without detail."""
    left = plant.play("b12", detail=False)
    right = plant.play("b11", detail=False, batch_size=11)
    found = compare_runs(left, right)
    assert (found.step, found.first) == (1, "num_samples")
    assert "batch_size: 12 -> 11" in found.score
    assert len(found.samples) == 1


def test_another_thread_count(plant, plain):
    """Threads are part of the score and of the environment: both say so, whether or not a bit differs."""
    try:
        found = compare_runs(plain, plant.play("threads", threads=2))
    finally:
        torch.set_num_threads(1)
    assert not found.equal
    assert "threads: 1 -> 2" in found.score
    assert "threads: 1 -> 2" in found.environment


def test_one_perturbed_weight(plant, plain):
    """One weight moved by one bit between two steps: the step after, and the parameter's name."""

    def perturb(step, model):
        if step == PLANTED_AT:
            with torch.no_grad():
                model[3].weight.view(torch.int32)[2, 5] ^= 1

    found = compare_runs(plain, plant.play("perturbed", before=perturb))
    assert found.score == []
    assert (found.step, found.first) == (PLANTED_AT, "weights")
    assert found.parameters == ["3.weight"]
    assert f"gradient of step {PLANTED_AT - 1} were equal" in found.notes[0]
    assert "first in '3.weight' (1 of 4)" in found.notes[0]


def test_one_wrong_gradient(plant, plain):
    """Equal losses and another gradient: the parameter whose gradient it is."""

    def bend(step, model):
        if step == PLANTED_AT:
            model[0].bias.register_hook(lambda gradient: gradient * 2)

    found = compare_runs(plain, plant.play("bent", before=bend))
    assert (found.step, found.first) == (PLANTED_AT, "gradient")
    assert found.parameters == ["0.bias"]


def test_without_detail_it_says_how_to_know_more(plant):
    """The step and the field are always known; for the rest a hint names the option."""

    def bend(step, model):
        if step == PLANTED_AT:
            model[0].bias.register_hook(lambda gradient: gradient * 2)

    found = compare_runs(plant.play("short", detail=False), plant.play("short bent", detail=False, before=bend))
    assert (found.step, found.first, found.parameters) == (PLANTED_AT, "gradient", None)
    assert "detail=True" in found.hint
    assert "--detail" in found.hint


def test_another_learning_rate(plant, plain):
    """The first step computes the same and updates otherwise."""
    found = compare_runs(plain, plant.play("lr", lr=0.2))
    assert (found.step, found.first) == (1, "lr")
    assert found.score == ["optimizer.groups[0].lr: 0.1 -> 0.2"]


def test_a_run_that_ends_earlier(plant, plain):
    """Equal as far as it goes, but shorter."""
    found = compare_runs(plain, plant.play("early", stop=6))
    assert (found.equal, found.step, found.first) == (False, 7, "length")
    assert "ends after step 6" in found.notes[0]


def test_a_damaged_ledger(plain, tmp_path):
    """It is called damaged, with the line; half a last line is one that is being written."""
    shutil.copytree(plain, tmp_path / "copy")
    file = tmp_path / "copy" / "ledger.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:3]) + b"rubbish\n" + b"".join(lines[4:]))
    found = compare_runs(plain, tmp_path / "copy")
    assert (found.equal, found.step, found.first) == (False, 4, "length")
    assert "the ledger is damaged from its line 4 on; all steps before are equal" in found.notes[0]
    file.write_bytes(b"".join(lines[:3]) + lines[3][:9])
    assert "ends after step 3" in compare_runs(plain, tmp_path / "copy").notes[0]


def test_only_the_last_update(plant, plain, tmp_path):
    """All lines agree, the fingerprints do not; metrics count, times do not."""
    shutil.copytree(plain, tmp_path / "copy")
    file = tmp_path / "copy" / "result.json"
    result = json.loads(file.read_text())
    file.write_text(json.dumps(result | {"fingerprint": "0" * 64}))
    assert compare_runs(plain, tmp_path / "copy").first == "final weights"
    file.write_text(json.dumps(result | {"metrics": {"speed_per_s": 7.0}}))
    assert compare_runs(plain, tmp_path / "copy").equal
    file.write_text(json.dumps(result | {"metrics": {"accuracy": 0.5}}))
    found = compare_runs(plain, tmp_path / "copy")
    assert (found.equal, found.step) == (False, None)
    assert found.metrics == ["accuracy: None -> 0.5"]


def test_no_run_is_an_error(tmp_path, plain):
    """A directory without a run, and a broken file, are named."""
    (tmp_path / "file").touch()
    for place, got in (("nowhere", "does not exist"), ("file", "is a file"), (".", "a directory without score.json")):
        with pytest.raises(ConfigError, match=rf"expected a run directory, got .*, {'which ' * (place != '.')}{got}"):
            compare_runs(plain, tmp_path / place)
    (tmp_path / "file").unlink()
    with pytest.raises(ConfigError, match="an empty directory"):
        compare_runs(plain, tmp_path)
    (tmp_path / "score.json").write_text("{")
    with pytest.raises(ConfigError, match="not the JSON"):
        compare_runs(tmp_path, plain)


class Planted(Gan):
    """A game in whose third step something is planted between the updates."""

    how = ""

    def __init__(self):
        super().__init__()
        self.turn = 0

    def body(self, step):
        self.turn += 1
        how = self.how if self.turn == 3 else ""
        step("D", self.d_loss)
        if how == "weights":
            with torch.no_grad():
                self.models["D"][4].weight += 1
        if how != "none":
            loss = (lambda micro: self.g_loss(micro) * 2) if how == "loss" else self.g_loss
            step("D" if how == "updates" else "G", loss)


@pytest.mark.parametrize(
    ("how", "update", "first", "said"),
    [
        ("weights", "G", "weights", r"gradient of 'D' just before were equal, .*; first in 'D\.4\.weight' \(1 of"),
        ("loss", "G", "loss", r"replicas \[0, 1, 2, 3\], samples \d+"),
        ("updates", None, "updates", r"updates: \['D', 'G'\] -> \['D', 'D'\]"),
        ("none", None, "updates", r"updates: \['D', 'G'\] -> \['D'\]"),
    ],
)
def test_of_several_optimizers_the_update_is_named(how, update, first, said, tmp_path, monkeypatch):
    """Within the step the first update that differs, and what differed in it, as in a step with one; on all ranks."""
    monkeypatch.setitem(several_programs.CASES, "planted", Planted)

    def train(name):
        run_threads(
            lambda transport: several_programs.play(transport, "planted", str(tmp_path / name), epochs=1, detail=True),
            2,
        )
        return tmp_path / name

    calm = train("calm")
    monkeypatch.setattr(Planted, "how", how)
    found = compare_runs(calm, train("other"))
    assert (found.step, found.update, found.first, found.hint) == (3, update, first, "")
    assert re.search(said, found.notes[0])
    assert found.fields[0] == first
