"""Images as a data set: uint8 arrays to normalised, randomly changed micro-batches."""

import functools
import warnings
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unisono.data.datasets import content_hash
from unisono.data.sampler import Indices
from unisono.data.sets.augment import Augment
from unisono.errors import DataError


@final
class Pictures:
    """Labelled images; micro-batches are (float32 (n, channels, height, width), labels).

    Values are ``(pixel / 255 - mean) / std``, computed in float32 in this order; the tensors have torch's
    ``channels_last`` layout.

    Args:
        images: uint8 (n, height, width) or (n, height, width, channels); may be memory-mapped.
        labels: int64 (n,).
        mean: One number, or one per channel, for pixels in [0, 1].
        std: As `mean`.
        augment: What may happen to an image in training; evaluation shows it as it is.
        key: What identifies images and labels, for the score; None: a hash of them and
            of `mean` and `std`, made when first asked for.

    Raises:
        DataError: Other types or shapes, or not one label per image.
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        *,
        mean: float | npt.NDArray[np.float32] = 0.0,
        std: float | npt.NDArray[np.float32] = 1.0,
        augment: Augment | None = None,
        key: str | None = None,
    ) -> None:
        if images.dtype != np.uint8 or images.ndim not in (3, 4) or len(images) != len(labels):
            raise DataError(
                f"expected uint8 images (n, height, width[, channels]) and n labels, got {images.dtype.name} of shape "
                f"{images.shape} and {len(labels)} labels."
            )
        self.images = images if images.ndim == 4 else images[..., np.newaxis]
        self.labels = labels
        self.augment = augment or Augment()
        self._mean = np.full(self.images.shape[3:], mean, dtype=np.float32)[:, None, None]
        self._std = np.full(self.images.shape[3:], std, dtype=np.float32)[:, None, None]
        self._key = key

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        images, labels = self.fetch_micro_batch(np.array([index]))
        return images[0], int(labels[0])

    def fetch_micro_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """See `unisono.data.datasets.BatchedDataset`; nothing is random here."""
        return self._collate(self._pixels(indices), indices)

    def fetch_keyed(self, indices: Indices, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """See `unisono.data.datasets.KeyedDataset`."""
        return self._collate(self.augment.apply(self._pixels(indices), seed, epoch, indices), indices)

    def _pixels(self, indices: Indices) -> npt.NDArray[np.float32]:
        """Return float32 (n, channels, height, width) from 0 to 255, newly allocated."""
        return np.ascontiguousarray(np.moveaxis(self.images[indices], 3, 1), dtype=np.float32)

    def _collate(self, values: npt.NDArray[np.float32], indices: Indices) -> tuple[Tensor, Tensor]:
        values /= np.float32(255)
        values -= self._mean
        values /= self._std
        images = torch.from_numpy(values).contiguous(memory_format=torch.channels_last)
        return images, torch.from_numpy(self.labels[indices])

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the score says about these images beside their number."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # memory-mapped; only read here
            arrays = (self.images, self.labels, self._mean.ravel(), self._std.ravel())
            key = self._key or content_hash(torch.from_numpy(array) for array in arrays)
        return f"{key} augment={self.augment}"
