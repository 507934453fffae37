"""Launchers as hosts, and the run that all of them must equal."""

import pytest

from hosts import Hosts, train_alone


@pytest.fixture
def hosts(tmp_path):
    here = Hosts(tmp_path)
    yield here
    here.close()


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The run directory of one process, never disturbed."""
    return train_alone(tmp_path_factory.mktemp("reference"))
