"""What every test of a recipe begins with."""

import os

import pytest
import torch


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No launcher's variables, and torch's switches put back."""
    for name in list(os.environ):
        if name in ("RANK", "WORLD_SIZE") or name.startswith(("UNISONO_R", "SLURM_", "OMPI_")):
            monkeypatch.delenv(name)
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = fill
