"""The small models that a certificate is made with: (n, 1, 8, 8) images -> (n, 10) scores of classes."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from unisono.data.datasets import ArrayDataset

SAMPLES = 183


class Rows(nn.Module):
    """Images as sequences of their rows: (n, 1, 8, 8) -> (n, 8, 8)."""

    def forward(self, images: Tensor) -> Tensor:
        """Return the rows."""
        return images[:, 0]


class Recurrent(nn.Module):
    """Two layers of an LSTM with dropout between them: (n, 8, 8) -> (n, 8, 16)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.cells = nn.LSTM(size, 16, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, rows: Tensor) -> Tensor:
        """Return what it says after each row."""
        said: Tensor = self.cells(rows)[0]
        return said


class Last(nn.Module):
    """What is said after the last row: (n, 8, d) -> (n, d)."""

    def forward(self, said: Tensor) -> Tensor:
        """Return the last."""
        return said[:, -1]


def linear() -> nn.Module:
    """Return two linear layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn() -> nn.Module:
    """Return a convolutional network with batch normalisation and dropout."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.25), nn.Linear(128, 10),
    )  # fmt: skip


def transformer() -> nn.Module:
    """Return one encoder layer with dropout, over the rows of an image."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
    return nn.Sequential(Rows(), nn.Linear(8, 16), layer, Last(), nn.Linear(16, 10))


def lstm() -> nn.Module:
    """Return two LSTMs with dropout, one after the other: a pipeline of two stages has one in each."""
    return nn.Sequential(Rows(), Recurrent(8), Recurrent(16), Last(), nn.Linear(16, 10))


MODELS: dict[str, Callable[[], nn.Module]] = {"linear": linear, "cnn": cnn, "transformer": transformer, "lstm": lstm}


def samples() -> ArrayDataset:
    """Return images and labels that are the same everywhere."""
    random = np.random.default_rng(0)
    images = random.standard_normal((SAMPLES, 1, 8, 8)).astype(np.float32)
    return ArrayDataset(torch.from_numpy(images), torch.from_numpy(random.integers(0, 10, SAMPLES)))
