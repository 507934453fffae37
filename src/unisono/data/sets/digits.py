"""The 8 x 8 handwritten digits that scikit-learn carries in its wheel: real data without a download.

In: nothing. Out: `ImageSplits` of float32 images. Reads the file in scikit-learn's package; imports neither it nor
torch.

Source: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI (test part, 1,797 samples).
"""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unisono.data.sets.mnist import ImageSplits
from unisono.errors import DataError

NUM_SAMPLES = 1797
TEST_EVERY = 5
LEVELS = 16
"""Of ink, beside none: a pixel is a whole number of them."""


def load_digits() -> ImageSplits:
    """Load the digits: 1,437 training and 360 test images, split the same way everywhere.

    Returns:
        Images float32 (n, 1, 8, 8) in [0, 1] and labels int64 (n,), both in scikit-learn's order.

    Raises:
        DataError: scikit-learn is not installed, or carries other data than expected.
    """
    images, labels = _bundled()
    if images.shape != (NUM_SAMPLES, 8, 8) or labels.shape != (NUM_SAMPLES,):
        raise DataError(
            f"expected {NUM_SAMPLES} images of 8 x 8 in scikit-learn's bundled digits, found shape "
            f"{images.shape}. Hint: install a released scikit-learn, pip install scikit-learn."
        )
    # Values are whole numbers from 0 to 16: the division is exact.
    scaled = (images[:, np.newaxis] / LEVELS).astype(np.float32)  # (n, 8, 8) -> (n, 1, 8, 8)
    targets = labels.astype(np.int64)
    is_test = choose_test(targets)
    return ImageSplits(
        train_images=scaled[~is_test],
        train_labels=targets[~is_test],
        test_images=scaled[is_test],
        test_labels=targets[is_test],
    )


def choose_test(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark every fifth sample as test, (n,) bool, counted along the samples sorted by label (ties by position).

    Counting inside the classes keeps their shares: the bundled order repeats 0, 1, ... 9, so every fifth
    position would hold some digits nearly twice as often as others.
    """
    is_test = np.zeros(len(labels), dtype=np.bool_)
    is_test[np.argsort(labels, kind="stable")[::TEST_EVERY]] = True
    return is_test


def _bundled() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return scikit-learn's images (1797, 8, 8) float64 from 0 to 16 and labels (1797,)."""
    # The file itself: importing scikit-learn costs a second in every process.
    spec = importlib.util.find_spec("sklearn")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    files = [file for folder in folders if (file := Path(folder, "datasets", "data", "digits.csv.gz")).exists()]
    if not files:
        raise DataError(
            f"expected scikit-learn, which carries the digits, found {folders or 'none'}. "
            "Hint: pip install scikit-learn"
        )
    table = np.loadtxt(files[0], delimiter=",")  # 64 pixels and the label in each row
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1]
