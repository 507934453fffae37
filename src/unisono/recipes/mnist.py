"""MNIST with the small convolutional network that tutorials on distributed training share (421,642 parameters)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.data.mnist import load_mnist, normalise
from unisono.recipes.catalog import Options
from unisono.recipes.play import thinned


class SimpleCNN(nn.Module):
    """Two convolutions, two linear layers, dropout: images (n, 1, 28, 28) -> log-probabilities (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.dropout2 = nn.Dropout(0.5)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return log-probabilities."""
        x = F.relu(F.max_pool2d(self.conv1(images), 2))  # (n, 32, 14, 14)
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # (n, 64, 7, 7)
        x = self.dropout1(x.flatten(1))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


def train(options: Options) -> dict[str, Any]:
    """Play the recipe: SGD, learning rate 0.01, momentum 0.5."""
    with unisono.Run(**options.run_settings()) as run:
        splits = load_mnist(options.data_path, cache=options.cache_path)
        train_images, train_labels = thinned(options.limit, splits.train_images, splits.train_labels)
        test_images, test_labels = thinned(options.limit, splits.test_images, splits.test_labels)
        model = SimpleCNN()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
        trainer = unisono.Trainer(run, model, optimizer, loss=F.nll_loss)
        return trainer.fit(
            unisono.ArrayDataset(normalise(train_images), train_labels),
            epochs=options.epochs,
            batch_size=options.batch_size,
            test_set=unisono.ArrayDataset(normalise(test_images), test_labels),
            num_workers=options.num_workers,
        )
