"""What a trained model is asked about: files, texts, images and arrays become the data set that an evaluation takes.

The data sets are those of the training, so an input is decoded, cut and normalised by the same code as in the
evaluations whose numbers stand in ``result.json``.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from unisono.data.datasets import ArrayDataset
from unisono.data.files.tables import DELIMITERS, JSON_LINES, Broken, Columns, read_rows
from unisono.data.sets.corpus import documents_of
from unisono.data.sets.images import decode, pixels_of
from unisono.data.sets.parallel import tokenise_all
from unisono.data.sets.pictures import Pictures
from unisono.data.sets.text import TokenStore, Vocabulary
from unisono.data.sets.texts import Texts
from unisono.errors import DataError
from unisono.recipes.trained.model_file import ModelFile

Pixels = npt.NDArray[np.uint8]


def images(file: ModelFile, items: Sequence[Any], *, resize: bool) -> tuple[list[str], Pictures | ArrayDataset]:
    """Return names and a data set of images.

    Args:
        file: Of the model.
        items: Paths, Pillow's images, or uint8 arrays (height, width) or (height, width, 1 or 3).
        resize: Whether images of another size are brought to that of the training; where the training did so, always.

    Raises:
        DataError: One is missing, no image, or of another size; names it.
    """
    inputs = file.inputs
    names = [str(item) if isinstance(item, str | Path) else f"image {n}" for n, item in enumerate(items, 1)]
    size = tuple(inputs["shape"][:2]) if resize or inputs.get("is_resized") else None
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda item: _pixels(item, size), items))
    for name, item, pixels in zip(names, items, found, strict=True):
        if isinstance(pixels, str):
            is_path = isinstance(item, str | Path)
            fix = "a file such as .png or .jpg" if is_path and Path(item).is_file() else "check the path"
            fix = (
                f"{fix}; arrays are given in Python, to unisono.load(RUN)"
                if is_path
                else "a list of images, each whole"
            )
            raise DataError(f"{name}: expected an image, found {pixels}. Hint: {fix}.")
        (height, width), (high, wide) = inputs["shape"][:2], pixels.shape[:2]
        if (high, wide) != (height, width):
            raise DataError(
                f"{name}: expected {width} x {height} pixels (width x height) as in training, found {wide} x {high}. "
                "Hint: --resize (resize=True)."
            )
    stacked = np.stack([_with_channels(pixels, inputs["shape"][2]) for pixels in found if not isinstance(pixels, str)])
    labels = np.zeros(len(items), dtype=np.int64)
    if "levels" not in inputs:
        mean, std = (np.array(inputs[name], dtype=np.float32) for name in ("mean", "std"))
        return names, Pictures(stacked, labels, mean=mean, std=std)
    levels = np.rint(stacked.transpose(0, 3, 1, 2) / 255 * inputs["levels"])
    return names, ArrayDataset((levels / inputs["levels"]).astype(np.float32), labels)


def _pixels(item: Any, size: tuple[int, int] | None) -> Pixels | str:
    """Return uint8 (height, width, 1 or 3), or what was found instead."""
    if isinstance(item, str | Path):
        path = Path(item)
        if not path.is_file():
            return "a directory" if path.is_dir() else "nothing of that name"
        found = decode(path.resolve(), size)
        return f"a file that is none: {found}" if isinstance(found, str) else found
    if isinstance(item, Image.Image):
        return pixels_of(item, size)
    pixels = np.asarray(item)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3)):
        return f"{pixels.dtype.name} of shape {pixels.shape} (not uint8 (height, width[, 1 or 3]))"
    return pixels_of(Image.fromarray(pixels.squeeze(2) if pixels.shape[2:] == (1,) else pixels), size)


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Show a grey image in colours, or one with colours in grey, as the model knows images."""
    if channels == 1 and pixels.shape[2] == 3:
        return np.asarray(Image.fromarray(pixels).convert("L"))[..., np.newaxis]
    return np.broadcast_to(pixels, (*pixels.shape[:2], channels))


def texts(file: ModelFile, items: Iterable[Any], column: str | None = None) -> tuple[list[str], list[str]]:
    """Return names and texts.

    Args:
        file: Of the model.
        items: A text is a text. A path names a file: of a table (CSV, TSV, JSON lines) each row; of any other file, the
            whole; for a language model, each of its documents.
        column: Of the texts in a table; None: as in training.

    Raises:
        DataError: A file cannot be read, or is no text; a text is empty; names it.
    """
    found = [pair for number, item in enumerate(items, 1) for pair in _read(file, item, number, column)]
    for name, text in found:
        if not text.strip():
            raise DataError(f"{name}: expected a text, found an empty one.")
    return [name for name, _ in found], [text for _, text in found]


def _read(file: ModelFile, item: Any, number: int, column: str | None) -> list[tuple[str, str]]:
    if isinstance(item, str):
        return [(f"text {number}", item)]
    path = Path(item)
    if not path.is_file():
        what = "a directory" if path.is_dir() else "nothing"
        raise DataError(f"{path}: expected a text file, found {what}. Hint: check the path.")
    if file.inputs["kind"] == "tokens":
        parts = documents_of(path) or [""]
        return [(f"{path}, text {n}" if len(parts) > 1 else str(path), text) for n, text in enumerate(parts, 1)]
    encoding = file.inputs["encoding"]
    suffixes = {suffix.lower() for suffix in path.suffixes[-2:]}
    if suffixes & {*DELIMITERS, *JSON_LINES}:
        columns = Columns(text=column or file.inputs["text_column"], label=None, encoding=encoding)
        broken = Broken(skip=True)
        rows = read_rows(path, columns, broken)
        if broken.count:
            raise DataError(f"{broken.first[0]}. Hint: correct the row.")
        return [(row.place, row.text) for row in rows]
    try:
        return [(str(path), path.read_bytes().removeprefix(b"\xef\xbb\xbf").decode(encoding))]
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror}.") from None
    except UnicodeError as error:
        raise DataError(f"{path}: expected a text in {encoding} as in training, found: {error}.") from None


def tokens_of(file: ModelFile, found: Sequence[str]) -> Texts:
    """Return texts as the data set that a classifier of texts takes."""
    vocabulary = Vocabulary(words=tuple(json.loads(file.files["vocabulary.json"])))
    tokenised = tokenise_all(found)
    store = TokenStore(
        tokens=tokenised.encode(vocabulary), offsets=tokenised.offsets, labels=np.zeros(len(found), dtype=np.int64)
    )
    return Texts(store, max_length=file.inputs["max_length"])
