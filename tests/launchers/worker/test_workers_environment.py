"""What a worker finds in its environment."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from unisono.launchers.spec import LaunchSpec, NodePlacement, ScriptTarget
from unisono.launchers.worker.environment import worker_environment
from unisono.world import World

SCRIPT = ScriptTarget(path="train.py")


def environment(base=None, rank=0, **settings):
    return worker_environment(LaunchSpec(target=SCRIPT, **settings), rank, "/private", 4321, base or {})


def test_world_of_every_worker():
    """Each worker finds its own place in the world, and all find the same rendezvous."""
    worlds = [World.from_env(environment(rank=rank, workers=3)) for rank in range(3)]
    assert [world.rank for world in worlds] == [0, 1, 2]
    assert {(w.world_size, w.local_world_size, w.launcher, w.rendezvous) for w in worlds} == {
        (3, 3, "unisono", "file:///private/store")
    }


def test_world_of_one_worker():
    """A single worker is in a world of one that our launcher started."""
    world = World.from_env(environment())
    assert (world.world_size, world.launcher) == (1, "unisono")


def test_torchrun_variables():
    """A script for torchrun finds all variables that torchrun sets for meeting and counting."""
    env = environment(rank=1, workers=2, max_restarts=3)
    expected = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "0",
        "ROLE_RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "4321",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/private/elastic-error-1.json",
    }
    assert expected.items() <= env.items()
    again = environment(
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, max_restarts=1, attempt=1, run_id="j", role="trainer"
    )  # fmt: skip
    asked = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_RUN_ID", "ROLE_NAME")
    assert [again[name] for name in asked] == ["3", "1", "j", "trainer"]


@pytest.mark.slow
def test_the_variables_are_torchruns(tmp_path):
    """What torchrun of this torch sets, unisono run sets: the names, and the values that are no address or path."""
    script = tmp_path / "show.py"
    script.write_text("import json, os, sys; sys.stdout.write(json.dumps(dict(os.environ)) + '\\n')")
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "TORCH", "PET_"))}
    found = {}
    for name, start in (("theirs", ["torch.distributed.run"]), ("ours", ["unisono", "run"])):
        command = [sys.executable, "-m", *start, "--nproc_per_node=2", "--max_restarts=2", "--rdzv_id=7", str(script)]
        done = subprocess.run(command, env=base, capture_output=True, text=True, check=True, timeout=120)
        lines = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines()]
        found[name] = min(lines, key=lambda env: env["RANK"])
    theirs, ours = found["theirs"], found["ours"]
    added = {name for name in theirs if theirs[name] != base.get(name)}
    assert len(added) > 15
    added.remove("TORCHELASTIC_SIGNALS_TO_HANDLE")  # torchrun's note to itself, which its children happen to inherit
    assert added - set(ours) == set()
    free = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_USE_AGENT_STORE"}
    free |= {"TORCHELASTIC_RUN_ID"}  # torchrun drops the given one on one host
    differ = {name: (theirs[name], ours[name]) for name in added - free if theirs[name] != ours.get(name)}
    assert differ == {}


def test_a_seat_among_several_hosts():
    """Ranks count over all hosts; gloo and nccl get one interface, and every worker the launchers' store."""
    placement = NodePlacement(
        node_rank=1, num_nodes=3, first_rank=2, world_size=7, master_addr="10.0.0.1", master_port=77, interface="ens3",
        attempt=4, run_id="job", store="10.0.0.1:78", secret="of-all-of-these-hosts",
    )  # fmt: skip
    outer = {"TORCHELASTIC_RUN_ID": "outer", "GLOO_SOCKET_IFNAME": "lo", "UNISONO_SECRET_FILE": "of-the-launcher"}
    env = environment(outer, rank=4, workers=3, placement=placement)
    assert "UNISONO_SECRET_FILE" not in env  # the workers know less than the launchers
    assert "of-all-of-these-hosts" not in repr(placement)
    expected = {
        "RANK": "4",
        "LOCAL_RANK": "2",
        "GROUP_RANK": "1",
        "WORLD_SIZE": "7",
        "LOCAL_WORLD_SIZE": "3",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "77",
        "GLOO_SOCKET_IFNAME": "ens3",
        "NCCL_SOCKET_IFNAME": "=ens3",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "UNISONO_HEARTBEAT": "/private/heartbeat-4",
    }
    assert expected.items() <= env.items()
    spec = LaunchSpec(target=SCRIPT, workers=3, placement=placement)
    assert (spec.ranks, spec.world_size) == (range(2, 5), 7)
    world = World.from_env(env)
    assert (world.launcher, world.rendezvous, world.node_rank, world.local_rank) == (
        "unisono", "unisono://10.0.0.1:78", 1, 2,
    )  # fmt: skip
    assert world.secret == "of-all-of-these-hosts"
    assert (world.live_store, "UNISONO_LIVE_STORE" in env) == ("", False)
    own = replace(placement, own_store="10.0.0.2:79")
    assert World.from_env(environment(outer, rank=4, workers=3, placement=own)).live_store == "10.0.0.2:79"
    assert world.secret not in repr(world)
    assert not world.is_single_host


def test_gloo_is_asked_for():
    """By a variable, which a run heeds that leaves its transport open."""
    assert "UNISONO_TRANSPORT" not in environment()
    assert environment(transport="gloo")["UNISONO_TRANSPORT"] == "gloo"
    assert World.from_env(environment(workers=2, transport="gloo")).transport == "gloo"


def test_outer_agent_is_forgotten():
    """A launch inside torchrun does not lead its workers to the outer agent's store."""
    env = environment({"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "7", "HOME": "/home/me"})
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "False"  # which torch takes as: rank 0 opens the store
    assert (env["RANK"], env["HOME"]) == ("0", "/home/me")


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("base", "threads", "expected"),
    [
        ({}, None, "1"),
        ({"OMP_NUM_THREADS": "3"}, None, "3"),
        ({"OMP_NUM_THREADS": "3"}, 2, "2"),
        ({}, 2, "2"),
    ],
)
def test_threads(workers, base, threads, expected):
    """Threads are set for any number of workers: the option first, the user's variable next, else 1."""
    env = environment(base, workers=workers, threads=threads)
    assert (env["OMP_NUM_THREADS"], env["OMP_DYNAMIC"], env["MKL_DYNAMIC"]) == (expected, "FALSE", "FALSE")


def test_a_level_of_the_cpu():
    """All three libraries are told, whatever was set before; nobody is without the option."""
    base = {"MKL_CBWR": "AUTO"}
    told = environment(base, cpu_level="avx2")
    names = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
    assert [told[name] for name in names] == ["avx2", "AVX2", "AVX2"]
    assert [environment(base).get(name) for name in names] == [None, None, "AUTO"]


def test_threads_of_mkl():
    """The option also overrules MKL's own variable, which torch would prefer."""
    assert environment({"MKL_NUM_THREADS": "8"}, threads=2)["MKL_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in environment({}, threads=2)


def test_base_environment_is_not_written():
    """The launcher's own environment stays as it is."""
    base = {"A": "1"}
    assert environment(base, env={"A": "2"})["A"] == "2"
    assert base == {"A": "1"}


def test_sets_have_one_order_on_all_ranks():
    """Python mixes a number of its own into the hashes of texts, another one in each process."""
    assert environment()["PYTHONHASHSEED"] == "0"
    assert environment({"PYTHONHASHSEED": "random"})["PYTHONHASHSEED"] == "random"


def test_large_copies_go_around_the_caches():
    """The C library is told when the worker starts, unless the user has told it something."""
    assert environment()["GLIBC_TUNABLES"] == "glibc.cpu.x86_non_temporal_threshold=0x200000"
    assert environment({"GLIBC_TUNABLES": "glibc.malloc.check=1"})["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
