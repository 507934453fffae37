"""Images of the user's own: a folder per class, or NumPy arrays, as one memory-mapped array per split.

In: ``CLASS/*.png|jpg|...`` (Pillow), the same under ``train`` and ``test``, or an ``.npz`` file. Out: `ImageData`.
Files are decoded once per machine, on all cores, into a cache whose key is their content. Imports no torch.
"""

import json
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image, UnidentifiedImageError

from unisono.data.files.cache import check_manifest
from unisono.data.files.fetch import Tell, told, untold
from unisono.data.files.npz import read_npz
from unisono.data.files.tables import Broken
from unisono.data.sets.own_texts import TEST_EVERY, number_and_split, prepared, sources_of
from unisono.errors import ConfigError, DataError
from unisono.options.quantities import Count, shown
from unisono.system.files import replace_file

FORMAT_VERSION = 1
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
MAX_PIXELS = 1 << 26
_SIDE = Count(1, 4096, "pixels")
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")


@final
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ImageData:
    """Labelled images."""

    train_images: npt.NDArray[np.uint8]  #: uint8 (n, height, width, channels), memory-mapped.
    train_labels: npt.NDArray[np.int64]  #: int64 (n,).
    test_images: npt.NDArray[np.uint8]  #: uint8 (m, height, width, channels).
    test_labels: npt.NDArray[np.int64]  #: int64 (m,).
    mean: npt.NDArray[np.float32]  #: float32 (channels,): of the training images, in [0, 1].
    std: npt.NDArray[np.float32]  #: float32 (channels,).
    classes: tuple[str, ...]  #: Label number to name.
    skipped: int  #: Broken files that were left out.
    first_skipped: tuple[str, ...]  #: Why, for the first few, with their places.
    key: str  #: Names content and settings.


def parse_size(text: str) -> tuple[int, int]:
    """Read ``HEIGHTxWIDTH`` or one number for both; anything else is a `ConfigError`."""
    parts = text.lower().split("x")
    try:
        sides = [_SIDE.read("a side", part) for part in parts[:3]]
    except ConfigError:
        sides = []
    if len(sides) not in (1, 2):
        raise ConfigError(f"expected an image size like 28x28 or 64, sides {_SIDE.bounds}, got {shown(text)}.")
    return sides[0], sides[-1]


def load_images(
    data: Path,
    *,
    test_data: Path | None = None,
    size: tuple[int, int] | None = None,
    skip_broken: bool = False,
    cache: Path | None = None,
    tell: Tell = untold,
) -> ImageData:
    """Load labelled images; decode them first where nobody did yet.

    Args:
        data: A folder per class, a folder with ``train`` and ``test`` that each hold one, or an ``.npz`` file with
            ``images`` and ``labels`` (or ``train_images``, ``train_labels``, ``test_images``, ``test_labels``).
        test_data: For evaluation; None holds out every tenth image of each class.
        size: Height and width that every image is resized to; None: all must have one size.
        skip_broken: Leave broken files out and count them.
        cache: Directory for decoded images; ``~/.cache/unisono`` where None.
        tell: Told how far the decoding is.

    Raises:
        DataError: Something is missing, broken or of another size (names the file), or fewer than two classes.
    """
    if not data.exists():
        raise DataError(f"{data}: expected a folder per class, or an .npz file, found nothing. Hint: check the path.")
    sources = sources_of(data, test_data)
    settings: dict[str, str | int | None] = {
        "size": str(size), "skip_broken": skip_broken, "test_every": TEST_EVERY, "pillow": PIL.__version__,
    }  # fmt: skip

    def build(directory: Path) -> None:
        _save(directory, sources, size, Broken(skip=skip_broken), tell)

    entry, about = prepared("images/pixels", sources, settings, FORMAT_VERSION, cache, build)
    check_manifest(entry)
    about |= {name: np.array(about[name], dtype=np.float32) for name in ("mean", "std")}
    return ImageData(
        **{name: np.load(entry / f"{name}.npy", mmap_mode="r").view(np.ndarray) for name in ARRAYS}, **about
    )


def _save(directory: Path, sources: list[Path], size: tuple[int, int] | None, broken: Broken, tell: Tell) -> None:
    parts = [part for source in sources for part in _read(source, size, broken, tell)]
    labels, places, images = [part[1] for part in parts], [part[2] for part in parts], [part[0] for part in parts]
    classes, targets, is_test = number_and_split(labels, places, "images", sources[0])
    if len(parts) == 2 and images[0].shape[1:] != images[1].shape[1:]:
        raise DataError(
            f"{places[1][0]}: expected images of shape {images[0].shape[1:]} (height, width, channels) as in "
            f"training, found {images[1].shape[1:]}. Hint: pass --image-size to resize them all."
        )
    if is_test is not None:
        images = [images[0][~is_test], images[0][is_test]]
    # Whole numbers: exact sums, whatever the order.
    flat = images[0].reshape(-1, images[0].shape[3])
    count = len(flat)
    sums = [int(flat[:, channel].sum(dtype=np.uint64)) for channel in range(flat.shape[1])]
    squares = [int((flat[:, channel].astype(np.uint32) ** 2).sum(dtype=np.uint64)) for channel in range(flat.shape[1])]
    mean = [total / count / 255 for total in sums]
    std = [max(1e-3, ((s * count - t * t) ** 0.5) / count / 255) for s, t in zip(squares, sums, strict=True)]
    for split, part, target in zip(("train", "test"), images, targets, strict=True):
        for name, values in ((f"{split}_images.npy", part), (f"{split}_labels.npy", target)):
            with (directory / name).open("wb") as file:
                np.save(file, values)
    about = {"classes": classes, "skipped": broken.count, "first": broken.first, "mean": mean, "std": std}
    replace_file(directory / "about.json", json.dumps(about).encode("ascii"))


Part = tuple[npt.NDArray[np.uint8], list[str], list[str]]
"""Images uint8 (n, height, width, channels), their labels, and where each came from."""


def _read(source: Path, size: tuple[int, int] | None, broken: Broken, tell: Tell) -> Iterator[Part]:
    """Yield one part, or two where an .npz file holds both splits."""
    if source.is_dir():
        yield _folder(source, size, broken, tell)
    elif source.suffix.lower() == ".npz":
        yield from _arrays(source)
    else:
        raise DataError(
            f"{source}: expected a folder per class, or an .npz file with images and labels, found another file."
        )


def _arrays(path: Path) -> Iterator[Part]:
    found = read_npz(path)
    prefixes = ("",) if "images" in found else ("train_", "test_")
    for prefix in prefixes:
        missing = [name for name in (f"{prefix}images", f"{prefix}labels") if name not in found]
        if missing:
            raise DataError(
                f"{path}: expected arrays 'images' and 'labels', or the same with train_ and test_ before, "
                f"found {', '.join(found) or 'none'}. Hint: np.savez({path.name!r}, images=..., labels=...)."
            )
        images, labels = found[f"{prefix}images"], found[f"{prefix}labels"]
        if (
            images.dtype != np.uint8
            or images.ndim not in (3, 4)
            or (images.ndim == 4 and images.shape[3] not in (1, 3))
        ):
            raise DataError(
                f"{path}: expected {prefix}images as uint8 (n, height, width) or (n, height, width, 1 or 3), "
                f"found {images.dtype.name} of shape {images.shape}."
            )
        if labels.shape != (len(images),) or labels.dtype.kind not in "iuUb":
            raise DataError(
                f"{path}: expected {len(images):,} labels (whole numbers or texts) beside {len(images):,} images, "
                f"found {labels.dtype.name} of shape {labels.shape}."
            )
        if labels.dtype.kind == "i" and len(labels) and labels.min() < 0:
            row = int(np.flatnonzero(labels < 0)[0])
            raise DataError(f"{path}, {prefix}labels[{row}]: expected a label >= 0, found {labels[row]}.")
        pixels = images if images.ndim == 4 else images[..., np.newaxis]
        yield pixels, [str(label) for label in labels], [f"{path}, {prefix}labels[{i}]" for i in range(len(labels))]


def _folder(root: Path, size: tuple[int, int] | None, broken: Broken, tell: Tell) -> Part:
    """Decode all images of a folder per class, in the order of their names."""
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    files = [
        (path, folder.name)
        for folder in folders
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in ENDINGS and not path.name.startswith(".")
    ]
    if not files:
        raise DataError(
            f"{root}: expected a folder per class with images ({', '.join(ENDINGS[:4])}, ...), found none. "
            "Hint: check the path."
        )
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        decoding = pool.map(lambda item: decode(item[0], size), files)
        decoded = list(told(decoding, f"decoding {root.name}", len(files), tell))
    whole = []
    for (path, label), found in zip(files, decoded, strict=True):
        if isinstance(found, str):
            broken.add(str(path), "a whole image", found, "replace the file")
        else:
            whole.append((found, label, str(path)))
    if not whole:
        raise DataError(f"{root}: expected images, found none that is whole: {'; '.join(broken.first)}.")
    channels = max(pixels.shape[2] for pixels, _, _ in whole)  # one image with colours makes all of them so
    usual = whole[0][0].shape[:2]
    kept = []
    for pixels, label, place in whole:
        if pixels.shape[:2] != usual:
            size_of = "{1} x {0} pixels (width x height)".format
            broken.add(
                place,
                f"{size_of(*usual)} as {whole[0][2]}",
                size_of(*pixels.shape[:2]),
                "pass --image-size to resize all",
            )
        else:
            kept.append((np.broadcast_to(pixels, (*usual, channels)), label, place))
    return np.stack([item[0] for item in kept]), [item[1] for item in kept], [item[2] for item in kept]


def decode(path: Path, size: tuple[int, int] | None) -> npt.NDArray[np.uint8] | str:
    """Return an image as uint8 (height, width, 1 or 3), or what is wrong with it."""
    if path.is_symlink() or not path.is_file():
        return "a link or another kind of file"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as image:
                if image.width * image.height > MAX_PIXELS:
                    return f"{image.width} x {image.height} pixels, more than {MAX_PIXELS:,}"
                return pixels_of(image, size)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError,
            Image.DecompressionBombWarning) as error:  # fmt: skip
        return str(error).replace(str(path), path.name)


def pixels_of(image: Image.Image, size: tuple[int, int] | None) -> npt.NDArray[np.uint8]:
    """Return an image as uint8 (height, width, 1 or 3), resized where `size` says so."""
    plain = image.convert("L" if image.mode in ("1", "L", "LA", "I", "I;16", "F") else "RGB")
    if size is not None and plain.size != (size[1], size[0]):
        plain = plain.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels if pixels.ndim == 3 else pixels[..., np.newaxis]
