"""Perplexity is exact over tokens; throughput counts all ranks' samples in the slowest rank's time."""

import math

import pytest
import torch
from torch.nn import functional as F

from metrics.shards import same_everywhere
from unisono.errors import ConfigError
from unisono.metrics.rates import Perplexity, Throughput


def test_perplexity_of_tokens():
    """Each token counts once, padding never; one to four ranks agree to the bit; both layouts give the same."""
    generator = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(23, 9, 11, generator=generator), torch.randint(0, 11, (23, 9), generator=generator)
    tokens[:, 6:] = torch.where(torch.rand(23, 3, generator=generator) < 0.5, -100, tokens[:, 6:])
    ours = same_everywhere(Perplexity, logits, tokens, batch_size=3)
    wanted = F.cross_entropy(logits.double().reshape(-1, 11), tokens.reshape(-1), ignore_index=-100).exp().item()
    assert ours == pytest.approx(wanted, rel=1e-6)
    assert same_everywhere(Perplexity, logits.movedim(2, 1), tokens, batch_size=3) == pytest.approx(ours, rel=1e-6)


def test_the_mean_of_batch_means_is_another_number():
    """Negative control: batches hold different numbers of tokens."""
    generator = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(4, 5, 7, generator=generator) * 3, torch.randint(0, 7, (4, 5), generator=generator)
    tokens[0, 1:] = -100
    means = [F.cross_entropy(logits[i], tokens[i], ignore_index=-100).item() for i in range(4)]
    ours = same_everywhere(Perplexity, logits, tokens, batch_size=1)
    assert abs(ours - math.exp(sum(means) / 4)) > 1e-3


def test_perplexity_at_the_edges():
    """Nothing seen is 1; an impossible token makes it NaN, a hopeless model infinite."""
    nothing = Perplexity()
    assert nothing.compute() == 1.0
    nothing.update(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]))
    assert math.isnan(nothing.compute())
    hopeless = Perplexity()
    hopeless.update(torch.tensor([[0.0, -5000.0]]), torch.tensor([1]))
    assert hopeless.compute() == math.inf


def test_perplexity_refuses_other_shapes():
    """Shapes that fit no layout are shown."""
    with pytest.raises(ConfigError, match=r"\(2, 3\) and \(3,\)"):
        Perplexity().update(torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64))


def test_throughput(monkeypatch):
    """Samples of all shards over the longest time; nothing seen is 0; a reset starts the clock anew."""
    clock = iter([0, 10, 50, 100, 400, 700, 1000])
    monkeypatch.setattr("unisono.metrics.rates.time.monotonic_ns", lambda: next(clock) * 10**9)
    fast = Throughput()  # at 0
    assert fast.compute() == 0.0
    fast.update(torch.zeros(30), torch.zeros(30))  # at 10
    fast.update(torch.zeros(20), torch.zeros(20))  # at 50
    slow = Throughput()  # at 100
    slow.update(torch.zeros(70), torch.zeros(70))  # at 400
    fast.merge(slow.state)
    assert fast.compute() == (30 + 20 + 70) / 300
    slow.reset()  # at 700
    slow.update(torch.zeros(6), torch.zeros(6))  # at 1000
    assert slow.compute() == 6 / 300


def test_a_vocabulary_as_long_as_the_text():
    """Logits that could be read both ways are refused; `dim` says which is meant."""
    generator = torch.Generator().manual_seed(0)
    logits, tokens = torch.randn(3, 4, 4, generator=generator), torch.randint(0, 4, (3, 4), generator=generator)
    expected = torch.nn.functional.cross_entropy(logits.reshape(-1, 4).double(), tokens.reshape(-1)).exp().item()
    for dim, given in ((-1, logits), (1, logits.movedim(2, 1))):
        said = Perplexity(dim=dim)
        said.update(given, tokens)
        assert said.compute() == pytest.approx(expected, rel=1e-6)
    with pytest.raises(ConfigError, match=r"dimension 1 or 2.*Perplexity\(..., dim=-1\)"):
        Perplexity().update(logits, tokens)
    with pytest.raises(ConfigError, match="got dim=0"):
        Perplexity(dim=0)
