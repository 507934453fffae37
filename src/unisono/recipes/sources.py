"""Data as a recipe's options name it; the launcher prepares it through these functions, the workers open what is there.

Imports no torch.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from unisono.data.files.tables import Columns
from unisono.data.sets.digits import load_digits
from unisono.data.sets.images import ImageData, load_images, parse_size
from unisono.data.sets.imdb import ImdbData, load_imdb
from unisono.data.sets.mnist import ImageSplits, load_mnist
from unisono.data.sets.own_texts import TextData, load_texts
from unisono.errors import ConfigError
from unisono.observe.progress import WorkLine
from unisono.recipes.catalog import Options

log = logging.getLogger(__name__)

Own = TypeVar("Own", TextData, ImageData)


def imdb_data(options: Options) -> ImdbData:
    """Return the film reviews."""
    min_freq = 20 if options.min_freq is None else options.min_freq
    with WorkLine() as tell:
        return load_imdb(
            options.data_path, cache=options.cache_path, min_freq=min_freq, offline=options.offline, tell=tell
        )


def mnist_data(options: Options) -> ImageSplits:
    """Return the handwritten digits."""
    with WorkLine() as tell:
        return load_mnist(options.data_path, cache=options.cache_path, offline=options.offline, tell=tell)


def own_texts(options: Options) -> TextData:
    """Return the user's own texts; `ConfigError` where no data was named."""
    if options.data_path is None:
        raise ConfigError("recipe 'text' trains on your own texts. Hint: --data FILE.csv, or a folder per class.")
    columns = Columns(
        text=options.text_column or "text", label=options.label_column or "label", encoding=options.encoding or "utf-8"
    )
    with WorkLine() as tell:
        return load_texts(
            options.data_path,
            test_data=options.test_path,
            columns=columns,
            skip_broken=options.skip_broken,
            min_freq=2 if options.min_freq is None else options.min_freq,
            cache=options.cache_path,
            tell=tell,
        )


def own_images(options: Options) -> ImageData:
    """Return the user's own images; `ConfigError` where no data was named."""
    if options.data_path is None:
        raise ConfigError("recipe 'images' trains on your own images. Hint: --data DIR, a folder per class.")
    size = None if options.image_size is None else parse_size(options.image_size)
    with WorkLine() as tell:
        return load_images(
            options.data_path,
            test_data=options.test_path,
            size=size,
            skip_broken=options.skip_broken,
            cache=options.cache_path,
            tell=tell,
        )


def tell_skipped(options: Options, data: Own) -> Own:
    """Warn of broken rows or images that were left out, and return `data`."""
    if data.skipped:
        first = "\n  ".join(data.first_skipped)
        log.warning("%s: %d broken ones left out, the first:\n  %s", options.data, data.skipped, first)
    return data


def _own_digits(options: Options) -> object:
    if options.data is not None:
        raise ConfigError(f"recipe 'digits' brings its own data, got --data {options.data}. Hint: leave --data out.")
    return load_digits()


_DATA: dict[str, Callable[[Options], object]] = {
    "digits": _own_digits,
    "mnist": mnist_data,
    "imdb": imdb_data,
    "text": lambda options: tell_skipped(options, own_texts(options)),
    "images": lambda options: tell_skipped(options, own_images(options)),
}


def check_data(options: Options) -> None:
    """Find, download, verify and cache what a recipe trains on, before any worker starts.

    Raises:
        ConfigError: No data was named for a recipe that needs the user's own, or some for one that brings its own.
        DataError: It is missing, truncated or not what is pinned.
    """
    _DATA[options.recipe](options)
