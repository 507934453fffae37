"""Sentiment of film reviews (IMDB): a gated convolutional network, or a bag of words.

Texts are padded to the longest of their own micro-batch, with an index of its own that is never ``<unk>``; pads take no
part in any mean, so a text's scores do not depend on its neighbours' lengths.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import unisono
from unisono.data.imdb import load_imdb
from unisono.data.text import TokenStore
from unisono.recipes.catalog import Options
from unisono.recipes.play import spread

PAD = 0
RECEPTIVE_FIELD = 113  # tokens: two convolutions of width 15 and stride 7

Texts = tuple[Tensor, Tensor]
"""Token numbers int64 (n, longest), padded, and lengths int64 (n,)."""


class GatedConv(nn.Module):
    """``conv(x) * sigmoid(gate(x))`` over time: (n, channels, time) -> (n, channels, shorter time)."""

    width, stride = 15, 7

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, self.width, stride=self.stride)
        self.gate = nn.Conv1d(channels, channels, self.width, stride=self.stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the gated features."""
        features: Tensor = self.conv(x) * torch.sigmoid(self.gate(x))
        return features

    def shorten(self, lengths: Tensor) -> Tensor:
        """Return how many output positions see nothing but the first `lengths` inputs."""
        return (lengths - self.width) // self.stride + 1


class GatedCNN(nn.Module):
    """Embedding, two gated convolutions, mean over time, two linear layers: texts -> scores (n, 2)."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, 64, padding_idx=PAD)
        nn.init.xavier_uniform_(self.embedding.weight)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()
        self.conv1, self.conv2 = GatedConv(64), GatedConv(64)
        self.classify = nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 2))

    def forward(self, texts: Texts) -> Tensor:
        """Return class scores."""
        tokens, lengths = texts
        lengths = lengths.clamp(min=RECEPTIVE_FIELD)
        x = self.embedding(tokens).transpose(1, 2)  # (n, 64, longest)
        for conv in (self.conv1, self.conv2):
            x, lengths = conv(x), conv.shorten(lengths)
        is_text = torch.arange(x.shape[2], device=x.device) < lengths[:, None]  # (n, time)
        mean = (x * is_text[:, None]).sum(dim=2) / lengths[:, None]
        scores: Tensor = self.classify(mean)
        return scores


class BagOfWords(nn.Module):
    """Mean of word embeddings, one linear layer: texts -> scores (n, 2)."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary_size, 64, mode="mean", padding_idx=PAD)
        self.classify = nn.Linear(64, 2)

    def forward(self, texts: Texts) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.classify(self.embedding(texts[0]))
        return scores


class Reviews:
    """Some texts of a token store; samples are (tokens, label)."""

    def __init__(self, store: TokenStore, limit: int | None) -> None:
        self._store = store
        self._chosen = spread(len(store), limit)

    def __len__(self) -> int:
        return len(self._chosen)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return self._store[int(self._chosen[index])]

    def fetch_micro_batch(self, indices: np.ndarray[Any, Any]) -> tuple[Texts, Tensor]:
        """Return a padded micro-batch."""
        return pad([self[index] for index in indices.tolist()])


def pad(samples: list[tuple[np.ndarray[Any, Any], int]]) -> tuple[Texts, Tensor]:
    """Return texts padded to the longest of them (at least the receptive field), their lengths, and the labels."""
    lengths = torch.tensor([len(tokens) for tokens, _ in samples])
    padded = torch.full((len(samples), max(RECEPTIVE_FIELD, int(lengths.max()))), PAD)
    for row, (tokens, _) in zip(padded, samples, strict=True):
        row[: len(tokens)] = torch.from_numpy(tokens.astype(np.int64))
    return (padded, lengths), torch.tensor([label for _, label in samples])


MODELS = {"gcnn": GatedCNN, "bag": BagOfWords}


def train(options: Options) -> dict[str, Any]:
    """Play the recipe: Adam, learning rate 1e-3, gradient norm clipped at 0.1."""
    with unisono.Run(**options.run_settings(clip_norm=0.1)) as run:
        data = load_imdb(options.data_path, cache=options.cache_path)
        model = MODELS[options.model](len(data.vocabulary))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
        return trainer.fit(
            Reviews(data.train, options.limit),
            epochs=options.epochs,
            batch_size=options.batch_size,
            test_set=Reviews(data.test, options.limit),
            num_workers=options.num_workers,
        )
