"""Modules are loaded with the collector at rest, and it is afterwards as it was."""

import gc
import importlib

import pytest

from unisono.errors import ConfigError
from unisono.system.loading import collector_at_rest, needing


@pytest.fixture(autouse=True)
def _as_before():
    was_enabled = gc.isenabled()
    yield
    (gc.enable if was_enabled else gc.disable)()


@pytest.mark.parametrize("is_enabled", [True, False])
def test_the_collector_is_left_as_it_was(is_enabled):
    """Inside, also inside of another, it rests; afterwards, also after an error, it does what it did before."""
    (gc.enable if is_enabled else gc.disable)()
    with pytest.raises(KeyError), collector_at_rest():
        with collector_at_rest():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() == is_enabled


def test_what_is_missing_names_its_extra():
    """A module that is not there is told with the line that installs it; other errors stay as they are."""
    told = r"^for this: No module named 'nowhere'\. Hint: pip install 'ray>="
    with pytest.raises(ConfigError, match=told), needing("ray", "for this: "):
        importlib.import_module("nowhere")
    with pytest.raises(KeyError), needing("ray"):
        raise KeyError
