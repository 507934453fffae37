"""Shared memory in gloo's place, for programs that ask for gloo."""

import json
import subprocess
import sys

import pytest

from unisono.collectives.shm import gloo_hook
from unisono.collectives.shm.in_place_of_gloo import instead_of_gloo
from unisono.errors import ConfigError
from unisono.launchers.spec import LaunchSpec, ScriptTarget
from unisono.launchers.worker.environment import worker_environment

SCRIPT = """
import sys
assert "torch" not in sys.modules
import json, os
import torch.distributed as dist
from torch.distributed import init_process_group
import torch
seen = []
for number, asked in enumerate(ASKED):
    # A place of their own for each: a rank may be early and still meet the server that is about to go.
    world = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    place = {**world, "init_method": f"file://{os.getcwd()}/store-{number}"}
    init_process_group(**asked, **(place if number else {}))
    value = torch.ones(2)
    dist.all_reduce(value)
    groups = [dist.new_group(), dist.new_group(backend="gloo")]
    groups = [dist.group.WORLD, *groups, dist.new_subgroups(1)[0]]
    dist.monitored_barrier() if dist.get_backend() == "gloo" else None
    assert all(group.name() in dist.get_backend_config(group) for group in groups)
    seen.append([[dist.get_backend(group), group.name()] for group in groups] + [value.tolist()])
    dist.destroy_process_group(groups[1])
    dist.destroy_process_group()
try:
    init_process_group(REFUSED) if REFUSED else None
except ValueError as error:
    seen.append(str(error))
if os.environ["RANK"] == "0":
    print(json.dumps(seen))
"""


def run_script(folder, asked, refused, *options, workers=2):
    """Run the script, and return what rank 0 has seen."""
    (folder / "script.py").write_text(SCRIPT.replace("ASKED", repr(asked)).replace("REFUSED", repr(refused)))
    command = [sys.executable, "-m", "unisono", "run", "-n", str(workers), "--output", "leader", *options, "script.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_script_that_asks_for_gloo(tmp_path):
    """``unisono run --backend shm`` gives a script shared memory by the name of gloo where it asks for that."""
    asked = [{"backend": name} for name in ("gloo", "cpu:gloo", "GLOO", None)] + [{}]
    *seen, refused = run_script(tmp_path, asked, "cpu:gloo,cuda:nccl", "--backend", "shm")
    assert seen == [[["gloo", "shm"]] * 4 + [[2.0, 2.0]]] * 5
    assert "shm cannot take gloo's place in 'cpu:gloo,cuda:nccl'" in refused


@pytest.mark.slow
def test_a_script_without_the_option(tmp_path):
    """The control: without the option the same script gets what it asks for."""
    assert run_script(tmp_path, [{"backend": "gloo"}], None, workers=1) == [[["gloo", "gloo"]] * 4 + [[1.0, 1.0]]]


def test_whose_place_it_takes():
    """Only gloo on the CPU is replaced."""
    assert [instead_of_gloo(name) for name in ("gloo", "Gloo", "cpu:gloo", "shm")] == ["shm"] * 4
    assert [instead_of_gloo(name) for name in ("nccl", "mpi", "cuda:nccl")] == ["nccl", "mpi", "cuda:nccl"]
    with pytest.raises(ConfigError, match="without --backend shm"):
        instead_of_gloo("cpu:gloo,cuda:nccl")


def test_the_choice_of_a_launch():
    """A launch hands the choice to its own workers only."""
    target = ScriptTarget(path="train.py")
    outer = {"UNISONO_BACKEND": gloo_hook.__name__}
    assert "UNISONO_BACKEND" not in worker_environment(LaunchSpec(target=target), 0, "/private", 1, outer)
    chosen = worker_environment(
        LaunchSpec(target=target, backend="shm", backend_module=gloo_hook.__name__), 0, "/private", 1, {}
    )
    assert chosen["UNISONO_BACKEND"] == gloo_hook.__name__
