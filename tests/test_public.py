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
    "BatchSchedule",
    "Callback",
    "CallbackTimeout",
    "CheckpointError",
    "CheckpointPolicy",
    "ConfigError",
    "ConfusionMatrix",
    "Curriculum",
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
    "Mixture",
    "NonFiniteError",
    "NotHere",
    "Partition",
    "PeerLost",
    "Perplexity",
    "PlaceError",
    "Precision",
    "RankDivergence",
    "Recall",
    "Result",
    "Run",
    "RunStopped",
    "ScoreMismatch",
    "Shards",
    "SpanF1",
    "StepError",
    "Stream",
    "Throughput",
    "TokenFile",
    "TorchMetric",
    "Trainer",
    "UnisonoError",
    "Weighted",
    "WorkerFailed",
    "World",
    "WorldError",
    "launch",
    "leader_only",
    "load",
    "load_weights",
    "on_rank",
    "register_batch_type",
    "run_ranks",
    "strategy",
]

# One fresh process for all questions. What costs time is what is loaded; seconds are shown, and judge nothing.
COST = """
import json, sys, time

def loaded():
    return {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}

def packages():
    return sorted({name.partition(".")[0] for name in loaded()})

before, began = set(sys.modules), time.process_time()
import unisono
print(f"import unisono: {time.process_time() - began:.3f} s of CPU", file=sys.stderr)
first = sorted(loaded())
light = ["World", "launch", "ConfigError", "DataPartitioner", "ExactSampler"]
used = [getattr(unisono, name).__name__ for name in light]
assert "callbacks" in dir(unisono)
second = packages()
import torch, torch.utils.data
before, began = set(sys.modules), time.process_time()
for name in unisono.__all__:
    getattr(unisono, name)
print(f"all names over torch: {time.process_time() - began:.3f} s of CPU", file=sys.stderr)
print(json.dumps([first, used, second, packages()]))
assert unisono.callbacks.EarlyStopping.__name__ == "EarlyStopping"  # as the reference names it
"""
HEAVY = {
    "sklearn",
    "scipy",
    "pooch",
    "requests",
    "jinja2",
    "PIL",
    "tensorboard",
    "torchmetrics",
    "mlflow",
}


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
    with pytest.raises(AttributeError, match=r"no attribute 'Trianer'\. Hint: did you mean 'Trainer'\?"):
        unisono.Trianer  # noqa: B018
    assert not hasattr(unisono, "numpy")


def test_star_import_and_version():
    """``from unisono import *`` brings exactly the public names; the version is the installed one."""
    names: dict[str, object] = {}
    exec("from unisono import *", names)
    assert set(names) - {"__builtins__"} == set(PUBLIC)
    assert unisono.__version__ == metadata.version("unisono")


def test_importing_costs_nothing_until_torch_is_needed():
    """``import unisono`` loads itself alone, its light names no torch, all names nothing that is for one use only."""
    done = subprocess.run([sys.executable, "-c", COST], capture_output=True, text=True, check=True)
    print(done.stderr)
    first, used, second, third = json.loads(done.stdout)
    assert first == ["unisono"]
    assert len(used) == 5
    assert "numpy" in second and "torch" not in second
    assert "safetensors" in third  # the control: it is seen what is loaded
    assert not HEAVY & {*second, *third}


LATE = """
import gc, json, sys, torch

def looked(phase, told):
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.endswith("unisono/train/run.py"):
        frame = frame.f_back
    if frame is not None:
        seen.append(told["generation"])

seen = []
gc.callbacks.append(looked)
gc.set_threshold(50, 2, 2)
from unisono import Run, Trainer
first, loaded, is_enabled = len(seen), sorted(sys.modules), gc.isenabled()
for name in [name for name in sys.modules if name.startswith("unisono")]:
    del sys.modules[name]
import unisono.train.run  # not by its public name
print(json.dumps([first, len(seen), is_enabled, loaded]))
"""
FOR_SOME_ONLY = {
    "rich": "who shows progress",
    "unisono.store.client": "ranks that meet",
    "unisono.store.server": "ranks that meet",
    "unisono.collectives.process_groups.stores": "ranks that meet",
    "unisono.collectives.process_groups.across_hosts": "several hosts",
    "unisono.collectives.shm.autotune": "ranks that share memory",
    "unisono.strategies.exact": "a run of this strategy",
    "torch._dynamo": "a program that compiles",
    "PIL": "a data set of images",
}


def test_run_and_trainer_load_what_every_run_needs():
    """What only some runs use is loaded by those; and nobody looks for garbage among torch's objects meanwhile."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, check=True)
    first, control, is_enabled, loaded = json.loads(done.stdout)
    assert not FOR_SOME_ONLY.keys() & set(loaded)
    assert {"unisono.train.run", "unisono.train.trainer", "unisono.checkpoint.store"} <= set(loaded)  # the control
    assert first == 0
    assert control > 0  # it would be seen at work
    assert is_enabled
