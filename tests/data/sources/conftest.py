"""Shards in a folder of their own."""

import pytest

from shard_files import write_numbered_tars


@pytest.fixture
def numbered_tars(tmp_path):
    """Three tars of 4, 5 and 6 samples, numbered through as ``cls``."""
    return write_numbered_tars(tmp_path / "tars", [4, 5, 6])
