"""The public names are pinned, and cost nothing until they are used."""

import json
import subprocess
import sys
from importlib import metadata

import pytest

import unisono

PUBLIC = [
    "AUROC",
    "Accuracy",
    "ArrayDataset",
    "Callback",
    "CallbackTimeout",
    "CheckpointError",
    "CheckpointPolicy",
    "ConfigError",
    "ConfusionMatrix",
    "DataError",
    "DataPartitioner",
    "Distributed",
    "DistributedSampler",
    "EnvironmentDrift",
    "ExactSampler",
    "F1",
    "LaunchError",
    "Mean",
    "Metric",
    "NonFiniteError",
    "NotHere",
    "Partition",
    "PeerLost",
    "Perplexity",
    "PlaceError",
    "Precision",
    "RankDivergence",
    "Recall",
    "Run",
    "ScoreMismatch",
    "SpanF1",
    "StepError",
    "Throughput",
    "TorchMetric",
    "Trainer",
    "UnisonoError",
    "WorkerFailed",
    "World",
    "WorldError",
    "launch",
    "leader_only",
    "load_weights",
    "on_rank",
    "run_ranks",
    "strategy",
]

# One fresh process for all questions; CPU seconds, because other jobs may run beside it.
COST = """
import json, sys, time
began = time.process_time()
import unisono
import_s = time.process_time() - began
light = ["World", "launch", "ConfigError", "DataPartitioner", "ExactSampler"]
used = [getattr(unisono, name).__name__ for name in light]
without = "torch" not in sys.modules
dir(unisono)
import torch, torch.utils.data
began = time.process_time()
for name in unisono.__all__:
    getattr(unisono, name)
all_s = time.process_time() - began
print(json.dumps([import_s, used, without, "torch" in sys.modules, all_s]))
"""


def test_the_public_names_are_pinned():
    """A name is added or removed here on purpose, and the list is sorted."""
    assert list(unisono.__all__) == PUBLIC == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_explained(name):
    """Each can be imported under its own name and has a docstring."""
    found = getattr(unisono, name)
    assert found.__name__ == name
    assert (found.__doc__ or "").strip()
    assert name in dir(unisono)


def test_unknown_names_are_attribute_errors():
    """A name that is not there fails as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'Trianer'"):
        unisono.Trianer  # noqa: B018
    assert not hasattr(unisono, "numpy")


def test_star_import_and_version():
    """``from unisono import *`` brings exactly the public names; the version is the installed one."""
    names: dict[str, object] = {}
    exec("from unisono import *", names)
    assert set(names) - {"__builtins__"} == set(PUBLIC)
    assert unisono.__version__ == metadata.version("unisono")


def test_importing_costs_nothing_until_torch_is_needed():
    """``import unisono`` and its light names load no torch; all names together cost little over torch."""
    done = subprocess.run([sys.executable, "-c", COST], capture_output=True, text=True, check=True)
    import_s, used, without_torch, with_torch, all_s = json.loads(done.stdout)
    assert len(used) == 5
    assert without_torch
    assert with_torch  # the control
    assert import_s < 0.05
    assert all_s < 0.5
