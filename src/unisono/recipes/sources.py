"""Data as a recipe's options name it; the launcher prepares it through these functions, the workers open what is there.

Imports no torch, and of the data sets the one that is asked for.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from unisono.errors import ConfigError
from unisono.observe.progress import WorkLine
from unisono.recipes.catalog import Options

if TYPE_CHECKING:
    from unisono.data.sets.corpus import Corpus
    from unisono.data.sets.images import ImageData
    from unisono.data.sets.imdb import ImdbData
    from unisono.data.sets.mnist import ImageSplits
    from unisono.data.sets.own_texts import TextData

log = logging.getLogger(__name__)

T = TypeVar("T")
Own = TypeVar("Own", "TextData", "ImageData")


def _loaded(load: Callable[..., T], options: Options, **how: Any) -> T:
    """Return what `load` finds where the options say, and show how far it is."""
    with WorkLine() as tell:
        return load(options.data_path, cache=options.cache_path, tell=tell, **how)


def imdb_data(options: Options) -> "ImdbData":
    """Return the film reviews."""
    from unisono.data.sets.imdb import load_imdb

    min_freq = 20 if options.min_freq is None else options.min_freq
    return _loaded(load_imdb, options, min_freq=min_freq, offline=options.offline)


def mnist_data(options: Options) -> "ImageSplits":
    """Return the handwritten digits."""
    from unisono.data.sets.mnist import load_mnist

    return _loaded(load_mnist, options, offline=options.offline)


def own_texts(options: Options) -> "TextData":
    """Return the user's own texts; `ConfigError` where no data was named."""
    if options.data is None:
        raise ConfigError("recipe 'text' trains on your own texts. Hint: --data FILE.csv, or a folder per class.")
    from unisono.data.files.tables import Columns
    from unisono.data.sets.own_texts import load_texts

    columns = Columns(
        text=options.text_column or "text", label=options.label_column or "label", encoding=options.encoding or "utf-8"
    )
    how = {"skip_broken": options.skip_broken, "min_freq": 2 if options.min_freq is None else options.min_freq}
    return _loaded(load_texts, options, test_data=options.test_path, columns=columns, **how)


def own_images(options: Options) -> "ImageData":
    """Return the user's own images; `ConfigError` where no data was named."""
    if options.data is None:
        raise ConfigError("recipe 'images' trains on your own images. Hint: --data DIR, a folder per class.")
    from unisono.data.sets.images import load_images, parse_size

    size = None if options.image_size is None else parse_size(options.image_size)
    return _loaded(load_images, options, test_data=options.test_path, size=size, skip_broken=options.skip_broken)


def corpus(options: Options) -> "Corpus":
    """Return texts for a language model."""
    from unisono.data.sets.corpus import load_corpus
    from unisono.recipes.lm_presets import PRESETS

    vocabulary = PRESETS[options.preset_name].vocabulary
    return _loaded(load_corpus, options, test_data=options.test_path, vocabulary=vocabulary, limit=options.limit)


def tell_skipped(options: Options, data: Own) -> Own:
    """Warn of broken rows or images that were left out, and return `data`."""
    if data.skipped:
        first = "\n  ".join(data.first_skipped)
        log.warning("%s: %d broken ones left out, the first:\n  %s", options.data, data.skipped, first)
    return data


def _own_digits(options: Options) -> object:
    if options.data is not None:
        raise ConfigError(f"recipe 'digits' brings its own data, got --data {options.data}. Hint: leave --data out.")
    from unisono.data.sets.digits import load_digits

    return load_digits()


def _find_mnist(options: Options) -> object:
    """Find the files: what is pinned need not be read to be known."""
    from unisono.data.sets.mnist_files import find_mnist

    return _loaded(find_mnist, options, offline=options.offline)


_DATA: dict[str, Callable[[Options], object]] = {
    "digits": _own_digits,
    "mnist": _find_mnist,
    "imdb": imdb_data,
    "text": lambda options: tell_skipped(options, own_texts(options)),
    "images": lambda options: tell_skipped(options, own_images(options)),
    "lm": corpus,
}


def check_data(options: Options) -> None:
    """Find, download, verify and cache what a recipe trains on, before any worker starts.

    Raises:
        ConfigError: No data was named for a recipe that needs the user's own, or some for one that brings its own.
        DataError: It is missing, truncated or not what is pinned.
    """
    _DATA[options.recipe](options)
