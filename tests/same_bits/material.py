"""The data of the recipes' jobs: real where it is at hand, else generated; both trees read the same files."""

import csv
import os
import re
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
REVIEWS = 60
"""Of each of the four kinds: train and test, good and bad."""
REVIEW = re.compile(r"aclImdb/(train|test)/(pos|neg)/\d+_\d+\.txt")
WORDS = [a + b for a in ("ba", "de", "fi", "go", "lu", "mo", "pe", "ri") for b in ("na", "sta", "rel", "tin", "vok")]


def real_data(given: str | None = None) -> Path:
    """Return where the real data sets would be: as given, else ``UNISONO_TEST_DATA``, else ``../shared/data``."""
    named = given or os.environ.get("UNISONO_TEST_DATA")
    return Path(named).resolve() if named else ROOT.parent / "shared" / "data"


def find_mnist(root: Path) -> Path | None:
    """Return the directory of the real MNIST, None where it is not there: the recipe takes no other files."""
    files = [f"{split}-{kind}-ubyte" for split in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
    folder = root / "mnist"
    whole = all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in files)
    return folder if whole else None


def make_reviews(folder: Path, root: Path) -> bool:
    """Write an ``aclImdb`` of a few reviews below `folder`: some of the real ones, else generated texts.

    Returns:
        Whether they are real.
    """
    archive = root / "imdb" / "aclImdb_labelled_50k.tar.gz"
    is_real = archive.is_file()
    reviews = _real_reviews(archive) if is_real else _made_reviews()
    for name, text in reviews.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return is_real


def _real_reviews(archive: Path) -> dict[str, bytes]:
    """Return the first reviews of each kind, in the archive's order."""
    found: dict[str, bytes] = {}
    kinds: Counter[str] = Counter()
    with tarfile.open(archive, "r|gz") as members:
        for member in members:
            kind = member.name.rpartition("/")[0]
            if REVIEW.fullmatch(member.name) and kinds[kind] < REVIEWS:
                content = members.extractfile(member)
                assert content is not None
                found[member.name] = content.read()
                kinds[kind] += 1
            if len(kinds) == 4 and set(kinds.values()) == {REVIEWS}:
                return found
    raise ValueError(f"{archive}: expected {REVIEWS} reviews of each of four kinds, found {dict(kinds)}.")


def _made_reviews() -> dict[str, bytes]:
    random = np.random.default_rng(3)
    return {
        f"aclImdb/{split}/{label}/{number}_{rating}.txt": _text(random, is_good=label == "pos").encode()
        for split in ("train", "test")
        for label, rating in (("neg", 2), ("pos", 9))
        for number in range(REVIEWS)
    }


def _text(random: np.random.Generator, *, is_good: bool) -> str:
    words = random.choice(WORDS, int(random.integers(5, 120)))
    return " ".join([*words, "good" if is_good else "bad", *words[:3]])


def make_texts(path: Path) -> None:
    """Write a CSV file of labelled texts."""
    random = np.random.default_rng(5)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(240):
            writer.writerow([_text(random, is_good=number % 3 == 0), "good" if number % 3 == 0 else "bad"])


def make_images(path: Path, *, size: int = 12) -> None:
    """Write an ``.npz`` file of images in grey whose brightest quarter is their class."""
    random = np.random.default_rng(7)
    images = random.integers(0, 120, (240, size, size), dtype=np.uint8)
    labels = random.integers(0, 4, 240)
    half = size // 2
    for image, label in zip(images, labels, strict=True):
        image[half * (label // 2) :, half * (label % 2) :][:half, :half] += 100
    np.savez(path, images=images, labels=labels)


def prepare(folder: Path, root: Path) -> tuple[dict[str, str], list[str]]:
    """Write what the jobs read.

    Returns:
        Paths by the names that the jobs use, and what has to be said of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    said = []
    if not make_reviews(folder, root):
        said.append(f"no IMDB archive at {root / 'imdb'}: the imdb recipe trains on generated reviews.")
    make_texts(folder / "texts.csv")
    make_images(folder / "images.npz")
    make_images(folder / "digits.npz", size=28)
    paths = {name: str(folder / file) for name, file in FILES.items()}
    mnist = find_mnist(root)
    if mnist is None:
        said.append(
            f"no MNIST at {root / 'mnist'}: that recipe takes no other files, so its job trains the recipe images on "
            "generated ones. Hint: UNISONO_TEST_DATA=DIR, the directory that holds mnist/."
        )
    return {**paths, **({} if mnist is None else {"mnist": str(mnist)})}, said


FILES = {"imdb": "aclImdb", "texts": "texts.csv", "images": "images.npz", "digits": "digits.npz"}
