"""Gradients of four models on real data, early and late in their training: what really crosses between hosts.

A step has four replicas of 32 samples. What is kept of it: the gradient of the first replica (a leaf), the sum of the
first two (what one of two ranks sends) and the sum of all (what it gets back), each in one flat tensor.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unisono.data.sets.imdb import load_imdb
from unisono.data.sets.mnist import load_mnist
from unisono.data.sets.texts import Texts, pack
from unisono.recipes.gated_cnn import GatedCNN
from unisono.recipes.mnist import SimpleCNN

REPLICAS, SHARE = 4, 32
WORDS, WINDOW = 4096, 64
"""Of the language model: words that it knows, tokens in a sample. A replica has a quarter of the samples of others."""


class LanguageModel(nn.Module):
    """Six layers of width 352, causal, 10.4 M parameters: tokens (n, t) -> scores of the next (n, t, `WORDS`)."""

    def __init__(self, width: int = 352, layers: int = 6) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(WINDOW, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return scores; the embedding is the readout too."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return F.linear(self.body(x, mask=mask, is_causal=True), self.words.weight)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
                         nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 10))  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """One flat tensor, and where it comes from."""

    job: str
    step: int
    kind: str
    values: Tensor


Fetch = Callable[[np.random.Generator], tuple[Any, Tensor]]


def jobs(imdb_at: Path | None, mnist_at: Path | None) -> dict[str, tuple[Callable[[], nn.Module], Fetch, float]]:
    """Return model, how to draw a micro-batch, and learning rate of each; invented data where there is no path.

    Args:
        imdb_at: Archive of the reviews.
        mnist_at: Directory of the digits.
    """
    rng = np.random.default_rng(0)
    if imdb_at is None or mnist_at is None:
        images, labels = rng.integers(0, 256, (512, 28, 28)), rng.integers(0, 10, 512)
        reviews = [(rng.zipf(1.3, 300).clip(max=13351).astype(np.int32), int(i % 2)) for i in range(64)]
        fetch_reviews, known = list.__getitem__, 13352
    else:
        mnist, imdb = load_mnist(mnist_at, offline=True), load_imdb(imdb_at, offline=True)
        images, labels, known = mnist.train_images, mnist.train_labels, len(imdb.vocabulary)
        reviews, fetch_reviews = Texts(imdb.train), Texts.__getitem__

    def digits(draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = draw.integers(len(labels), size=SHARE)
        return torch.from_numpy(images[chosen] / 255.0 - 0.13).float()[:, None] * 3.2, torch.from_numpy(labels[chosen])

    def texts(draw: np.random.Generator) -> tuple[Any, Tensor]:
        chosen = [fetch_reviews(reviews, int(index)) for index in draw.integers(len(reviews), size=SHARE)]
        return pack([tokens for tokens, _ in chosen]), torch.tensor([label for _, label in chosen])

    def windows(draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        chosen = [fetch_reviews(reviews, int(index))[0] for index in draw.integers(len(reviews), size=SHARE // 4)]
        rows = np.stack([np.resize(tokens, WINDOW + 1) for tokens in chosen]).astype(np.int64)
        tokens = torch.from_numpy(np.where(rows < WORDS, rows, 1))
        return tokens[:, :-1], tokens[:, 1:].flatten()

    return {
        "SimpleCNN 0.4 M": (SimpleCNN, digits, 1e-3),
        "GatedCNN 1.1 M": (lambda: GatedCNN(known, word_dropout=0.2, dropout=0.3, feature_dropout=0.1), texts, 2e-3),
        "MLP 7.9 M": (mlp, digits, 1e-3),
        "GPT 10 M": (LanguageModel, windows, 3e-4),
    }


def gradients(imdb_at: Path | None, mnist_at: Path | None, steps: dict[str, tuple[int, ...]]) -> Iterator[Taken]:
    """Train each job of `steps` with AdamW, and yield what is taken at the steps named (1-based, rising)."""
    known = jobs(imdb_at, mnist_at)
    for name, wanted in steps.items():
        build, fetch, lr = known[name]
        torch.manual_seed(0)
        draw, model = np.random.default_rng(0), build()
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
        for step in range(1, wanted[-1] + 1):
            leaves = [leaf(model, *fetch(draw)) for _ in range(REPLICAS)]
            first = leaves[0].clone()
            partial = leaves[0].add_(leaves[1])
            total = partial + leaves[2].add_(leaves[3])
            if step in wanted:
                yield Taken(name, step, "leaf", first)
                yield Taken(name, step, "partial", partial)
                yield Taken(name, step, "sum", total)
            parameters = list(model.parameters())
            for parameter, grad in zip(parameters, total.split([p.numel() for p in parameters]), strict=True):
                parameter.grad = grad.view_as(parameter)
            optimizer.step()


def leaf(model: nn.Module, x: Any, y: Tensor) -> Tensor:
    """Return the gradient of one replica, weighted by its share of the batch, as one flat tensor."""
    model.zero_grad()
    scores = model(x)
    F.cross_entropy(scores.flatten(0, -2), y).mul(1 / REPLICAS).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
