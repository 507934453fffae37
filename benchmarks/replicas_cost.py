"""What replicas cost on one process: the exact step against a bare loop over the same micro-batches.

    python benchmarks/replicas_cost.py [--rounds 9] [--quick] [--out DIR]

One thread, 1 and 8 replicas, micro-batches that are in memory. The bare loop calls forward and backward on each
micro-batch, lets torch add the gradients up in ``param.grad``, and steps the optimizer: what smaller kernels cost is in
both. Beside it stands plain torch with the whole batch at once. All three take turns; a sample is the median step of a
segment.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from harness import in_turn, parser_of, rounds_of, save, slug
from results import Bar, Result
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.recipes.mnist import SimpleCNN

VOCABULARY = 1000


class Transformer(nn.Module):
    """Six layers of width 256 that name the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Linear(256, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens))).transpose(1, 2)


def images(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 1, 28, 28), torch.randint(0, 10, (n,))


def tokens(n: int) -> tuple[Tensor, Tensor]:
    return torch.randint(0, VOCABULARY, (n, 32)), torch.randint(0, VOCABULARY, (n, 32))


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Tensor]], int, int]] = {
    "SimpleCNN": (SimpleCNN, images, 128, 10),
    "transformer 5.3 M": (Transformer, tokens, 32, 2),
}
"""Model, data, batch, steps of a segment."""


class Ready:
    """Micro-batches that are in memory: which one, the number of the first sample says."""

    def __init__(self, micros: list[tuple[Tensor, Tensor]], batch: int) -> None:
        self._micros, self._length = micros, 10**5 * batch

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self._micros[0][0][0], self._micros[0][1][0]

    def fetch_micro_batch(self, indices: np.ndarray) -> tuple[Tensor, Tensor]:
        return self._micros[int(indices[0]) % len(self._micros)]


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, foreach=True)


def exact_step(run: unisono.Run, model: nn.Module, data: Ready, batch: int) -> Callable[[], object]:
    run.prepare(model, optimizer_of(model))
    batches = run.steps(run.loader(data, batch_size=batch), epochs=1)
    return lambda: run.step(next(batches), lambda micro: F.cross_entropy(model(micro.x), micro.y))


def bare_step(model: nn.Module, micros: list[tuple[Tensor, Tensor]]) -> Callable[[], object]:
    optimizer = optimizer_of(model)

    def step() -> None:
        optimizer.zero_grad()
        for x, y in micros:
            (F.cross_entropy(model(x), y) / len(micros)).backward()
        optimizer.step()

    return step


def segment(step: Callable[[], object], count: int) -> float:
    """Return the median milliseconds of steps."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        step()
        taken.append((time.perf_counter() - began) * 1e3)
    return statistics.median(taken)


def main() -> None:
    given = parser_of(__doc__, rounds=9).parse_args()
    found = []
    jobs = list(JOBS.items())[: 1 if given.quick else None]
    for (name, (build, make, full, count)), replicas in ((job, v) for job in jobs for v in (1, 8)):
        torch.manual_seed(0)
        batch = replicas if given.quick else full
        x, y = make(batch)
        micros = [(a.clone(), b.clone()) for a, b in zip(x.chunk(replicas), y.chunk(replicas), strict=True)]
        with unisono.Run(seed=0, replicas=replicas, threads=1) as run:
            steps = {
                "exact": exact_step(run, build(), Ready(micros, batch), batch),
                "bare": bare_step(build(), micros),
                "whole": bare_step(build(), [(x, y)]),
            }
            ways = {kind: partial(segment, step, 1 if given.quick else count) for kind, step in steps.items()}
            times = in_turn(ways, rounds_of(given))
        found += [
            Result.of(
                slug(f"{name} {replicas} {peer}"), times["exact"], against=times[peer], peer=words, unit="ms a step",
                topic="Steps", what=f"a step of Run with its replicas on one process, {name}",
                bar=Bar(of="ratio", at_least=round(1 / 1.05, 4)) if peer == "bare" else None,
                settings={"replicas": replicas, "batch": batch},
            )
            for peer, words in (("bare", "a bare loop over the same batches"), ("whole", "plain torch, one batch"))
        ]  # fmt: skip
    save(given, found)


if __name__ == "__main__":
    main()
