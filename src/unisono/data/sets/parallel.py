"""Cut texts into tokens on all cores, with the result of one.

Helper processes get a contiguous share of the texts each and send back token numbers of their own; the shares are put
together in order, so the result is bit-equal for any number of helpers. The helpers are fresh interpreters, not forks:
they inherit no threads and no locks. Imports no torch.
"""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from unisono.data.files.fetch import Tell, told, untold
from unisono.data.sets.text import TokenisedTexts, TokenStore, build_vocabulary, tokenise
from unisono.errors import DataError

MIN_CHARACTERS = 4_000_000
"""Below it one process is done before a second one has started."""
MAX_PROCESSES = 16
_SIGN_EVERY = 250  # texts
_SIGN, _END = b".", b"!"
_WHAT = "cutting texts into tokens"
_HEAD = struct.Struct("<qqq")  # bytes of ids, of offsets, of words


def tokenise_all(texts: Sequence[str], *, num_processes: int | None = None, tell: Tell = untold) -> TokenisedTexts:
    """Return what `tokenise` returns for all texts, computed by several processes where that is faster.

    Args:
        texts: In order.
        num_processes: Helpers; None: one per core that this process may use, for enough text.
        tell: Told how many texts are done.

    Raises:
        DataError: A helper died.
    """
    if num_processes is None:
        many = min(len(os.sched_getaffinity(0)), MAX_PROCESSES)
        num_processes = many if sum(map(len, texts)) >= MIN_CHARACTERS else 1
    if num_processes < 2 or len(texts) < num_processes:
        return tokenise(told(texts, _WHAT, len(texts), tell))
    shares = [texts[start:stop] for start, stop in pairwise(_cuts(texts, num_processes))]
    reader, writer = os.pipe()
    with ThreadPoolExecutor(num_processes) as pool, os.fdopen(reader, "rb", buffering=0) as incoming:
        try:
            helpers = [pool.submit(_in_helper, share, writer) for share in shares]
            for helper in helpers:
                helper.add_done_callback(lambda _: os.write(writer, _END))
            _listen(incoming, len(texts), len(helpers), tell)
            return merge([helper.result() for helper in helpers])
        finally:
            pool.shutdown()  # before the pipe goes, into which the last helpers write
            os.close(writer)


def save_texts(
    directory: Path, texts: Sequence[Sequence[str]], labels: Sequence[NDArray[np.int64]], tell: Tell, min_freq: int
) -> None:
    """Tokenise training and test texts, build the vocabulary from the first, and write all of it."""
    tokenised = [tokenise_all(part, tell=tell) for part in texts]
    vocabulary = build_vocabulary(tokenised[0].counts(), min_freq=min_freq)
    for split, part, target in zip(("train", "test"), tokenised, labels, strict=True):
        TokenStore(tokens=part.encode(vocabulary), offsets=part.offsets, labels=target).save(directory, split)
    vocabulary.save(directory / "vocabulary.json")


def _listen(incoming: BinaryIO, num_texts: int, num_helpers: int, tell: Tell) -> None:
    """Tell how many texts the helpers have done, until the last of them has ended."""
    done, ended = 0, 0
    tell(_WHAT, 0, num_texts)
    while ended < num_helpers:
        signs = incoming.read(1 << 10)
        ended += signs.count(_END)
        done += signs.count(_SIGN) * _SIGN_EVERY
        tell(_WHAT, min(done, num_texts), num_texts)
    tell(_WHAT, num_texts, num_texts)


def _cuts(texts: Sequence[str], parts: int) -> list[int]:
    """Return where to cut so that the parts have about equal numbers of characters."""
    ends = np.fromiter(accumulate(map(len, texts)), dtype=np.int64)
    inner = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts).tolist()
    return [0, *inner, len(texts)]


def merge(parts: Sequence[TokenisedTexts]) -> TokenisedTexts:
    """Return parts of one sequence of texts as a whole: as if one process had read them in order."""
    numbers: dict[str, int] = {}
    ids, offsets, start = [], [np.zeros(1, dtype=np.int64)], 0
    for part in parts:
        renumbered = np.array([numbers.setdefault(word, len(numbers)) for word in part.words], dtype=np.int32)
        ids.append(renumbered[part.ids] if len(part.ids) else part.ids)
        offsets.append(part.offsets[1:] + start)
        start += len(part.ids)
    return TokenisedTexts(ids=np.concatenate(ids), offsets=np.concatenate(offsets), words=tuple(numbers))


def _in_helper(texts: Sequence[str], writer: int) -> TokenisedTexts:
    """Cut one share in a process of its own, which writes a sign into a pipe (`writer`) as it goes."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"from unisono.data.sets.parallel import serve; serve(writer={writer})"],
        input=json.dumps(texts).encode("ascii"),
        capture_output=True,
        check=False,
        pass_fds=(writer,),
    )
    if done.returncode != 0:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise DataError(
            f"a tokenising process ended with code {done.returncode}: {last or 'it said nothing'}. "
            "Hint: is there memory left? Nothing was cached."
        )
    sizes = _HEAD.unpack_from(done.stdout)
    bounds = pairwise(accumulate(sizes, initial=_HEAD.size))
    ids, offsets, words = (done.stdout[start:stop] for start, stop in bounds)
    return TokenisedTexts(
        ids=np.frombuffer(ids, dtype=np.int32),
        offsets=np.frombuffer(offsets, dtype=np.int64),
        words=tuple(json.loads(words)),
    )


def serve(source: BinaryIO | None = None, target: BinaryIO | None = None, *, writer: int | None = None) -> None:
    """Be a helper: texts as JSON from `source`, tokens to `target`, a byte to `writer` every `_SIGN_EVERY` texts."""

    def give_sign(_: str, done: int, total: int) -> None:
        if writer is not None and done and done % _SIGN_EVERY == 0:
            os.write(writer, _SIGN)

    texts = json.loads((source or sys.stdin.buffer).read())
    found = tokenise(told(texts, _WHAT, len(texts), give_sign))
    pieces = [found.ids.tobytes(), found.offsets.tobytes(), json.dumps(found.words).encode("ascii")]
    out = target or sys.stdout.buffer
    out.write(_HEAD.pack(*map(len, pieces)))
    for piece in pieces:
        out.write(piece)
    out.flush()
