"""Whether what crosses a link is coded: measured, forecast and tried, all ranks decide alike, and it stays so.

In the first step nothing is computed while gradients are on their way: it tells how fast the link is. The second one
tells how long a rank computes meanwhile, and what the codec makes of its gradients. Where every rank finds that coded
messages would be faster, eight steps are coded and plain by turns, since a forecast by two steps may be wrong: with it
alone, one of ten runs took a third longer. From then on messages are coded if every rank's fastest coded step was
faster. No bit of a result depends on it.
"""

import math
import time
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from unisono.collectives.coding.codec import Measured, decode, encode, pick, room

_TRIES = 8
"""Steps that try both."""

_TRIED_BYTES = 4 << 20
"""Of the gradients, to measure the codec: some 20 ms, once."""


@final
class LinkTrial:
    """One exchange's choice: ``none``, ``planes``, or ``auto``."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.wish = 0  #: What this rank tells the others when a step starts: 1 for coded messages.
        self._is_coded = mode == "planes"
        self._steps = 2 if mode == "auto" else 0  # left to measure
        self._tries: int | None = None if mode == "auto" else 0  # left to try; None: not yet known whether to
        self._took = {True: math.inf, False: math.inf}  # seconds of the fastest exchange, by whether it is coded
        self._began = self._first = self._last = self._link = 0.0
        self._num_given = 0

    def start(self, wishes: Sequence[int]) -> bool:
        """Start a step, and return whether its messages are coded."""
        if self.mode == "auto" and not self._steps:
            if self._tries is None:
                self._tries = _TRIES if all(wishes) else 0
            self._is_coded = self._tries % 2 == 0 if self._tries else all(wishes)
        self._began = self._first = self._last = time.perf_counter()
        self._num_given = 0
        return self._is_coded

    def given(self) -> None:
        """Note that this rank has computed one more bucket."""
        self._last = time.perf_counter()
        self._first = self._first if self._num_given else self._last
        self._num_given += 1

    def end(self, num_bytes: int, outs: Sequence[Tensor]) -> None:
        """End a step."""
        if not num_bytes:
            return
        if self._tries:
            self._took[self._is_coded] = min(self._took[self._is_coded], time.perf_counter() - self._began)
            self._tries -= 1
            self.wish = int(self._took[True] < self._took[False])
        if not self._steps:
            return
        self._steps -= 1
        if self._steps:
            self._link = num_bytes / max(1e-9, time.perf_counter() - self._began)
            return
        encoded, decoded, ratio = speeds(outs)
        found = Measured(
            link=self._link, encoded=encoded, decoded=decoded, ratio=ratio,
            computing=(self._last - self._first) / num_bytes,
        )  # fmt: skip
        self.wish = int(pick(found) == "planes")


def speeds(outs: Sequence[Tensor]) -> tuple[float, float, float]:
    """Return bytes that this rank encodes in a second, those that it decodes, and how many times fewer they are."""
    raw, coded, encoding, decoding = 0, 0, 0.0, 0.0
    for out in outs:
        piece = out[: max(1, _TRIED_BYTES // len(outs) // out.element_size())]
        into, back = torch.zeros(room(piece), dtype=torch.uint8), torch.zeros_like(piece)
        began = time.perf_counter()
        message = encode(piece, into)
        between = time.perf_counter()
        decode(message, back)
        encoding, decoding = encoding + between - began, decoding + time.perf_counter() - between
        raw, coded = raw + piece.nbytes, coded + len(message)
    return raw / encoding, raw / decoding, raw / coded
