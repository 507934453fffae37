"""MNIST with the small convolutional network that tutorials on distributed training share (421,642 parameters).

Three presets: ``best`` moves and turns the digits a little and trains for 8 epochs; ``fast`` does one epoch of smaller
batches with less dropout; ``tutorial`` are the tutorials' settings (SGD 0.01, momentum 0.5).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.data.sets.mnist import MEAN, STD
from unisono.recipes.catalog import Options
from unisono.recipes.execute import fit
from unisono.recipes.images import pictures
from unisono.recipes.kernels import drop, patch_conv
from unisono.recipes.sources import mnist_data
from unisono.recipes.speed import channels_last, one_cycle, tune
from unisono.recipes.trained.model_file import ModelFile


class SimpleCNN(nn.Module):
    """Two convolutions, two linear layers, dropout: images (n, 1, 28, 28) -> log-probabilities (n, 10).

    Args:
        dropout: Rates on the features of the convolutions and of the first linear layer, in training.
    """

    def __init__(self, dropout: tuple[float, float] = (0.25, 0.5)) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.dropout1 = nn.Dropout(dropout[0])
        self.fc1 = nn.Linear(64 * 7 * 7, 128)
        self.dropout2 = nn.Dropout(dropout[1])
        self.fc2 = nn.Linear(128, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return log-probabilities."""
        first = patch_conv(images, self.conv1.weight, self.conv1.bias)
        x = F.relu(F.max_pool2d(first, 2))  # (n, 32, 14, 14)
        x = F.relu(F.max_pool2d(self.conv2(x), 2))  # (n, 64, 7, 7)
        x = drop(x.flatten(1), self.dropout1.p, self.training)
        x = drop(F.relu(self.fc1(x)), self.dropout2.p, self.training)
        return F.log_softmax(self.fc2(x), dim=1)


AUGMENT = {"best": "shift=2,rotate=10", "fast": "none", "tutorial": "none"}
LR = {"best": 3e-3, "fast": 3e-3, "tutorial": 0.01}
DROPOUT = {"best": (0.25, 0.5), "fast": (0.1, 0.2), "tutorial": (0.25, 0.5)}
WARM_UP = {"best": 0.3, "fast": 0.15}


def build(dropout: tuple[float, float]) -> SimpleCNN:
    """Return the model."""
    return channels_last(SimpleCNN(dropout))


def train(options: Options) -> dict[str, Any]:
    """Run the recipe."""
    with unisono.Run(**options.run_settings()) as run:
        augment = AUGMENT[options.preset_name]
        train_set, test_set = pictures(mnist_data(options), options, augment, mean=MEAN, std=STD)
        file = ModelFile.of(
            options, model={"dropout": DROPOUT[options.preset_name]}, classes=map(str, range(10)),
            inputs=test_set.describe(),
        )  # fmt: skip
        model = tune(build(**file.model), options)
        lr = LR[options.preset_name] if options.lr is None else options.lr
        optimizer: torch.optim.Optimizer
        if options.preset_name == "tutorial":
            optimizer, scheduler = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.5, fused=True), None
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
            steps = options.steps(len(train_set))
            scheduler = one_cycle(optimizer, steps=steps, warm_up=WARM_UP[options.preset_name])
        return fit(run, options, model, optimizer, train_set, test_set, file=file, loss=F.nll_loss, scheduler=scheduler)
