"""Random changes to images, keyed by sample: the same for every rank, world size, loader process and batch.

What happens to a sample is decided by (seed, epoch, sample index) alone, through counter-based numbers: nothing is
drawn from a stream. All chosen changes are one affine map per image, applied in one pass with bilinear weights; a map
of whole pixels (flip, shift) moves the values bit for bit.
"""

from dataclasses import dataclass, fields
from typing import Self, final

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from unisono.determinism.keyed_words import keyed_words
from unisono.determinism.seeding import mix
from unisono.errors import ConfigError
from unisono.options.quantities import Amount, Count, Quantity, settle

Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8] | Floats
Indices = npt.NDArray[np.int64]


def uniforms(seed: int, epoch: int, indices: Indices, count: int) -> npt.NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for each sample, float64 (n, count): a pure function of its key."""
    counters: npt.NDArray[np.uint64] = indices.astype(np.uint64)[:, None] * np.uint64(256)
    counters = (counters + np.arange(1, count + 1).astype(np.uint64)).astype(np.uint64)
    words = keyed_words(mix(seed, "augment", epoch), counters)
    drawn: npt.NDArray[np.float64] = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


_NUMBERS: dict[str, Quantity] = {
    "shift": Count(0, 4096, "pixels"), "rotate": Amount(0, 180, "degrees"), "crop": Amount(0, 1, above=True),
}  # fmt: skip


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Augment:
    """Which changes an image may undergo in training."""

    flip: bool = False  #: Mirror left and right, every second image.
    shift: int = 0  #: Move by up to so many whole pixels each way; what comes in from outside is background.
    rotate: float = 0.0  #: Turn by up to so many degrees either way.
    #: Cut out a part with sides of at least this share of the image's, and enlarge it; 1 cuts nothing.
    crop: float = 1.0

    def __post_init__(self) -> None:
        settle(self, **_NUMBERS)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``flip,shift=2,rotate=10,crop=0.8`` (`ConfigError` for anything else); ``none`` changes nothing."""
        chosen: dict[str, float | int | bool] = {}
        for item in (item.strip() for item in text.split(",") if item.strip() not in ("", "none")):
            name, equals, value = item.partition("=")
            try:
                chosen[name] = True if name == "flip" and not equals else _NUMBERS[name].read(name, value)
            except KeyError:
                raise ConfigError(
                    f"expected flip, shift=PIXELS, rotate=DEGREES or crop=SHARE, joined by commas, got {item!r}."
                ) from None
        return cls(**chosen)  # type: ignore[arg-type]

    def __str__(self) -> str:
        told = [
            (each.name, getattr(self, each.name)) for each in fields(self) if getattr(self, each.name) != each.default
        ]
        return ",".join(name if value is True else f"{name}={value:g}" for name, value in told) or "none"

    def apply(self, images: Floats, seed: int, epoch: int, indices: Indices) -> Floats:
        """Return changed images.

        Args:
            images: float32 (n, channels, height, width); 0 is the background.
            seed: The run's seed.
            epoch: 0-based; every epoch changes a sample in another way.
            indices: int64 (n,): the samples' numbers.
        """
        if self == Augment():
            return images
        height, width = images.shape[2:]
        if self.only_moves:
            moved = self.move(np.moveaxis(images, 1, 3), seed, epoch, indices)
            return np.ascontiguousarray(np.moveaxis(moved, 3, 1))
        drawn = uniforms(seed, epoch, indices, 7)
        angle = np.radians(self.rotate) * (2 * drawn[:, 0] - 1)
        side = self.crop + (1 - self.crop) * drawn[:, 1]
        # Where each output pixel comes from, in pixels from the centre: turn, shrink, mirror, then move.
        y, x = np.meshgrid(np.arange(height) - (height - 1) / 2, np.arange(width) - (width - 1) / 2, indexing="ij")
        cos, sin = ((f(angle) * side)[:, None, None] for f in (np.cos, np.sin))
        mirrored = np.where(self.flip & (drawn[:, 2] < 0.5), -1.0, 1.0)[:, None, None]
        down, right = self._steps(drawn)
        free = 1 - side
        down = down + free * (drawn[:, 5] - 0.5) * height
        right = right + free * (drawn[:, 6] - 0.5) * width
        source_y = cos * y + sin * x * mirrored + (down + (height - 1) / 2)[:, None, None]
        source_x = -sin * y + cos * x * mirrored + (right + (width - 1) / 2)[:, None, None]
        return _bilinear(images, source_y, source_x)

    def _steps(self, drawn: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return whole pixels down and right, from -shift to shift."""
        reach = 2 * self.shift + 1
        return np.floor(drawn[:, 3] * reach) - self.shift, np.floor(drawn[:, 4] * reach) - self.shift

    @property
    def only_moves(self) -> bool:
        """Whether no value changes, only its place: images may then be of any type."""
        return self.rotate == 0 and self.crop == 1

    def move(self, images: Images, seed: int, epoch: int, indices: Indices) -> Images:
        """Return images flipped and shifted as `apply` does, without touching a value.

        Args:
            images: (n, height, width, channels); 0 is the background.
            seed: The run's seed.
            epoch: 0-based.
            indices: int64 (n,): the samples' numbers.
        """
        height, width = images.shape[1:3]
        drawn = uniforms(seed, epoch, indices, 7)
        flipped = np.flatnonzero(self.flip & (drawn[:, 2] < 0.5))
        if len(flipped):
            images = images.copy()
            images[flipped] = torch.from_numpy(images[flipped]).flip(2).numpy()
        if self.shift == 0:
            return images
        down, right = (steps.astype(np.int64) for steps in self._steps(drawn))
        right[flipped] *= -1  # the draw says where a pixel comes from before it is mirrored
        moved = np.zeros(images.shape, images.dtype)
        for image, source, y, x in zip(moved, images, down.tolist(), right.tolist(), strict=True):
            # Output row i is row i + y, as far as there is one; columns alike.
            image[max(0, -y) : max(0, height - y), max(0, -x) : max(0, width - x)] = source[
                max(0, y) : max(0, height + y), max(0, x) : max(0, width + x)
            ]
        return moved


def _bilinear(images: Floats, y: npt.NDArray[np.float64], x: npt.NDArray[np.float64]) -> Floats:
    """Return images read at fractional places, float64 (n, height, width) each; 0 outside."""
    height, width = images.shape[2:]
    # grid_sample's places run from -1 to 1, from edge to edge.
    places = np.stack([(2 * x + 1) / width - 1, (2 * y + 1) / height - 1], axis=-1).astype(np.float32)
    read = functional.grid_sample(torch.from_numpy(images), torch.from_numpy(places), align_corners=False)
    return read.numpy()
