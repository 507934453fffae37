"""Texts of the user's own as token stores: classes found, split, tokenised once per machine.

In: files or folders as `tables` reads them. Out: `TextData`, memory-mapped. The cache's key holds the content's
checksum and every setting, so an edited file is read again, and what is there is never stale. Imports no torch.
"""

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt

from unisono.data.files.cache import cache_key, cached_directory
from unisono.data.files.fetch import Tell, sha256_file, untold
from unisono.data.files.tables import Broken, Columns, LabelledText, read_rows
from unisono.data.sets.parallel import save_texts
from unisono.data.sets.text import FORMAT_VERSION, TokenStore, Vocabulary
from unisono.environment import default_cache
from unisono.errors import DataError
from unisono.system.files import replace_file
from unisono.system.words import counted

MAX_CLASSES = 1000
TEST_EVERY = 10
"""Of each class every so many-th sample is held out where no test part is given."""


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TextData:
    """Labelled texts as token numbers."""

    train: TokenStore  #: Training texts.
    test: TokenStore  #: Held-out texts.
    vocabulary: Vocabulary  #: Built from the training texts.
    classes: tuple[str, ...]  #: Label number to name.
    skipped: int  #: Broken rows that were left out.
    first_skipped: tuple[str, ...]  #: Why, for the first few, with their places.
    key: str  #: Names content and settings.


def load_texts(
    data: Path,
    *,
    test_data: Path | None = None,
    columns: Columns | None = None,
    skip_broken: bool = False,
    min_freq: int = 2,
    cache: Path | None = None,
    tell: Tell = untold,
) -> TextData:
    """Load labelled texts; read and tokenise them first where nobody did yet.

    Args:
        data: A CSV, TSV or JSON lines file (gzipped or not), a folder per class, or a folder with ``train`` and
            ``test`` that each hold a folder per class.
        test_data: The same, for evaluation; None holds out every tenth text of each class.
        columns: Names of the columns, and the encoding.
        skip_broken: Leave broken rows out and count them, instead of refusing the file.
        min_freq: A word needs so many occurrences in the training texts.
        cache: Directory for token stores; ``~/.cache/unisono`` where None.
        tell: Told how far the preparation is.

    Raises:
        DataError: Something is missing or broken (names file and line), or there are fewer than two classes.
        ConfigError: The settings leave no word.
    """
    columns = columns or Columns()
    sources = sources_of(data, test_data)
    settings: dict[str, str | int | None] = {
        "tokeniser": "basic_english", "min_freq": min_freq, "max_tokens": None,
        "unicode": unicodedata.unidata_version, "text": columns.text, "label": columns.label,
        "encoding": columns.encoding, "skip_broken": skip_broken, "test_every": TEST_EVERY,
    }  # fmt: skip

    def build(directory: Path) -> None:
        broken = Broken(skip=skip_broken)
        parts = [read_rows(source, columns, broken) for source in sources]
        _save(directory, parts, broken, tell, min_freq)

    entry, about = prepared("text/tokens", sources, settings, FORMAT_VERSION, cache, build)
    return TextData(
        train=TokenStore.open(entry, "train"),
        test=TokenStore.open(entry, "test"),
        vocabulary=Vocabulary.load(entry / "vocabulary.json"),
        **about,
    )


def prepared(
    name: str,
    sources: Sequence[Path],
    settings: Mapping[str, str | int | None],
    version: int,
    cache: Path | None,
    build: Callable[[Path], None],
) -> tuple[Path, dict[str, Any]]:
    """Return the cache's directory, which `build` fills where nobody did yet, and what ``about.json`` tells of it."""
    checksums = "/".join(content_checksum(source) for source in sources)
    key = cache_key(source_sha256=checksums, settings=settings, format_version=version)
    entry = cached_directory((cache or default_cache({})) / f"{name}-{key}", build)
    about = json.loads((entry / "about.json").read_text())
    about["classes"], about["first_skipped"] = tuple(about["classes"]), tuple(about.pop("first"))
    return entry, about | {"key": key}


def sources_of(data: Path, test_data: Path | None) -> list[Path]:
    """Return where the training part lies and, where there is one, the test part."""
    if test_data is None and (data / "train").is_dir() and (data / "test").is_dir():
        return [data / "train", data / "test"]
    return [data] if test_data is None else [data, test_data]


def content_checksum(source: Path) -> str:
    """Return a SHA-256 over a file, or over names and contents of all files of a folder; `DataError`: unreadable."""
    if not source.is_dir():
        return sha256_file(source)
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file() and not path.is_symlink()):
        digest.update(f"{path.relative_to(source).as_posix()}\n{sha256_file(path)}\n".encode())
    return digest.hexdigest()


def number_labels(labels: Sequence[Sequence[str]], places: Sequence[Sequence[str]], source: Path) -> list[str]:
    """Return the classes of the training part, sorted (numbers by value); the test part's labels must be among them."""
    found = Counter(labels[0])
    if len(found) < 2:
        only = next(iter(found), "none")
        raise DataError(
            f"{source}: expected at least two classes, found only {only!r}, {counted(found.total(), 'time')}. "
            "Hint: is this the column of the labels?"
        )
    if len(found) > MAX_CLASSES:
        raise DataError(
            f"{source}: expected at most {MAX_CLASSES} classes, found {len(found):,} labels "
            f"(the first: {', '.join(map(repr, list(found)[:4]))}). Hint: is this the column of the labels?"
        )
    for label, place in zip(labels[1], places[1], strict=True) if len(labels) > 1 else ():
        if label not in found:
            raise DataError(
                f"{place}: expected one of the training classes {', '.join(map(repr, sorted(found)[:12]))}, "
                f"found {label!r}. Hint: correct the label, or add texts of it to the training data."
            )
    return sorted(
        found, key=lambda label: (0, int(label), "") if label.isdecimal() and len(label) < 20 else (1, 0, label)
    )


def number_and_split(
    labels: Sequence[Sequence[str]], places: Sequence[Sequence[str]], noun: str, source: Path
) -> tuple[list[str], list[npt.NDArray[np.int64]], npt.NDArray[np.bool_] | None]:
    """Return the classes, the labels' numbers by split and, where there is one part only, which samples it holds out.

    Arguments and errors are those of `number_labels` and `hold_out`.
    """
    classes = number_labels(labels, places, source)
    numbers = {label: number for number, label in enumerate(classes)}
    targets = [np.array([numbers[label] for label in part], dtype=np.int64) for part in labels]
    if len(labels) > 1:
        return classes, targets, None
    is_test = hold_out(targets[0], TEST_EVERY, noun, source)
    return classes, [targets[0][~is_test], targets[0][is_test]], is_test


def hold_out(labels: npt.NDArray[np.int64], every: int, noun: str, source: Path) -> npt.NDArray[np.bool_]:
    """Mark every `every`-th sample of each class, counted within the class: a pure function of the labels."""
    is_test = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        is_test[np.flatnonzero(labels == label)[every - 1 :: every]] = True
    if not is_test.any():
        raise DataError(
            f"{source}: expected at least {every} {noun} of some class, so that one can be held out for "
            f"evaluation, found {len(labels)} {noun}. Hint: pass --test-data."
        )
    return is_test


def _save(directory: Path, parts: list[list[LabelledText]], broken: Broken, tell: Tell, min_freq: int) -> None:
    """Number the labels, split, tokenise, write."""
    source = Path(parts[0][0].place.partition(", line")[0])
    texts = [[row.text for row in part] for part in parts]
    labels, places = [[row.label for row in part] for part in parts], [[row.place for row in part] for part in parts]
    classes, targets, is_test = number_and_split(labels, places, "texts", source)
    if is_test is not None:
        held = is_test.tolist()
        texts = [
            [text for text, is_held in zip(texts[0], held, strict=True) if is_held is flag] for flag in (False, True)
        ]
    save_texts(directory, texts, targets, tell, min_freq)
    about = {"classes": classes, "skipped": broken.count, "first": broken.first}
    replace_file(directory / "about.json", json.dumps(about).encode("ascii"))
