"""The MNIST handwritten digits, and the one place that spells the normalisation.

In: what `mnist_files` finds. Out: `ImageSplits` of uint8 images. Imports no torch.

Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unisono.data.files.fetch import Tell, untold
from unisono.data.files.idx import read_idx
from unisono.data.sets.mnist_files import find_mnist
from unisono.errors import ConfigError, DataError

MEAN = 0.1307
STD = 0.3081


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageSplits:
    """A labelled image data set in memory, cut into training and test part.

    Attributes:
        train_images: (n, ...) uint8 or float32; the loader function says which and the shape.
        train_labels: (n,) int64.
        test_images: (m, ...) as `train_images`.
        test_labels: (m,) int64.
    """

    train_images: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_images: NDArray[Any]
    test_labels: NDArray[np.int64]

    def __repr__(self) -> str:
        images = self.train_images
        return (
            f"ImageSplits({len(images)} train, {len(self.test_images)} test, "
            f"{images.dtype.name} images of shape {images.shape[1:]})"
        )


def load_mnist(
    data: Path | None,
    *,
    cache: Path | None = None,
    verify: bool = True,
    offline: bool = False,
    tell: Tell = untold,
) -> ImageSplits:
    """Load MNIST: 60,000 training and 10,000 test images.

    Args:
        data: Directory with the four idx files, gzipped or not, in it or in its ``MNIST/raw``; None
            downloads them.
        cache: Directory for downloads; ``~/.cache/unisono`` where None. The files go to its ``mnist``.
        verify: False also accepts other data sets under the same file names (Fashion-MNIST, KMNIST).
        offline: Use what is in the cache, and no network.
        tell: Told how far a download is.

    Returns:
        Images uint8 (n, 28, 28) and labels int64 (n,).

    Raises:
        DataError: A file is missing, not the pinned one, or malformed; or it cannot be downloaded.
    """
    paths = find_mnist(data, cache=cache, verify=verify, offline=offline, tell=tell)
    train_images, train_labels, test_images, test_labels = map(read_idx, paths)
    _check_pair(train_images, train_labels, paths[0])
    _check_pair(test_images, test_labels, paths[2])
    return ImageSplits(
        train_images=train_images,
        train_labels=train_labels.astype(np.int64),
        test_images=test_images,
        test_labels=test_labels.astype(np.int64),
    )


def _check_pair(images: NDArray[Any], labels: NDArray[Any], path: Path) -> None:
    """Refuse images and labels that do not belong together (only possible with verify=False)."""
    if images.ndim != 3 or images.dtype != np.uint8:
        raise DataError(
            f"{path}: expected uint8 images of shape (n, height, width), "
            f"found {images.dtype.name} of shape {images.shape}."
        )
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        raise DataError(
            f"{path}: expected {len(images):,} whole-number labels beside {len(images):,} images, "
            f"found {labels.dtype.name} of shape {labels.shape}. Hint: both files must be of one split."
        )


def normalise(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return ``(images / 255 - MEAN) / STD`` with a channel axis, computed in float32 in this order.

    Args:
        images: (n, height, width) uint8.

    Returns:
        (n, 1, height, width) float32, newly allocated.

    Raises:
        ConfigError: `images` is not uint8 of three dimensions.
    """
    if images.dtype != np.uint8 or images.ndim != 3:
        raise ConfigError(f"expected uint8 images (n, height, width), got {images.dtype.name} of shape {images.shape}.")
    values = images[:, np.newaxis].astype(np.float32)  # (n, height, width) -> (n, 1, height, width)
    values /= np.float32(255)
    values -= np.float32(MEAN)
    values /= np.float32(STD)
    return values
