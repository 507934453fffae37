"""What a rank's program finds that srun, mpirun or torchrun has started."""

import pytest

from unisono.errors import WorldError
from unisono.launchers.engines.joining import joined_environment
from unisono.world import World

OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SLURM = {"SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7", "SLURM_STEP_NUM_TASKS": "4"} | {
    "SLURM_LOCALID": "0", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "n[1-2]"
}  # fmt: skip


def joined(environ, threads=None):
    return joined_environment(World.from_env(environ), environ, threads)


@pytest.mark.parametrize("environ", [OPENMPI, SLURM], ids=["openmpi", "slurm"])
def test_the_program_finds_torchruns_variables(environ):
    """All of them, and they describe the very world that the launcher's own do; programs of unisono meet there."""
    world, env = World.from_env(environ), joined(environ)
    again = World.from_env(env)
    for name in ("rank", "world_size", "local_rank", "local_world_size", "node_rank"):
        assert getattr(again, name) == getattr(world, name)
    assert (again.launcher, again.rendezvous) == ("torchrun", world.rendezvous)
    assert world.rendezvous == f"tcp://{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
    assert environ.items() <= env.items()


def test_a_secret_is_handed_on(tmp_path):
    """Itself, whether it came as a word or as a file."""
    path = tmp_path / "secret"
    path.write_text("a-word-that-nobody-guesses\n")
    path.chmod(0o600)
    for given in ({"UNISONO_SECRET": "a-word-that-nobody-guesses"}, {"UNISONO_SECRET_FILE": str(path)}):
        env = joined(OPENMPI | given)
        assert World.from_env(env).secret == env["UNISONO_SECRET"] == "a-word-that-nobody-guesses"
    assert World.from_env(joined(OPENMPI)).secret == ""


def test_a_world_of_one_meets_nobody():
    """Any free port will do, on loopback."""
    env = joined(OPENMPI | dict.fromkeys(("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"), "1") | {
        "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"
    })  # fmt: skip
    assert (env["WORLD_SIZE"], env["MASTER_ADDR"], env["MASTER_PORT"]) == ("1", "127.0.0.1", "0")


def test_torchruns_own_are_left_alone():
    """Inside torchrun or `unisono run` only the threads are fixed."""
    environ = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1", "GROUP_RANK": "5"}
    env = joined(environ)
    assert {name: env[name] for name in environ} == environ
    assert "LOCAL_RANK" not in env


@pytest.mark.parametrize(("given", "threads", "expected"), [({}, None, "1"), ({"OMP_NUM_THREADS": "3"}, None, "3"),
                                                            ({"OMP_NUM_THREADS": "3"}, 2, "2")])  # fmt: skip
def test_threads_are_fixed(given, threads, expected):
    """For one rank as for many, since their number changes bits."""
    env = joined(OPENMPI | given, threads)
    assert (env["OMP_NUM_THREADS"], env["OMP_DYNAMIC"]) == (expected, "FALSE")


def test_a_process_that_nobody_has_started_as_a_rank():
    """It is not made a world of one in silence."""
    with pytest.raises(WorldError, match=r"srun, mpirun or torchrun, got .* none.*Hint: mpirun -n 4 unisono join"):
        joined({})
