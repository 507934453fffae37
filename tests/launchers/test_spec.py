"""The launch as plain values."""

import os
import subprocess
import sys

import pytest

from unisono.errors import ConfigError
from unisono.launchers.spec import (
    LaunchSpec,
    ModuleTarget,
    ScriptTarget,
    Seat,
    check_target,
    count_gpus,
    resolve_workers,
    usable_cores,
    worker_environment,
)
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
    env = environment(rank=1, workers=2)
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
    }
    assert expected.items() <= env.items()


def test_a_seat_among_several_hosts():
    """Ranks count over all hosts; gloo and nccl get one interface, and every worker the launchers' store."""
    seat = Seat(
        node_rank=1, num_nodes=3, first_rank=2, world_size=7, master_addr="10.0.0.1", master_port=77, interface="ens3",
        attempt=4, run_id="job",
    )  # fmt: skip
    env = environment({"TORCHELASTIC_RUN_ID": "outer", "GLOO_SOCKET_IFNAME": "lo"}, rank=4, workers=3, seat=seat)
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
        "UNISONO_BEACON": "/private/beacon-4",
    }
    assert expected.items() <= env.items()
    spec = LaunchSpec(target=SCRIPT, workers=3, seat=seat)
    assert (spec.ranks, spec.world_size) == (range(2, 5), 7)
    world = World.from_env(env)
    assert (world.launcher, world.rendezvous, world.node_rank, world.local_rank) == ("unisono", "env://", 1, 2)
    assert not world.is_single_host


def test_outer_agent_is_forgotten():
    """A launch inside torchrun does not lead its workers to the outer agent's store."""
    env = environment({"TORCHELASTIC_USE_AGENT_STORE": "True", "RANK": "7", "HOME": "/home/me"})
    assert "TORCHELASTIC_USE_AGENT_STORE" not in env
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


def test_threads_of_mkl():
    """The option also overrules MKL's own variable, which torch would prefer."""
    assert environment({"MKL_NUM_THREADS": "8"}, threads=2)["MKL_NUM_THREADS"] == "2"
    assert "MKL_NUM_THREADS" not in environment({}, threads=2)


def test_base_environment_is_not_written():
    """The launcher's own environment stays as it is."""
    base = {"A": "1"}
    assert environment(base, env={"A": "2"})["A"] == "2"
    assert base == {"A": "1"}


@pytest.mark.parametrize("settings", [{"workers": 0}, {"threads": 0}, {"output": "loud"}, {"grace_s": -1.0}], ids=str)
def test_wrong_settings(settings):
    """A wrong setting is refused when the spec is built."""
    with pytest.raises(ConfigError, match="expected"):
        LaunchSpec(target=SCRIPT, **settings)


def test_missing_targets(tmp_path):
    """A missing script, a folder and an unknown module are refused before any process starts."""
    for target in (ScriptTarget(path=str(tmp_path / "no.py")), ScriptTarget(path=str(tmp_path))):
        with pytest.raises(ConfigError, match=r"expected a Python file .* got .* Hint"):
            check_target(target)
    with pytest.raises(ConfigError, match="no module named 'no_such_module'"):
        check_target(ModuleTarget(name="no_such_module.sub"))
    check_target(ModuleTarget(name="json.tool"))


def test_resolve_workers():
    """Numbers pass, auto is capped by the replicas, and more workers than replicas are refused."""
    assert resolve_workers("3") == 3
    assert resolve_workers(2, 2) == 2
    assert resolve_workers("auto", 1) == 1
    assert 1 <= resolve_workers("auto") <= 4096
    for workers, replicas in (("many", None), (0, None), (4, 2), ("auto", 0)):
        with pytest.raises(ConfigError):
            resolve_workers(workers, replicas)


def test_cores_respect_a_container(tmp_path):
    """A container's CPU quota counts, rounded down but never to zero; nonsense is ignored."""
    everything = len(os.sched_getaffinity(0))
    quota = tmp_path / "cpu.max"
    for text, cores in (
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("max 100000", everything),
        ("?", everything),
    ):
        quota.write_text(text)
        assert usable_cores(str(quota)) == cores
    assert usable_cores(str(tmp_path / "absent")) == everything


def test_gpus_are_counted(tmp_path, monkeypatch):
    """GPUs are counted from nvidia-smi, at most the visible ones; none if torch cannot use any."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: GPU-1)'\necho 'GPU 1: A (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0")
    assert count_gpus() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert count_gpus() == 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert count_gpus() == 0
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    assert count_gpus() == 0


def test_launcher_is_light():
    """The launcher and its command line import neither torch nor numpy."""
    code = (
        "import sys, unisono.cli.run, unisono.launchers.api; "
        "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_large_copies_go_around_the_caches():
    """The C library is told when the worker starts, unless the user has told it something."""
    assert environment()["GLIBC_TUNABLES"] == "glibc.cpu.x86_non_temporal_threshold=0x200000"
    assert environment({"GLIBC_TUNABLES": "glibc.malloc.check=1"})["GLIBC_TUNABLES"] == "glibc.malloc.check=1"
