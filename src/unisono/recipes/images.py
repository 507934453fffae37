"""Your own labelled images: a convolutional network for any size and number of classes."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import unisono
from unisono.data.sets.augment import Augment
from unisono.data.sets.pictures import Pictures
from unisono.recipes.catalog import Options
from unisono.recipes.execute import fit, thinned
from unisono.recipes.sources import own_images
from unisono.recipes.speed import channels_last, one_cycle, tune
from unisono.recipes.trained.model_file import ModelFile

if TYPE_CHECKING:  # the recipe of the handwritten digits, which needs `pictures`, decodes no files
    from unisono.data.sets.images import ImageData
    from unisono.data.sets.mnist import ImageSplits

AUGMENT = "flip,shift=2"
WIDTHS = (32, 64, 128)


class ImageCNN(nn.Module):
    """Three blocks of convolution, batch normalisation and pooling, mean over places: (n, c, h, w) -> (n, classes)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for before, after in zip((channels, *WIDTHS), WIDTHS, strict=False):
            blocks += [
                nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
            ]  # fmt: skip
        self.features = nn.Sequential(*blocks)
        self.classify = nn.Sequential(nn.Dropout(0.25), nn.Linear(WIDTHS[-1], num_classes))

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.classify(self.features(images).mean(dim=(2, 3)))
        return scores


def build(channels: int, num_classes: int) -> ImageCNN:
    """Return the model."""
    return channels_last(ImageCNN(channels, num_classes))


def pictures(data: "ImageData | ImageSplits", options: Options, usual: str, **how: Any) -> list[Pictures]:
    """Return training and test images as the options say, changed as they say or else as is `usual`."""
    augment = Augment.parse(usual if options.augment is None else options.augment)
    parts = (data.train_images, data.train_labels), (data.test_images, data.test_labels)
    return [Pictures(*thinned(options.limit, *part), augment=augment, **how) for part in parts]


def train(options: Options) -> dict[str, Any]:
    """Run the recipe: AdamW, one cycle up to 3e-3."""
    with unisono.Run(**options.run_settings()) as run:
        data = own_images(options)
        train_set, test_set = pictures(data, options, AUGMENT, mean=data.mean, std=data.std, key=data.key)
        file = ModelFile.of(
            options, model={"channels": train_set.images.shape[3], "num_classes": len(data.classes)},
            inputs=test_set.describe() | {"is_resized": options.image_size is not None}, classes=data.classes,
        )  # fmt: skip
        model = tune(build(**file.model), options)
        lr = 3e-3 if options.lr is None else options.lr
        optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)
        steps = options.steps(len(train_set))
        return fit(
            run, options, model, optimizer, train_set, test_set, file=file, loss=nn.CrossEntropyLoss(),
            scheduler=one_cycle(optimizer, steps=steps),
            facts={"skipped_images": data.skipped} if data.skipped else None,
        )  # fmt: skip
