"""The MNIST handwritten digits: pins, mirrors, and the one place that spells the normalisation.

In: a directory with the four idx files (gzipped or not), or nothing (verified download). Out: `ImageSplits`
of uint8 images. Imports no torch.

Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from unisono.data.files.fetch import Pin, Tell, locate, untold
from unisono.data.files.idx import read_idx
from unisono.errors import ConfigError, DataError
from unisono.world import default_cache

MEAN = 0.1307
STD = 0.3081

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
)

# Names in the order of `ImageSplits`. The .gz files are those that torchvision pins by md5.
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_PINNED = (
    ("train-images-idx3-ubyte.gz", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
    ("train-labels-idx1-ubyte.gz", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
    ("t10k-images-idx3-ubyte.gz", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
    ("t10k-labels-idx1-ubyte.gz", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ("train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db", 47_040_016),
    ("train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5", 60_008),
    ("t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", 7_840_016),
    ("t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2", 10_008),
)
PINS = {name: Pin(sha256=sha256, size_bytes=size_bytes) for name, sha256, size_bytes in _PINNED}


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
    folder = None if data is None else _folder(data)
    chosen = [_choose(folder, name) for name in NAMES]
    paths = locate(
        {name: PINS[name] for name in chosen},
        source=folder,
        urls=MIRRORS,
        cache=(cache or default_cache({})) / "mnist",
        verify=verify,
        offline=offline,
        tell=tell,
    )
    train_images, train_labels, test_images, test_labels = (read_idx(paths[name]) for name in chosen)
    _check_pair(train_images, train_labels, paths[chosen[0]])
    _check_pair(test_images, test_labels, paths[chosen[2]])
    return ImageSplits(
        train_images=train_images,
        train_labels=train_labels.astype(np.int64),
        test_images=test_images,
        test_labels=test_labels.astype(np.int64),
    )


def _folder(data: Path) -> Path:
    """Return `data`, or its ``MNIST/raw`` (torchvision's layout) when only that holds the files."""
    nested = data / "MNIST" / "raw"
    holds = any((data / name).exists() for name in PINS)
    return nested if nested.is_dir() and not holds else data


def _choose(folder: Path | None, name: str) -> str:
    """Return which spelling of a file to use: the gzipped one unless only the raw one is there."""
    packed = f"{name}.gz"
    if folder is not None and not (folder / packed).exists() and (folder / name).exists():
        return name
    return packed


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
