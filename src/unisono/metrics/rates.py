"""Rates: perplexity of a language model, samples per second."""

import math
import time
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from unisono.metrics.base import Metric, check_dim, class_dim, mean_of, mean_state, num_samples


@final
class Perplexity(Metric):
    """The exponential of the mean negative log-likelihood per token; the sum over tokens is exact.

    Outputs are logits (n, vocabulary, ...) or (n, ..., vocabulary) with targets (n, ...). NaN where a token's
    likelihood is NaN or zero.

    Args:
        ignore_index: Targets with this value are left out (padding).
        dim: Of the vocabulary in the logits: 1, or -1 as language models have it. None: whichever fits the targets;
            logits whose vocabulary is as long as the text fit both and are refused, so say it where that can happen.

    Raises:
        ConfigError: Another `dim`; in `update`: other shapes, or logits that could be read both ways.
    """

    def __init__(self, *, ignore_index: int = -100, dim: int | None = None) -> None:
        check_dim(dim)
        self.state = [0, 0, 0]
        self._ignore_index, self._dim = ignore_index, dim

    def update(self, output: Tensor, target: Tensor) -> None:
        dim = class_dim(output, target, self._dim, "Perplexity")
        logits = output.movedim(dim, -1).reshape(-1, output.shape[dim])
        tokens = target.reshape(-1)
        losses = F.cross_entropy(logits, tokens, ignore_index=self._ignore_index, reduction="none")
        losses = losses[tokens != self._ignore_index]
        self.merge(mean_state(losses.to(torch.float64).tolist(), len(losses)))

    def compute(self) -> float:
        mean = mean_of(self.state)
        return math.exp(mean) if mean < 700 else math.nan if math.isnan(mean) else math.inf


@final
class Throughput(Metric):
    """Samples per second of all ranks together, from `reset` to the last `update` of the slowest rank.

    The one metric here whose value is not a function of the score: it measures time.
    """

    def __init__(self) -> None:
        self.reset()

    def update(self, output: Tensor, target: Tensor) -> None:
        self.merge([num_samples(target), time.monotonic_ns() - self._began_ns])

    def compute(self) -> float:
        samples, nanoseconds = self.state
        return samples * 1e9 / nanoseconds if nanoseconds else 0.0

    def reset(self) -> None:
        """See `Metric.reset`; the clock starts again at zero."""
        self.state = [0, 0]
        self._began_ns = time.monotonic_ns()

    def merge(self, state: list[int]) -> None:
        """Add the samples; the longest time counts."""
        self.state = [self.state[0] + state[0], max(self.state[1], state[1])]
