"""Texts for a language model: read, cut into documents, and written as token files, once per machine.

In: text files, or the archive of film reviews. Out: `Corpus`, two token files, the tokeniser, and counts. Documents are
held out whole. The tokens are byte pairs (the library ``tokenizers``), learnt from the training documents alone.
Imports no torch.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from unisono.data.files.cache import cache_key, cached_directory
from unisono.data.files.fetch import Tell, untold
from unisono.data.files.identity import whole_identity
from unisono.data.sets.imdb import PINS, SPLITS, find_source, read_reviews
from unisono.data.sets.own_texts import sources_of
from unisono.environment import default_cache
from unisono.errors import DataError
from unisono.system.loading import needing

SEPARATOR = "<|endoftext|>"
"""Between documents of one file; as a token, number 0 and the end of every document."""
END = 0
_FORMAT_VERSION = 1
_HELD_OUT = 10
_TOGETHER = 1000  # documents that are encoded at a time


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """Texts as token files."""

    train: Path  #: uint16 tokens, `END` behind each document.
    test: Path  #: The held-out documents.
    tokeniser: Path  #: The file whose content `load_tokeniser` takes.
    vocabulary: int  #: How many tokens there are.
    facts: dict[str, int]  #: How many documents and tokens of each kind.


def load_corpus(
    data: Path | None,
    *,
    test_data: Path | None = None,
    vocabulary: int = 4096,
    limit: int | None = None,
    cache: Path | None = None,
    tell: Tell = untold,
) -> Corpus:
    """Load texts as token files; read and tokenise them first where nobody did yet.

    Args:
        data: A text file, a folder of ``.txt`` files (or one with ``train`` and ``test``), or the film reviews as
            `unisono.data.sets.imdb.load_imdb` takes them; None: those of an earlier download. A file is a document, or
            several with ``<|endoftext|>`` between them.
        test_data: Texts to hold out; None: every tenth document, of a single one the last tenth of its lines, of the
            film reviews every tenth of those of their test part, whose films are others.
        vocabulary: Most entries of the tokeniser, from 512 to 65,536.
        limit: Use at most so many training documents and so many held-out ones.
        cache: Directory for the token files; ``~/.cache/unisono`` where None.
        tell: Told how far the preparation is.

    Raises:
        ConfigError: The library ``tokenizers`` is not installed.
        DataError: Something is missing, empty or no UTF-8.
    """
    home = cache or default_cache({})
    tokenizers = _library()
    reviews = _find_reviews(data, home)
    sources = [reviews] if reviews is not None else sources_of(data, test_data) if data is not None else []
    files = [file for source in sources for file in _files_of(source)]
    named = json.dumps([(_name(file, sources), whole_identity(file, home)) for file in files])
    settings: dict[str, str | int | None] = {
        "vocabulary": vocabulary, "limit": limit, "sources": len(sources), "tokenizers": tokenizers.__version__,
    }  # fmt: skip
    key = cache_key(source_sha256=named, settings=settings, format_version=_FORMAT_VERSION)

    def build(directory: Path) -> None:
        parts = _review_texts(reviews, tell) if reviews is not None else _own_texts(sources)
        train, test = (_spread(part, limit) for part in parts)
        _save(directory, train, test, vocabulary, tell)

    entry = cached_directory(home / "lm" / f"tokens-{key}", build)
    about = json.loads((entry / "about.json").read_bytes())
    return Corpus(
        train=entry / "train.bin", test=entry / "test.bin", tokeniser=entry / "tokeniser.json",
        vocabulary=about["vocabulary"], facts=about["facts"],
    )  # fmt: skip


def load_tokeniser(content: bytes) -> Any:
    """Return the ``tokenizers.Tokenizer`` in a corpus' file; `ConfigError` where the library is missing."""
    return _library().Tokenizer.from_str(content.decode())


def _library() -> Any:
    with needing("recipes", "texts are cut by tokenizers: "):
        import tokenizers
    return tokenizers


def _find_reviews(data: Path | None, cache: Path) -> Path | None:
    """Return the archive or folder of film reviews, None for other texts."""
    if data is None:
        try:
            return find_source(None, cache, offline=True)
        except DataError as error:
            raise DataError(f"{error} Or: --data FILE|DIR, texts of your own.") from None
    is_archive = data.is_file() and data.name.endswith((".tar.gz", ".tgz"))
    holds = data.is_dir() and ((data / "aclImdb").is_dir() or any((data / name).is_file() for name in PINS))
    is_extracted = all((data / split / "pos").is_dir() for split in SPLITS)
    return find_source(data, cache, offline=True) if is_archive or holds or is_extracted else None


def _review_texts(source: Path, tell: Tell) -> list[list[str]]:
    """Return the training reviews, and every tenth of the test part, with line ends in place of their marks."""
    reviews = read_reviews(source, tell=tell)
    parts = [[review.text.replace("<br />", "\n") for review in reviews if review.split == split] for split in SPLITS]
    return [parts[0], parts[1][::_HELD_OUT]]


def _own_texts(sources: Sequence[Path]) -> list[list[str]]:
    """Return training and held-out documents, each not empty."""
    parts = [[text for file in _files_of(source) for text in documents_of(file)] for source in sources]
    if len(parts) == 1:
        texts = parts[0]
        if len(texts) == 1:
            lines = texts[0].splitlines(keepends=True)
            cut = len(lines) - -(-len(lines) // _HELD_OUT)
            parts = [["".join(lines[:cut])], ["".join(lines[cut:])]]
        else:
            last = min(_HELD_OUT, len(texts)) - 1
            parts = [[text for index, text in enumerate(texts) if index % _HELD_OUT != last], texts[last::_HELD_OUT]]
    for source, part in zip([sources[0], sources[-1]], parts, strict=True):
        if not any(text.strip() for text in part):
            raise DataError(
                f"{source}: expected texts to train on and texts to hold out, found too little. "
                "Hint: at least 2 documents, or 2 lines of one."
            )
    return parts


def documents_of(file: Path) -> list[str]:
    """Return the documents of a text file; `DataError` where it cannot be read or is no UTF-8."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{file}: expected UTF-8, found byte {error.object[error.start]:#04x} at byte {error.start:,}. "
            "Hint: iconv -f latin1 -t utf-8."
        ) from None
    except OSError as error:
        raise DataError(f"{file}: expected a readable file, found: {error.strerror}. Hint: check the path.") from None
    return [stripped for part in text.split(SEPARATOR) if (stripped := part.strip())]


def _files_of(source: Path) -> list[Path]:
    if not source.is_dir():
        if not source.exists():
            raise DataError(f"{source}: expected a text file or a folder of them, found nothing. Hint: check the path.")
        return [source]
    found = sorted(path for path in source.rglob("*") if path.is_file() and not path.is_symlink())
    texts = [path for path in found if path.suffix == ".txt"]
    if texts or source.name in SPLITS or any(path.name in PINS for path in found):
        return texts or found
    raise DataError(
        f"{source}: expected .txt files in this folder, found none. Hint: check the path, or name one file."
    )


def _name(file: Path, sources: Sequence[Path]) -> str:
    """Return a file's name as its folder knows it: the same wherever that lies."""
    for number, source in enumerate(sources):
        if file.is_relative_to(source) and file != source:
            return f"{number}/{file.relative_to(source).as_posix()}"
    return f"{[source == file for source in sources].index(True)}"


def _spread(texts: list[str], limit: int | None) -> list[str]:
    """Return at most `limit` texts, evenly over all."""
    count = len(texts) if limit is None else min(limit, len(texts))
    return [texts[number * len(texts) // count] for number in range(count)]


def _save(directory: Path, train: list[str], test: list[str], vocabulary: int, tell: Tell) -> None:
    """Learn the tokens from the training texts, and write all of it into `directory`."""
    tokeniser = _learn(train, vocabulary, tell)
    facts = {}
    for name, texts in (("train", train), ("test", test)):
        facts[f"{name}_documents"], facts[f"{name}_tokens"] = len(texts), 0
        with (directory / f"{name}.bin").open("wb") as file:
            for first in range(0, len(texts), _TOGETHER):
                tell(f"encoding {name} texts", first, len(texts))
                for encoded in tokeniser.encode_batch(texts[first : first + _TOGETHER]):
                    tokens = np.array([*encoded.ids, END], dtype="<u2")
                    facts[f"{name}_tokens"] += len(tokens)
                    file.write(tokens.tobytes())
    tokeniser.save(str(directory / "tokeniser.json"))
    about = {"vocabulary": tokeniser.get_vocab_size(), "facts": facts}
    (directory / "about.json").write_text(json.dumps(about))


def _learn(texts: list[str], vocabulary: int, tell: Tell) -> Any:
    """Return byte pairs as GPT-2 has them: no character is unknown, and every text comes back as it was."""
    tokenizers = _library()
    tell("learning tokens", 0, 0)
    tokeniser = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokeniser.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokeniser.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[SEPARATOR], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokeniser.train_from_iterator(texts, trainer)
    return tokeniser
