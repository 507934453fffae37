"""Small runs of recipes whose test set lies in files, and what those files hold."""

import json
import random
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from unisono.data.sets.digits import load_digits
from unisono.recipes.catalog import Options
from unisono.recipes.execute import execute


class Trained(NamedTuple):
    """A run directory, the files of its test set in the run's order, and their classes."""

    run: Path
    files: list[Path]
    labels: list[str]

    @property
    def metrics(self) -> dict[str, float]:
        return json.loads((self.run / "result.json").read_text())["metrics"]


def train(recipe: str, folder: Path, **more) -> Path:
    given = {"epochs": 2, "batch_size": 16, "replicas": 2, "cache": str(folder / "cache"), "out": str(folder / "run")}
    execute(Options(recipe=recipe, **{**given, **more}))
    return folder / "run"


def digits(folder: Path) -> Trained:
    """The bundled digits; their test images are written as files."""
    run = train("digits", folder, model="cnn", limit=200)
    splits = load_digits()
    chosen = np.arange(200) * len(splits.test_images) // 200
    files = [folder / f"{number:03}.png" for number in range(200)]
    for file, image in zip(files, splits.test_images[chosen, 0], strict=True):
        Image.fromarray(np.rint(image * 255).astype(np.uint8)).save(file)
    return Trained(run, files, [str(label) for label in splits.test_labels[chosen]])


def images(folder: Path, **more) -> Trained:
    """Noise, a little lighter for dogs than for cats: not easy to tell."""
    for split, count in (("train", 24), ("test", 20)):
        for label, level in (("cat", 105), ("dog", 125)):
            (folder / "own" / split / label).mkdir(parents=True)
            for number in range(count):
                noise = np.random.default_rng([number, level, count]).integers(-100, 100, (8, 9, 3))
                path = folder / "own" / split / label / f"{number:02}.png"
                Image.fromarray((level + noise).clip(0, 255).astype(np.uint8)).save(path)
    run = train("images", folder, model="cnn", data=str(folder / "own"), **more)
    files = sorted((folder / "own" / "test").rglob("*.png"))
    return Trained(run, files, [file.parent.name for file in files])


def texts(folder: Path, model: str = "gcnn", **more) -> Trained:
    """Words that lean to one side."""
    chance = random.Random(0)
    for split, count in (("train", 30), ("test", 20)):
        for label, own in (("neg", ["bad", "poor"]), ("pos", ["good", "fine"])):
            (folder / "own" / split / label).mkdir(parents=True)
            for number in range(count):
                words = [chance.choice([*own, "bad", "good", "the", "film"]) for _ in range(chance.randint(2, 40))]
                (folder / "own" / split / label / f"{number:02}.txt").write_text(" ".join(words))
    run = train("text", folder, model=model, data=str(folder / "own"), **more)
    files = sorted((folder / "own" / "test").rglob("*.txt"))
    return Trained(run, files, [file.parent.name for file in files])


TINY = {"length": 32, "width": 32, "layers": 2, "heads": 2, "inner": 48}


def stories(folder: Path) -> Trained:
    """A language model of `TINY`'s shape (put it into the presets): told stories; the held-out ones are in one file."""
    chance = random.Random(0)
    who, what = ["the cat", "a dog", "she"], ["sees the sea", "runs home", "sings a song"]
    for split, count in (("train", 40), ("test", 6)):
        told = [
            " ".join(f"{chance.choice(who)} {chance.choice(what)}." for _ in range(chance.randint(2, 20)))
            for _ in range(count)
        ]
        (folder / "own" / split).mkdir(parents=True)
        (folder / "own" / split / "all.txt").write_text("\n<|endoftext|>\n".join(told))
    run = train("lm", folder, model="gpt", data=str(folder / "own"), lr=1e-2)
    return Trained(run, [folder / "own" / "test" / "all.txt"], [])
