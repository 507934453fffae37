"""The MNIST handwritten digits, and the numbers of their normalisation.

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

MEAN = 0.1307
STD = 0.3081


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageSplits:
    """A labelled image data set in memory, cut into training and test part."""

    train_images: NDArray[Any]  #: (n, ...) uint8 or float32; the loader function says which and the shape.
    train_labels: NDArray[np.int64]  #: (n,) int64.
    test_images: NDArray[Any]  #: (m, ...) as `train_images`.
    test_labels: NDArray[np.int64]  #: (m,) int64.

    def __repr__(self) -> str:
        images = self.train_images
        return (
            f"ImageSplits({len(images)} train, {len(self.test_images)} test, "
            f"{images.dtype.name} images of shape {images.shape[1:]})"
        )


def load_mnist(
    data: Path | None, *, cache: Path | None = None, offline: bool = False, tell: Tell = untold
) -> ImageSplits:
    """Load MNIST: 60,000 training and 10,000 test images.

    Args:
        data: Directory with the four idx files, gzipped or not, in it or in its ``MNIST/raw``; None
            downloads them.
        cache: Directory for downloads; ``~/.cache/unisono`` where None. The files go to its ``mnist``.
        offline: Use what is in the cache, and no network.
        tell: Told how far a download is.

    Returns:
        Images uint8 (n, 28, 28) and labels int64 (n,).

    Raises:
        DataError: A file is missing, not the pinned one, or malformed; or it cannot be downloaded.
    """
    paths = find_mnist(data, cache=cache, offline=offline, tell=tell)
    train_images, train_labels, test_images, test_labels = map(read_idx, paths)
    return ImageSplits(
        train_images=train_images,
        train_labels=train_labels.astype(np.int64),
        test_images=test_images,
        test_labels=test_labels.astype(np.int64),
    )
