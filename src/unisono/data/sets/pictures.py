"""Images as a data set: uint8 arrays to normalised, randomly changed micro-batches."""

import functools
import warnings
from typing import Any, final

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
        self._mean = np.full(self.images.shape[3:], mean, dtype=np.float32)
        self._std = np.full(self.images.shape[3:], std, dtype=np.float32)
        self._means, self._stds = (
            torch.from_numpy(np.tile(of_channel, self.images.shape[2])) for of_channel in (self._mean, self._std)
        )  # (width * channels,)
        self._key = key

    def __len__(self) -> int:
        return len(self.labels)

    def describe(self) -> dict[str, Any]:
        """Return shape and normalisation, for those who will show the model other images."""
        mean, std = self._mean.tolist(), self._std.tolist()
        return {"kind": "images", "shape": [*self.images.shape[1:]], "mean": mean, "std": std}

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        images, labels = self.fetch_micro_batch(np.array([index]))
        return images[0], int(labels[0])

    def fetch_micro_batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """See `unisono.data.datasets.BatchedDataset`; nothing is random here."""
        values = torch.from_numpy(self._pixels(indices)).float()
        n, height, width, channels = values.shape
        if channels == 1:  # where both layouts are the same memory, kernels are told the plain one
            values = values.view(n, 1, height, width).permute(0, 2, 3, 1)
        return self._collate(values, indices)

    def fetch_keyed(self, indices: Indices, *, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """See `unisono.data.datasets.KeyedDataset`."""
        if self.augment == Augment():
            return self.fetch_micro_batch(indices)
        pixels = self._pixels(indices)
        if self.augment.only_moves:
            moved = self.augment.move(pixels, seed, epoch, indices)
            return self._collate(torch.from_numpy(moved).float(), indices)
        values = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().contiguous().numpy()
        changed = torch.from_numpy(self.augment.apply(values, seed, epoch, indices))
        return self._collate(changed.permute(0, 2, 3, 1).contiguous(), indices)

    def _pixels(self, indices: Indices) -> npt.NDArray[np.uint8]:
        """Return (n, height, width, channels), newly allocated."""
        return np.asarray(self.images[indices])

    def _collate(self, values: Tensor, indices: Indices) -> tuple[Tensor, Tensor]:
        """Normalise values from 0 to 255, (n, height, width, channels) in memory of their own."""
        n, height, width, channels = values.shape
        # Whole rows at a time: a step over three numbers only costs more than it computes.
        values.view(n, height, width * channels).div_(255).sub_(self._means).div_(self._stds)
        return values.permute(0, 3, 1, 2), torch.from_numpy(self.labels[indices])

    @property
    def is_keyed_singly(self) -> bool:
        """Whether an image fetched by itself is what training sees: it is not changed then."""
        return self.augment == Augment()

    @functools.cached_property
    def fingerprint(self) -> str:
        """What the score says about these images beside their number."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # memory-mapped; only read here
            arrays = (self.images, self.labels, self._mean.ravel(), self._std.ravel())
            key = self._key or content_hash(torch.from_numpy(array) for array in arrays)
        return f"{key} augment={self.augment}"
