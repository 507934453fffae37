"""Handwritten digits of 8x8 pixels (scikit-learn's bundled 1,797): a small convolutional network, in seconds."""

from typing import Any

import torch
from torch import Tensor, nn

import unisono
from unisono.data.sets.digits import LEVELS, load_digits
from unisono.recipes.catalog import Options
from unisono.recipes.execute import fit, thinned
from unisono.recipes.trained.model_file import ModelFile


class DigitsCNN(nn.Module):
    """Two convolutions with batch normalisation, dropout, one linear layer: (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classify = nn.Sequential(nn.Flatten(), nn.Dropout(0.25), nn.Linear(32 * 2 * 2, 10))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.classify(self.features(images))
        return scores


def build() -> DigitsCNN:
    """Return the model."""
    return DigitsCNN()


def train(options: Options) -> dict[str, Any]:
    """Run the recipe."""
    with unisono.Run(**options.run_settings()) as run:
        splits = load_digits()
        train_set = unisono.ArrayDataset(*thinned(options.limit, splits.train_images, splits.train_labels))
        test_set = unisono.ArrayDataset(*thinned(options.limit, splits.test_images, splits.test_labels))
        file = ModelFile.of(
            options, model={}, classes=map(str, range(10)),
            inputs={"kind": "images", "shape": [8, 8, 1], "levels": LEVELS},
        )  # fmt: skip
        model = build()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3 if options.lr is None else options.lr)
        return fit(run, options, model, optimizer, train_set, test_set, file=file, loss=nn.CrossEntropyLoss())
