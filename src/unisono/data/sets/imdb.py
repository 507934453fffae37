"""The IMDB movie reviews (aclImdb): read from the archive or a directory, tokenised once per machine.

In: ``aclImdb_v1.tar.gz``, ``aclImdb_labelled_50k.tar.gz``, an extracted ``aclImdb/``, or nothing (verified
download). Out: `ImdbData`, two token stores and a vocabulary. The archive is streamed, never extracted; a
known archive's checksum is verified before it is opened. The order of the samples is canonical (split,
label, number), whatever the order in the archive. Imports no torch.

Source: A. Maas et al., Learning Word Vectors for Sentiment Analysis, ACL 2011.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, final

import numpy as np

from unisono.data.files.archive import ArchiveLimits, stream_members
from unisono.data.files.cache import cache_key, cached_directory
from unisono.data.files.fetch import Pin, Tell, locate, sha256_file, told, untold
from unisono.data.sets.parallel import save_texts
from unisono.data.sets.text import FORMAT_VERSION, TokenStore, Vocabulary
from unisono.environment import default_cache
from unisono.errors import DataError

MIRRORS = ("https://ai.stanford.edu/~amaas/data/sentiment/",)
ORIGINAL = "aclImdb_v1.tar.gz"
PINS = {
    # The original; pin as published by TensorFlow Datasets (url_checksums/imdb_reviews.txt).
    ORIGINAL: Pin(sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe", size_bytes=84_125_825),
    # The same reviews without the unlabelled part.
    "aclImdb_labelled_50k.tar.gz": Pin(
        sha256="3f9f83570f3209002e6b9e52e57e212237ba3ea21dfcc66363cab8e7a9029412", size_bytes=30_004_847
    ),
}
SPLITS = ("train", "test")
LABELS = {"neg": 0, "pos": 1}
MEMBER = re.compile(r"aclImdb/(train|test)/(pos|neg)/(\d{1,9})_(\d{1,9})\.txt", re.ASCII)


DEFAULT_LIMITS = ArchiveLimits()


class Review(NamedTuple):
    """One review; the order of the fields gives the canonical order of the samples."""

    split: str
    label: int
    number: int
    rating: int
    text: str


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImdbData:
    """The reviews as token numbers; label 0 is negative, 1 positive. `key` names content and settings."""

    train: TokenStore
    test: TokenStore
    vocabulary: Vocabulary
    key: str


def load_imdb(
    data: Path | None, *, cache: Path | None = None, min_freq: int = 20, offline: bool = False, tell: Tell = untold
) -> ImdbData:
    """Load the reviews as memory-mapped token stores; tokenise them first where nobody did yet.

    Args:
        data: The archive, an ``aclImdb`` directory, or a directory that holds one of them; None downloads
            the original archive.
        cache: Directory for downloads and token stores; ``~/.cache/unisono`` where None.
        min_freq: A word needs so many occurrences in the training split.
        offline: Use what is in the cache, and no network.
        tell: Told how far the preparation is.

    Raises:
        DataError: The data is missing, malformed or not what was pinned.
        ConfigError: The settings leave no word.
    """
    cache = cache or default_cache({})
    source = find_source(data, cache, offline=offline, tell=tell)
    known: list[Review] = []
    if source.is_dir():
        known = read_reviews(source, tell=tell)
        checksum = _digest(known)
    else:
        checksum = PINS[source.name].sha256 if source.name in PINS else sha256_file(source)
    settings: dict[str, str | int | None] = {
        "tokeniser": "basic_english",
        "min_freq": min_freq,
        "max_tokens": None,
        "unicode": unicodedata.unidata_version,  # decides what lower case and white space are
    }
    key = cache_key(source_sha256=checksum, settings=settings, format_version=FORMAT_VERSION)

    def build(directory: Path) -> None:
        reviews = known or read_reviews(source, tell=tell)
        save_stores(directory, reviews, min_freq=min_freq, tell=tell)

    entry = cached_directory(cache / "imdb" / f"tokens-{key}", build)
    return ImdbData(
        train=TokenStore.open(entry, "train"),
        test=TokenStore.open(entry, "test"),
        vocabulary=Vocabulary.load(entry / "vocabulary.json"),
        key=key,
    )


def find_source(data: Path | None, cache: Path, *, offline: bool = False, tell: Tell = untold) -> Path:
    """Return the archive or the directory to read; the bytes of a known archive are verified here."""
    name: str | None = ORIGINAL
    if data is not None and data.is_file():
        if data.name not in PINS:
            return data
        name = data.name
    elif data is not None:
        for folder in (data, data / "aclImdb"):
            if all((folder / split).is_dir() for split in SPLITS):
                return folder
        name = next((name for name in PINS if (data / name).is_file()), None)
    if name is None:
        raise DataError(
            f"{data}: expected one of {', '.join(PINS)} or a directory aclImdb with train and test, "
            f"found neither. Hint: put {ORIGINAL} there, or pass no data to download it."
        )
    pins = {name: PINS[name]}
    return locate(pins, source=data, urls=MIRRORS, cache=cache / "imdb", offline=offline, tell=tell)[name]


def save_stores(directory: Path, reviews: Sequence[Review], *, min_freq: int, tell: Tell = untold) -> None:
    """Tokenise both splits, build the vocabulary from the training split, write all into `directory`."""
    parts = [[review for review in reviews if review.split == split] for split in SPLITS]
    texts = [[review.text for review in part] for part in parts]
    labels = [np.array([review.label for review in part], dtype=np.int64) for part in parts]
    save_texts(directory, texts, labels, tell, min_freq)


def read_reviews(source: Path, *, limits: ArchiveLimits = DEFAULT_LIMITS, tell: Tell = untold) -> list[Review]:
    """Return the labelled reviews in canonical order, from a tar.gz archive or an extracted directory.

    Raises:
        DataError: A member that does not belong there, is too large or no UTF-8; a review twice; a split
            without reviews; an archive that is cut short or damaged (names file and byte).
    """
    found = _walk(source, limits) if source.is_dir() else stream_members(source, MEMBER, limits)
    reviews = sorted(_parse(told(found, "reading reviews", 0, tell), source))
    for first, second in pairwise(reviews):
        if first[:3] == second[:3]:
            raise DataError(f"{source}: expected each review once, found {first[:3]} (split, label, number) twice.")
    for split in SPLITS:
        if not any(review.split == split for review in reviews):
            raise DataError(
                f"{source}: expected reviews named aclImdb/{split}/(pos|neg)/NUMBER_RATING.txt, found none. "
                "Hint: pass the aclImdb archive or directory."
            )
    return reviews


def _parse(found: Iterable[tuple[str, bytes]], source: Path) -> Iterator[Review]:
    """Turn (member name, content) into reviews."""
    for name, content in found:
        match = MEMBER.fullmatch(name)
        assert match is not None
        split, label, number, rating = match.groups()
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{source}: {name}: expected UTF-8, found byte {content[error.start]:#04x} at byte "
                f"{error.start}. Hint: convert the file, or fetch the original again."
            ) from None
        yield Review(split, LABELS[label], int(number), int(rating), text)


def _walk(root: Path, limits: ArchiveLimits) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each review under an extracted ``aclImdb``; follows no link."""
    num_files = 0
    for folder in (root / split / label for split in SPLITS for label in LABELS):
        if folder.is_symlink() or not folder.is_dir():
            raise DataError(f"{folder}: expected a directory of reviews, found none. Hint: extract it again.")
        for path in folder.iterdir():
            name = f"aclImdb/{folder.parent.name}/{folder.name}/{path.name}"
            if MEMBER.fullmatch(name) is None:
                continue
            num_files += 1
            size = path.lstat().st_size
            if path.is_symlink() or not path.is_file() or size > limits.member_bytes:
                raise DataError(
                    f"{path}: expected a regular file of at most {limits.member_bytes:,} bytes, "
                    f"found a link, another kind of file, or {size:,} bytes."
                )
            if num_files > limits.num_members:
                raise DataError(f"{root}: expected at most {limits.num_members:,} reviews, found more.")
            yield name, path.read_bytes()


def _digest(reviews: Iterable[Review]) -> str:
    """Return a SHA-256 over all reviews; names a directory's content for the cache."""
    digest = hashlib.sha256()
    for review in reviews:
        text = review.text.encode("utf-8")
        head = f"{review.split}/{review.label}/{review.number}_{review.rating}/{len(text)}\n"
        digest.update(head.encode("ascii") + text)
    return digest.hexdigest()
