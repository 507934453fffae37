"""Rates: perplexity of a language model, samples per second."""

import math
import time
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from unisono.errors import ConfigError
from unisono.metrics.exact import Metric, mean_of, mean_state


@final
class Perplexity(Metric):
    """The exponential of the mean negative log-likelihood per token; the sum over tokens is exact.

    Outputs are logits (n, vocabulary, ...) with targets (n, ...), or (n, length, vocabulary) with targets (n,
    length). NaN where a token's likelihood is NaN or zero.

    Args:
        ignore_index: Targets with this value are left out (padding).
    """

    def __init__(self, *, ignore_index: int = -100) -> None:
        self.state = [0, 0, 0]
        self._ignore_index = ignore_index

    def update(self, output: Tensor, target: Tensor) -> None:
        """See `Metric.update`."""
        if output.ndim == 3 and output.shape[:2] == target.shape:
            logits = output.reshape(-1, output.shape[2])
        elif output.ndim == target.ndim + 1 and output.shape[:1] + output.shape[2:] == target.shape:
            logits = output.movedim(1, -1).reshape(-1, output.shape[1])
        else:
            raise ConfigError(
                f"Perplexity expects logits (n, vocabulary, ...) or (n, length, vocabulary) for targets (n, ...), "
                f"got {tuple(output.shape)} and {tuple(target.shape)}."
            )
        tokens = target.reshape(-1)
        losses = F.cross_entropy(logits, tokens, ignore_index=self._ignore_index, reduction="none")
        losses = losses[tokens != self._ignore_index]
        self.merge(mean_state(losses.to(torch.float64).tolist(), len(losses)))

    def compute(self) -> float:
        """See `Metric.compute`."""
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
        """See `Metric.update`."""
        self.merge([len(target), time.monotonic_ns() - self._began_ns])

    def compute(self) -> float:
        """See `Metric.compute`."""
        samples, nanoseconds = self.state
        return samples * 1e9 / nanoseconds if nanoseconds else 0.0

    def reset(self) -> None:
        """See `Metric.reset`; the clock starts anew."""
        self.state = [0, 0]
        self._began_ns = time.monotonic_ns()

    def merge(self, state: list[int]) -> None:
        """Add the samples; the longest time counts."""
        self.state = [self.state[0] + state[0], max(self.state[1], state[1])]
