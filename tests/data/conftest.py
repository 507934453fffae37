"""Where the tests find real data; a test that needs it is skipped, with the reason, where it is absent."""

import os
from pathlib import Path

import pytest


def find_real(name: str) -> Path:
    """Return the directory `name` of the test data, or skip the test."""
    given = os.environ.get("UNISONO_TEST_DATA")
    root = Path(given) if given else Path(__file__).parents[3] / "shared" / "data"
    if not (root / name).is_dir():
        pytest.skip(f"no real data at {root / name}; set UNISONO_TEST_DATA to the directory that holds {name}/")
    return root / name


@pytest.fixture(scope="session")
def real_mnist() -> Path:
    return find_real("mnist")


@pytest.fixture(scope="session")
def real_imdb() -> Path:
    return find_real("imdb") / "aclImdb_labelled_50k.tar.gz"
