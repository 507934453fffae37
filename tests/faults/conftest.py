"""A folder for launches, and the undisturbed run that all others must equal."""

import contextlib
import os

import job
import pytest
from evidence import Launches


@pytest.fixture
def launches(tmp_path):
    here = Launches(tmp_path)
    yield here
    here.close()


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """The run directory of one process, never disturbed."""
    out = tmp_path_factory.mktemp("reference") / "run"
    with contextlib.ExitStack() as stack:
        for name in ("UNISONO_RUN_DIR", "UNISONO_REPLICAS"):
            if name in os.environ:
                stack.callback(os.environ.__setitem__, name, os.environ.pop(name))
        job.train(str(out), [])
    return out
