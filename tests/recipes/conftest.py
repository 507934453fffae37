"""What every test of a recipe begins with."""

import os

import pytest


@pytest.fixture(autouse=True)
def _alone(monkeypatch, switches_put_back):
    """No launcher's variables, and torch's switches put back."""
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith(("UNISONO_R", "SLURM_", "OMPI_")):
            monkeypatch.delenv(name)
