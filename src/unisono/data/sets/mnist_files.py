"""Where the files of MNIST are: pins, mirrors, and the names that their users give them.

In: a directory with the four idx files (gzipped or not), or nothing (verified download). Out: their paths. Loads
neither torch nor NumPy: what is pinned need not be read to be known.

Source: Y. LeCun, C. Cortes, C. Burges, The MNIST database of handwritten digits.
"""

from pathlib import Path

from unisono.data.files.fetch import Pin, Tell, locate, untold
from unisono.environment import default_cache

MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/")

# Names in the order of `ImageSplits`. The .gz files are those that torchvision pins by md5.
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
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


def find_mnist(
    data: Path | None, *, cache: Path | None = None, offline: bool = False, tell: Tell = untold
) -> list[Path]:
    """Return the four files, in the order of `NAMES`, their bytes verified; see `load_mnist`."""
    folder = None if data is None else _folder(data)
    chosen = [_choose(folder, name) for name in NAMES]
    paths = locate(
        {name: PINS[name] for name in chosen},
        source=folder,
        urls=MIRRORS,
        cache=(cache or default_cache({})) / "mnist",
        offline=offline,
        tell=tell,
    )
    return [paths[name] for name in chosen]


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
