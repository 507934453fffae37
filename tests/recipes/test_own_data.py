"""`train text` and `train images`: from the user's own files to a fingerprint that no world changes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import unisono
from unisono.collectives.loopback import run_ranks
from unisono.data.sets.augment import Augment
from unisono.data.sets.images import load_images
from unisono.data.sets.pictures import Pictures
from unisono.recipes.catalog import Options
from unisono.recipes.execute import execute
from unisono.recipes.images import ImageCNN
from unisono.recipes.speed import channels_last

WORDS = {"pos": ["good", "fine", "lovely"], "neg": ["bad", "poor", "awful"]}


@pytest.fixture
def reviews(tmp_path):
    """300 short reviews in a CSV file, with one broken row."""
    chance = random.Random(0)
    lines = ["id,review,mark"]
    for number in range(300):
        label = ("neg", "pos")[number % 2]
        words = [chance.choice([*WORDS[label], "the", "film", "was"]) for _ in range(chance.randint(2, 60))]
        lines.append(f"{number},{' '.join(words)},{label}")
    lines.insert(150, "broken")
    (tmp_path / "my.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "my.csv"


def result_of(tmp_path, **options) -> dict:
    defaults = {
        "replicas": 4,
        "cache": str(tmp_path / "cache"),
        "out": str(tmp_path / f"run{len(list(tmp_path.iterdir()))}"),
    }
    chosen = Options(**{**defaults, **options})
    execute(chosen)
    return json.loads((tmp_path / chosen.out / "result.json").read_text())


def texts(tmp_path, reviews, *, epochs=4, **more) -> dict:
    return result_of(
        tmp_path, recipe="text", model="bag", epochs=epochs, batch_size=20, data=str(reviews), text_column="review",
        label_column="mark", skip_broken=True, lr=0.05, **more,
    )  # fmt: skip


def test_own_texts_are_learnt(tmp_path, reviews):
    """From a CSV file to a classifier; the skipped row and what the maximal length cuts are counted."""
    result = texts(tmp_path, reviews, max_length=20)
    assert result["metrics"]["test_accuracy"] > 0.9
    assert result["metrics"]["skipped_rows"] == 1
    assert result["metrics"]["train_texts_cut"] > 50
    (logged,) = tmp_path.glob("*/metrics.jsonl")
    assert "test_accuracy" in logged.read_text()
    assert "texts_cut" not in logged.read_text()  # no curve


def test_the_order_by_length_is_exact(tmp_path, reviews):
    """A second run, also with loader processes, has the same bits; another pool has others."""
    plain, again, other = (
        texts(tmp_path, reviews, epochs=1, **more)["fingerprint"]
        for more in ({}, {"num_workers": 2}, {"length_pool": 5})
    )
    assert plain == again != other


def test_own_images_are_learnt(tmp_path):
    """From a folder per class to a classifier, augmented."""
    for label, level in (("dark", 60), ("light", 190)):
        (tmp_path / "own" / label).mkdir(parents=True)
        for number in range(40):
            noise = np.random.default_rng([number, level]).integers(-50, 50, (8, 8))
            Image.fromarray((level + noise).astype(np.uint8)).save(tmp_path / "own" / label / f"{number}.png")
    result = result_of(tmp_path, recipe="images", model="cnn", epochs=4, batch_size=16, data=str(tmp_path / "own"))
    assert result["metrics"]["test_accuracy"] == 1.0


class Moved:
    """Negative control: pictures that are changed by what fetches them, not by what they are."""

    def __init__(self, pictures: Pictures, rank: int) -> None:
        self.pictures, self.rank = pictures, rank

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int):
        return self.pictures[index]

    def fetch_keyed(self, indices, *, seed, epoch):
        """Return pictures changed by rank and process."""
        worker = torch.utils.data.get_worker_info()
        other = self.rank if worker is None else 10 + worker.id
        return self.pictures.fetch_keyed(indices, seed=seed + other, epoch=epoch)


def train_pictures(transport, folder: Path, loaders: int, *, is_moved: bool = False) -> str:
    """Train on own images, randomly flipped, moved and turned; as one rank."""
    data = load_images(folder / "own", cache=folder / "cache")
    augment = Augment.parse("flip,shift=1,rotate=20")
    pictures = Pictures(data.train_images, data.train_labels, mean=data.mean, std=data.std, augment=augment)
    run = unisono.Run(seed=0, replicas=4, transport=transport)  # not closed: that would close the transport
    model = channels_last(ImageCNN(pictures.images.shape[3], len(data.classes)))
    trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())
    train_set = Moved(pictures, run.world.rank) if is_moved else pictures
    result = trainer.fit(train_set, epochs=1, batch_size=24, num_workers=loaders, show_progress=False)
    return result["fingerprint"] or run.fingerprint()


@pytest.fixture(scope="module")
def own_pictures(tmp_path_factory):
    """Two classes of 40 colour images of 7 x 6 pixels; decoded already."""
    folder = tmp_path_factory.mktemp("pictures")
    for label in ("cat", "dog"):
        (folder / "own" / label).mkdir(parents=True)
        for number in range(40):
            pixels = np.random.default_rng([number, ord(label[0])]).integers(0, 256, (6, 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "own" / label / f"{number:02}.png")
    load_images(folder / "own", cache=folder / "cache")
    return folder


# A rank of several is a thread, and forking loader processes from a thread ended some of them by SIGSEGV where other
# tests ran beside these (Python 3.11): the quick worlds do not.
QUICK = [(1, 0), (1, 1), (2, 0), (3, 0)]
EVERY = [(ranks, loaders) for ranks in (1, 2, 3, 4) for loaders in (0, 1, 2)]


def train_as(ranks, folder: Path, loaders: int, *, is_moved: bool = False) -> list[str]:
    """Return what each rank finds; a rank alone is this process."""
    if ranks == 1:
        return [train_pictures("auto", folder, loaders, is_moved=is_moved)]
    return run_ranks(lambda transport: train_pictures(transport, folder, loaders, is_moved=is_moved), ranks)


@pytest.mark.parametrize("worlds", [QUICK, pytest.param(EVERY, marks=pytest.mark.slow)])
def test_own_images_are_the_same_for_ranks_and_loaders(own_pictures, worlds):
    """1 to 4 ranks, 0 to 2 loader processes each, augmented: one fingerprint on every rank."""
    found = [set(train_as(ranks, own_pictures, loaders)) for ranks, loaders in worlds]
    assert found == [found[0]] * len(worlds)
    assert len(found[0]) == 1


@pytest.mark.parametrize("world", [(2, 0), (1, 1)])
def test_the_comparison_of_worlds_can_fail(own_pictures, world, monkeypatch):
    """Negative control: changes that depend on the rank, or on the loader process, have other bits, if nobody looks."""
    ranks, loaders = world
    monkeypatch.setattr("unisono.train.score.first_samples", lambda loader: {})
    monkeypatch.setattr("unisono.strategies.witness.first_loss.FirstLoss.compute", lambda *_: None)
    (alone,) = train_as(1, own_pictures, 0, is_moved=True)
    assert alone not in train_as(ranks, own_pictures, loaders, is_moved=True)


@pytest.mark.slow
def test_the_fingerprint_is_that_of_every_world(tmp_path, reviews):
    """One worker and two, by way of the command line, prove equal."""
    command = [sys.executable, "-m", "unisono", "train", "text", "--data", str(reviews), "--text-column", "review",
               "--label-column", "mark", "--skip-broken", "--replicas", "4", "--epochs", "1", "--json",
               "--batch-size", "32", "--length-pool", "4"]  # fmt: skip
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RANK", "WORLD", "UNISONO"))}
    environment = clean | {"XDG_CACHE_HOME": str(tmp_path / "home")}
    found = set()
    for count, loaders in (("1", "0"), ("2", "1"), ("3", "0")):
        done = subprocess.run(
            [*command, "-n", count, "--num-workers", loaders],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        assert "1 broken ones left out" in done.stderr
        found.add(json.loads(done.stdout)["fingerprint"])
    assert len(found) == 1


def test_one_class_is_said_before_any_worker_starts(tmp_path):
    """The launcher answers with exit code 2, file and cause, and nothing is cached."""
    (tmp_path / "one.csv").write_text("text,label\na,x\nb,x\n")
    command = [sys.executable, "-m", "unisono", "train", "text", "--data", str(tmp_path / "one.csv")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "one.csv: expected at least two classes, found only 'x', 2 times" in done.stderr
    assert done.stderr.count("expected") == 1
