"""Text as numbers: tokens, vocabulary, and the token store that every worker maps instead of tokenising.

In: texts with labels. Out: per split one flat array of token numbers on disk, with offsets and labels,
built once per machine by the launcher and opened memory-mapped by the workers. All of it is a pure function
of the texts and the settings. Imports no torch.
"""

import json
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from unisono.data.files.cache import check_manifest
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import COUNT
from unisono.system.files import replace_file

PAD, UNK = 0, 1
SPECIALS = ("<pad>", "<unk>")
FORMAT_VERSION = 1
ARRAYS = {"tokens": "int32", "offsets": "int64", "labels": "int64"}

# The rules of torchtext's "basic_english", in its order. Its last rule, white space to one blank and then
# split, is str.split() without argument: the same characters count as white space.
RULES = (
    ("'", " '  "),
    ('"', ""),
    (".", " . "),
    ("<br />", " "),
    (",", " , "),
    ("(", " ( "),
    (")", " ) "),
    ("!", " ! "),
    ("?", " ? "),
    (";", " "),
    (":", " "),
)


def basic_english(text: str) -> list[str]:
    """Cut a text into lower-case tokens by the rules of torchtext's ``basic_english``.

    Example:
        >>> basic_english("It's good.<br />Isn't it?")
        ['it', "'", 's', 'good', '.', 'isn', "'", 't', 'it', '?']

    Source: pytorch/text, torchtext/data/utils.py (rules only).
    """
    text = text.lower()
    for old, new in RULES:
        text = text.replace(old, new)
    return text.split()


@final
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Vocabulary:
    """The words that have a number of their own.

    Number 0 is ``<pad>`` and never stands for a word; 1 is ``<unk>`` and stands for every other word, also
    for a text that spells ``<pad>`` itself.
    """

    words: tuple[str, ...]  #: Number to word, the two specials first.
    _numbers: dict[str, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.words[:2] != SPECIALS or len(set(self.words)) != len(self.words):
            raise DataError(f"expected distinct words that begin with {SPECIALS}, found {self.words[:4]}...")
        numbers = {word: number for number, word in enumerate(self.words) if number > UNK}
        object.__setattr__(self, "_numbers", numbers)

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} entries)"

    def encode(self, tokens: Iterable[str]) -> NDArray[np.int32]:
        """Return the number of each token, (num_tokens,) int32; unknown ones are `UNK`, none is `PAD`."""
        return np.fromiter((self._numbers.get(token, UNK) for token in tokens), dtype=np.int32)

    def to_json(self) -> bytes:
        """Return the words as a JSON list."""
        return json.dumps(self.words).encode("ascii")

    def save(self, path: Path) -> None:
        """Write `to_json`, atomically."""
        replace_file(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote; `DataError` where the file is missing or does not hold a vocabulary."""
        try:
            words = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise DataError(f"{path}: expected a vocabulary, found: {error}. Hint: delete {path.parent}.") from None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise DataError(f"{path}: expected a JSON list of words. Hint: delete {path.parent}.")
        return cls(words=tuple(words))


def build_vocabulary(token_counts: Mapping[str, int], *, min_freq: int = 1) -> Vocabulary:
    """Choose the words that get a number: the frequent ones, ordered by (-count, word).

    Args:
        token_counts: How often each token occurs in the training texts; its order does not matter.
        min_freq: A word needs at least so many occurrences.

    Raises:
        ConfigError: `min_freq` below 1, or no word is left.
    """
    min_freq = COUNT.take("min_freq", min_freq)
    kept = [word for word, count in token_counts.items() if count >= min_freq and word not in SPECIALS]
    if not kept:
        most = max(token_counts.values(), default=0)
        raise ConfigError(
            f"expected a word with at least {min_freq} occurrences, the most frequent has {most}. "
            f"Hint: use min_freq={max(1, most)} or less, or more text."
        )
    kept.sort(key=lambda word: (-token_counts[word], word))
    return Vocabulary(words=(*SPECIALS, *kept))


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenisedTexts:
    """Texts after the tokeniser, before a vocabulary is chosen: one pass over the texts serves both."""

    ids: NDArray[np.int32]  #: (num_tokens,) int32, position of each token in `words`; all texts one after another.
    offsets: NDArray[np.int64]  #: (num_texts + 1,) int64; text i is ``ids[offsets[i]:offsets[i + 1]]``.
    words: tuple[str, ...]  #: The distinct tokens in order of first appearance.

    def counts(self) -> dict[str, int]:
        """Return how often each token occurs."""
        found = np.bincount(self.ids, minlength=len(self.words))
        return dict(zip(self.words, found.tolist(), strict=True))

    def encode(self, vocabulary: Vocabulary) -> NDArray[np.int32]:
        """Return `ids` renumbered by a vocabulary, (num_tokens,) int32."""
        return vocabulary.encode(self.words)[self.ids]


def tokenise(texts: Iterable[str], *, tokeniser: Callable[[str], list[str]] = basic_english) -> TokenisedTexts:
    """Cut texts into tokens and number these in order of first appearance (about 3 s for 25,000 reviews)."""
    numbers: defaultdict[str, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    ids, offsets = array("i"), array("q", [0])
    for text in texts:
        ids.extend(map(numbers.__getitem__, tokeniser(text)))
        offsets.append(len(ids))
    return TokenisedTexts(
        ids=np.array(ids, dtype=np.int32), offsets=np.array(offsets, dtype=np.int64), words=tuple(numbers)
    )


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class TokenStore:
    """The texts of one split as one flat array; ``store[i]`` is ``(tokens, label)``.

    A store opened from a directory is memory-mapped and pickles as its path: workers share its pages.
    """

    tokens: NDArray[np.int32]  #: (num_tokens,) int32, all texts one after another.
    offsets: NDArray[np.int64]  #: (num_texts + 1,) int64; text i is ``tokens[offsets[i]:offsets[i + 1]]``.
    labels: NDArray[np.int64]  #: (num_texts,) int64.
    #: Directory and split name it was opened from, None for one built in memory.
    origin: tuple[Path, str] | None = None

    def __post_init__(self) -> None:
        found = {name: (getattr(self, name).dtype, getattr(self, name).ndim) for name in ARRAYS}
        if found != {name: (np.dtype(dtype), 1) for name, dtype in ARRAYS.items()}:
            raise DataError(f"expected flat arrays {ARRAYS}, found {found} in {self.origin}.")
        fits = len(self.offsets) == len(self.labels) + 1 and self.offsets[0] == 0
        if not fits or self.offsets[-1] != len(self.tokens) or np.any(np.diff(self.offsets) < 0):
            raise DataError(
                f"expected {len(self.labels) + 1} offsets that rise from 0 to {len(self.tokens)}, "
                f"found {self.offsets} in {self.origin}."
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"TokenStore({len(self)} texts, {len(self.tokens)} tokens)"

    def __getitem__(self, index: int) -> tuple[NDArray[np.int32], int]:
        """Return one text, (num_tokens_of_text,) int32, a read-only view when mapped, and its label."""
        if not 0 <= index < len(self):
            raise IndexError(f"expected 0 <= index < {len(self)}, got {index}.")
        start, stop = self.offsets[index], self.offsets[index + 1]
        return self.tokens[start:stop], int(self.labels[index])

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is not None:
            return TokenStore.open, self.origin
        return _from_arrays, (self.tokens, self.offsets, self.labels)

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each text, (num_texts,) int64."""
        return np.diff(self.offsets)

    def save(self, directory: Path, split: str) -> None:
        """Write the three arrays as ``SPLIT_tokens.npy`` and so on, each atomically."""
        for name in ARRAYS:
            replace_file(directory / f"{split}_{name}.npy", partial(np.save, arr=getattr(self, name)))

    @classmethod
    def open(cls, directory: Path, split: str) -> Self:
        """Map the arrays of one split from a directory that `cached_directory` made, checksums verified."""
        check_manifest(directory, f"{split}_")
        try:
            found = {name: np.load(directory / f"{split}_{name}.npy", mmap_mode="r") for name in ARRAYS}
        except (OSError, ValueError) as error:
            raise DataError(
                f"{directory}: expected the arrays of split {split!r}, found: {error}. "
                f"Hint: delete {directory}; it is built again."
            ) from None
        arrays = {name: values.view(np.ndarray) for name, values in found.items()}
        return cls(**arrays, origin=(directory, split))


def _from_arrays(tokens: NDArray[np.int32], offsets: NDArray[np.int64], labels: NDArray[np.int64]) -> TokenStore:
    return TokenStore(tokens=tokens, offsets=offsets, labels=labels)
