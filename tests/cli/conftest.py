"""Running a recipe here: where the verb is the point, starting a worker would cost more than everything it does."""

import importlib
import pickle

import pytest

from unisono.experiments import job


@pytest.fixture
def here(monkeypatch):
    """Let the verbs run recipes in this process, as their one worker."""

    def run_job(spec, nodes, *, program=""):
        assert (spec.workers, nodes) == (1, None)
        args, kwargs = pickle.loads(spec.target.payload)
        getattr(importlib.import_module(spec.target.module), spec.target.name)(*args, **kwargs)

    monkeypatch.setattr(job, "start", run_job)
