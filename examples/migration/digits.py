"""What a migration leaves alone, shared by all programs here: the model and the data sets."""

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from unisono.data.digits import load_digits

EPOCHS, BATCH_SIZE, WORKERS = 3, 64, 2  # the batch of all workers together


class Net(nn.Module):
    """Two layers and dropout: (n, 1, 8, 8) -> (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


def datasets() -> tuple[TensorDataset, TensorDataset]:
    """Return training and test digits."""
    data = load_digits()
    train = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    test = torch.from_numpy(data.test_images), torch.from_numpy(data.test_labels)
    return TensorDataset(*train), TensorDataset(*test)
