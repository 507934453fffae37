"""What a micro-batch of texts costs: the article's gated CNN as written, and the recipe's, in turn in one process.

    python benchmarks/text_step.py [--rounds 12] [--quick] [--out DIR]

Forward and backward on one thread, CPU milliseconds, of texts of invented words whose lengths are spread like those of
film reviews; every round has other lengths. ``as written`` is measured with freed memory kept, which it does not have
by itself: the ratio is of the kernels alone, and of padding. ``products of slices`` is the recipe without oneDNN.
"""

import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from harness import in_turn, parser_of, rounds_of, save, slug
from results import Result
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent / "baselines"))
import jobs
from unisono.data.sets.texts import pack
from unisono.determinism.switches import set_determinism
from unisono.recipes import kernels
from unisono.recipes.gated_cnn import GatedCNN
from unisono.system.memory import keep_freed_memory

WORDS = 15_000


def reviews(texts: int, drawn: np.random.Generator) -> list[np.ndarray]:
    lengths = np.clip(drawn.lognormal(5.4, 0.65, texts), 20, 2500).astype(int)
    return [drawn.integers(1, WORDS, length).astype(np.int32) for length in lengths]


def as_written(model: jobs.GCNN, texts: int, drawn: np.random.Generator) -> float:
    batch = [(2, words.tolist()) for words in reviews(texts, drawn)]
    target, padded = jobs.Collate({}, tokenised=True)(batch)
    began = time.process_time()
    model.zero_grad()
    jobs.text_loss(model(padded), target).backward()
    return (time.process_time() - began) * 1e3


def packed(model: GatedCNN, texts: int, drawn: np.random.Generator, *, has_onednn: bool) -> float:
    batch = pack(reviews(texts, drawn))
    kernels.HAS_ONEDNN = has_onednn
    began = time.process_time()
    model.zero_grad()
    F.cross_entropy(model(batch), torch.zeros(texts, dtype=torch.int64)).backward()
    return (time.process_time() - began) * 1e3


def main() -> None:
    given = parser_of(__doc__, rounds=12).parse_args()
    keep_freed_memory()
    set_determinism(1)
    texts, article, recipe = 8 if given.quick else 128, jobs.GCNN(), GatedCNN(WORDS)
    names = ["as written", "the recipe's, products of slices", "the recipe's"]
    draws = [np.random.default_rng(0) for _ in names]  # each of them gets the same texts
    ways = dict(zip(names, (
        partial(as_written, article, texts, draws[0]),
        partial(packed, recipe, texts, draws[1], has_onednn=False),
        partial(packed, recipe, texts, draws[2], has_onednn=kernels.HAS_ONEDNN),
    ), strict=True))  # fmt: skip
    times = in_turn(ways, rounds_of(given), warm_up=1)
    pairs = [(names[1], names[0], "the article's as written"), (names[2], names[0], "the article's as written"),
             (names[2], names[1], "products of slices")]  # fmt: skip
    save(given, [
        Result.of(
            slug(f"gated cnn {name} against {peer}"), times[name], against=times[other], peer=peer, unit="ms",
            topic="Steps", settings={"texts": texts}, what=f"gated CNN, forward and backward, CPU time: {name}",
        )
        for name, other, peer in pairs
    ])  # fmt: skip


if __name__ == "__main__":
    main()
