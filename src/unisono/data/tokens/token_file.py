"""A language model's data: files of token numbers, and what a training reads from them."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, final

import numpy as np

from unisono.data.tokens.mapped import Given, Mapped
from unisono.data.tokens.samples import Crops, Rows
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import SAMPLES, TOKENS, Count

_LENGTH = replace(TOKENS, high=1 << 20)
_TOKEN = Count(0, 2**32 - 1)


@final
class TokenFile:
    """Token numbers in files, memory-mapped and never copied as a whole; samples come from its methods.

    Raw numbers (``.bin`` as nanoGPT writes them, little-endian, or with llm.c's header), or ``.npy``. Several files are
    one data set, in their order; no sample reaches from one into the next. It is opened read-only, and goes to other
    processes as its paths.

    Args:
        paths: A file, a pattern with ``*``, or several of them.
        dtype: Of raw numbers: ``uint8``, ``uint16``, ``uint32``, ``int32``, ``int64``; None: ``uint16``.
        vocabulary: How many tokens there are; a larger number is refused when it is read. None: not looked at.
        fingerprint: How the score names the content. ``blocks``: size and hash of 64 blocks of each file, in
            milliseconds; an edit between them is not seen. ``whole``: all bytes, hashed once for a file that does not
            change.
        cache: Directory for what is worth keeping; ``~/.cache/unisono`` where None.

    Raises:
        ConfigError: A setting is none of those.
        DataError: A file is missing, empty, cut short, or holds something else.

    Example:
        >>> tokens = TokenFile("train.bin", vocabulary=50257)  # doctest: +SKIP
        >>> loader = run.loader(tokens.crops(1024), batch_size=480)
    """

    _loader_hint = "tokens.crops(length), tokens.rows(length) or tokens.packed(length, end_of_text=...)"

    def __init__(
        self,
        paths: Given,
        *,
        dtype: Literal["uint8", "uint16", "uint32", "int32", "int64"] | type[np.integer[Any]] | None = None,
        vocabulary: int | None = None,
        fingerprint: Literal["blocks", "whole"] = "blocks",
        cache: str | Path | None = None,
    ) -> None:
        if fingerprint not in ("blocks", "whole"):
            raise ConfigError(f"expected fingerprint as 'blocks' or 'whole', got {fingerprint!r}.")
        self._mapped = Mapped(paths, dtype, TOKENS.maybe("vocabulary", vocabulary))
        self._cache = None if cache is None else Path(cache)
        found = self._mapped.identities(whole=fingerprint == "whole", cache=self._cache)
        self.fingerprint: str = f"{self._mapped.dtype.name} {fingerprint} {' '.join(found)}"
        self._given: dict[str, Any] = {"dtype": dtype, "vocabulary": vocabulary, "fingerprint": fingerprint}

    @property
    def num_tokens(self) -> int:
        """Of all files together."""
        return len(self._mapped)

    def __repr__(self) -> str:
        paths = self._mapped.paths
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        return f"TokenFile({paths[0].name}{more}, {self.num_tokens:,} tokens)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._mapped.paths, self._cache, self._given)

    def crops(self, length: int, *, samples: int | None = None) -> Crops:
        """Return crops at random places, with replacement, as nanoGPT trains.

        Sample i of an epoch begins where the key (seed, epoch, i) says, every place with the same chance; in an
        evaluation the places are always the same.

        Args:
            length: Tokens of an input; the target is as long, one token later.
            samples: Of an epoch; None: as many as rows fit into the files.

        Returns:
            A data set of ``x`` and ``y``, int64 (n, length) each.

        Raises:
            ConfigError: A number is out of range.
            DataError: A file has no more than `length` tokens.
        """
        length, samples = _LENGTH.take("length", length), SAMPLES.maybe("samples", samples)
        return Crops(self._mapped, length, samples, self.fingerprint)

    def rows(self, length: int) -> Rows:
        """Return consecutive rows: every token (but the first of a file) is a target once in an epoch.

        Args:
            length: Tokens of an input. The last row of a file may have fewer: then its input ends with zeros, whose
                targets are -100.

        Returns:
            A data set of ``x`` and ``y``, int64 (n, length) each.

        Raises:
            ConfigError: `length` is out of range.
            DataError: A file has one token only.
        """
        length = _LENGTH.take("length", length)
        self._needs_two()
        return Rows(self._mapped, length, None, self.fingerprint)

    def packed(self, length: int, *, end_of_text: int) -> Rows:
        """Return rows that whole documents share, each document once in an epoch, as few rows as fit well.

        A document ends with the token `end_of_text` (which is its last target) or with its file; its first input is
        that token, too. Documents longer than a row are cut into rows and a rest. Which documents share a row
        changes from epoch to epoch, keyed by (seed, epoch). The table of the rows is made when this is called: 0.2 s
        for 300 million tokens that are in memory, 0.4 s for a million documents; from 16 million tokens on it is kept
        in the cache.

        Args:
            length: Tokens of a row.
            end_of_text: The number between documents.

        Returns:
            A data set of ``x``, a `PackedTokens` (tokens, segments, positions, int64 (n, length) each), and ``y``,
            int64 (n, length), -100 where a row has no token.

        Raises:
            ConfigError: A number is out of range.
            DataError: No document ends so.
        """
        length, end_of_text = _LENGTH.take("length", length), _TOKEN.take("end_of_text", end_of_text)
        return Rows(self._mapped, length, end_of_text, self.fingerprint, self._cache)

    def _needs_two(self) -> None:
        for path, (begin, end) in zip(
            self._mapped.paths, zip(self._mapped.begins[:-1], self._mapped.begins[1:], strict=True), strict=True
        ):
            if end - begin < 2:
                raise DataError(f"{path}: expected at least 2 tokens, found {end - begin}. Hint: leave this file out.")


def _reopen(paths: list[Path], cache: Path | None, given: dict[str, Any]) -> TokenFile:
    return TokenFile(paths, cache=cache, **given)
