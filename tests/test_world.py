"""A process learns who it is from its launcher's variables, and never guesses."""

import copy
import dataclasses
import pickle
from types import MappingProxyType

import pytest

from unisono.errors import WorldError
from unisono.world import World, expand_first_host, expand_tasks_per_node


def world_of(**variables: str) -> World:
    """Build a world from variables that cannot be written to."""
    return World.from_env(MappingProxyType(variables))


TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_PROCID": "6",
    "SLURM_STEP_ID": "2",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2(x3),1",
    "SLURM_STEP_NODELIST": "gpu[003-005,12]",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1",
}


def test_empty_environment_is_a_world_of_one():
    """Without a launcher a program is alone, leader, on one host, and meets nobody."""
    world = world_of()
    assert world == World()
    assert (world.rank, world.world_size, world.launcher, world.rendezvous) == (0, 1, "none", "")
    assert world.is_leader
    assert world.size == world.world_size == 1
    assert world.is_single_host


def test_a_world_is_frozen():
    """Nothing can change who a process is after it has been found out."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        World().rank = 1


def test_torchrun():
    """Torchrun's variables are taken over, and its store is used."""
    assert world_of(**TORCHRUN) == World(
        rank=5,
        world_size=8,
        local_rank=1,
        local_world_size=4,
        node_rank=1,
        launcher="torchrun",
        rendezvous="env://",
    )
    assert not world_of(**TORCHRUN).is_leader
    assert not world_of(**TORCHRUN).is_single_host


def test_a_hand_made_world_of_one_needs_no_address():
    """RANK=0 WORLD_SIZE=1 alone is enough: nobody has to be met."""
    assert world_of(RANK="0", WORLD_SIZE="1").rendezvous == ""


MPICH = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "3", "MPI_LOCALNRANKS": "4"}


def test_mpich():
    """The variables of MPICH, Intel MPI and their kin; they win over those of the srun that starts MPICH's helpers."""
    world = world_of(**MPICH)
    assert (world.rank, world.world_size, world.local_rank, world.launcher) == (3, 4, 3, "mpich")
    assert world.rendezvous.startswith("tcp://127.0.0.1:")
    assert world_of(**SLURM | MPICH).launcher == "mpich"
    without = {name: value for name, value in MPICH.items() if name != "MPI_LOCALRANKID"}
    assert world_of(**SLURM | without).launcher == "slurm"  # the control: srun --mpi=pmi2 sets PMI_RANK too
    with pytest.raises(WorldError, match=r"mpich started 4 ranks on several hosts.*Hint: mpiexec -genv MASTER_ADDR"):
        world_of(**MPICH | {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"})


def test_ranks_may_be_told_to_share_devices():
    """Under any launcher, by a variable; 0 is no."""
    assert world_of(**TORCHRUN, UNISONO_SHARE_DEVICES="1").shares_devices
    assert not world_of(**TORCHRUN, UNISONO_SHARE_DEVICES="0").shares_devices
    assert not world_of(**TORCHRUN).shares_devices


def test_our_own_launcher():
    """Our launcher speaks torchrun's dialect and adds a file to meet at, a run directory and replicas."""
    world = world_of(**TORCHRUN, UNISONO_RENDEZVOUS="/r/store", UNISONO_RUN_DIR="runs/1", UNISONO_REPLICAS="16")
    assert (world.launcher, world.rendezvous) == ("unisono", "file:///r/store")
    assert (world.run_dir, world.replicas) == ("runs/1", 16)


def test_run_directory_and_replicas_also_reach_a_world_of_one():
    """What verify imposes holds without any launcher too."""
    world = world_of(UNISONO_RUN_DIR="elsewhere", UNISONO_REPLICAS="3")
    assert (world.launcher, world.run_dir, world.replicas) == ("none", "elsewhere", 3)
    assert world_of(UNISONO_REPLICAS="0").replicas is None
    assert [world_of(UNISONO_WITNESS=text).witness for text in ("0", "1", "0.25", ".5", "1e-05")] == [
        0,
        1,
        0.25,
        0.5,
        1e-5,
    ]


def test_slurm():
    """A task of srun finds its rank, its host's share of the tasks, and the first host as rendezvous."""
    world = world_of(**SLURM)
    assert (world.rank, world.world_size, world.local_rank, world.node_rank) == (6, 7, 0, 3)
    assert (world.local_world_size, world.launcher) == (1, "slurm")
    assert world.rendezvous.startswith("tcp://gpu003:")
    assert world_of(**SLURM | {"SLURM_PROCID": "2", "SLURM_NODEID": "1"}).local_world_size == 2


def test_slurm_ranks_meet_at_one_port_and_jobs_at_different_ones():
    """All tasks of a step compute one port below the ephemeral ones; another step computes another."""
    first = world_of(**SLURM).rendezvous
    other_rank = world_of(**SLURM | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}).rendezvous
    other_step = world_of(**SLURM | {"SLURM_STEP_ID": "3"}).rendezvous
    assert first == other_rank != other_step
    assert 1024 < int(first.rpartition(":")[2]) < 32768


def test_slurm_on_one_host_stays_on_loopback():
    """Tasks of one host do not listen on the network."""
    one_host = SLURM | {"SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "7", "SLURM_STEP_NODELIST": "gpu003"}
    assert world_of(**one_host).rendezvous.startswith("tcp://127.0.0.1:")
    assert world_of(**one_host).is_single_host


def test_slurm_accepts_a_given_meeting_place():
    """MASTER_ADDR and MASTER_PORT win over what we would compute."""
    given = SLURM | {"MASTER_ADDR": "ib0-gpu003", "MASTER_PORT": "12345"}
    assert world_of(**given).rendezvous == "tcp://ib0-gpu003:12345"


def test_slurm_batch_script_is_a_world_of_one():
    """The batch script itself carries SLURM_PROCID=0 and SLURM_NTASKS=8 but is no task of srun."""
    assert world_of(SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_JOB_ID="1").world_size == 1
    assert world_of(SLURM_PROCID="0", SLURM_NTASKS="8", SLURM_STEP_ID="0").world_size == 8  # the control


@pytest.mark.parametrize(
    ("text", "counts"),
    [("4", [4]), ("2(x3),1", [2, 2, 2, 1]), ("1,2(x2)", [1, 2, 2]), ("1(x1)", [1]), ("3, 2", [3, 2])],
)
def test_tasks_per_node(text, counts):
    """Slurm's short notation is written out, host by host."""
    assert expand_tasks_per_node(text) == counts


@pytest.mark.parametrize("text", ["", "x", "2(x", "2(3)", "-1", "2,,1"])
def test_malformed_tasks_per_node_are_refused(text):
    """What is not Slurm's notation is an error that shows it."""
    with pytest.raises(WorldError, match="SLURM_TASKS_PER_NODE"):
        expand_tasks_per_node(text)


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[003-007,12],login1", "gpu003"),
        ("gpu[9,10]", "gpu9"),
        ("a-b.example,c", "a-b.example"),
        ("rack[0-63]_blade[1-41]", "rack0_blade1"),
        ("tux[2-4]-ib", "tux2-ib"),
    ],
)
def test_first_host_of_a_node_list(nodelist, host):
    """The first host of every form that Slurm documents is found, leading zeros kept."""
    assert expand_first_host(nodelist) == host


@pytest.mark.parametrize("nodelist", ["", "[1-2]", ",a"])
def test_malformed_node_lists_are_refused(nodelist):
    """A list without a first host is an error."""
    with pytest.raises(WorldError, match="node list"):
        expand_first_host(nodelist)


def test_openmpi_on_one_host():
    """Ranks of one host meet on loopback without any MASTER_ADDR."""
    world = world_of(**OPENMPI)
    assert (world.rank, world.world_size, world.local_rank, world.local_world_size) == (1, 2, 1, 2)
    assert (world.launcher, world.node_rank) == ("openmpi", 0)
    assert world.rendezvous.startswith("tcp://127.0.0.1:")


def test_openmpi_on_several_hosts_needs_an_address():
    """Several hosts cannot meet on loopback: the error gives the option to add, and the address is then used."""
    several = OPENMPI | {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
    with pytest.raises(WorldError, match="mpirun -x MASTER_ADDR"):
        world_of(**several)
    world = world_of(**several, MASTER_ADDR="10.1.1.1", MASTER_PORT="7000")
    assert (world.rendezvous, world.node_rank) == ("tcp://10.1.1.1:7000", 1)


def test_a_world_of_one_under_mpirun_or_srun_meets_nobody():
    """One rank opens no port, whoever started it."""
    assert world_of(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="1").rendezvous == ""
    assert world_of(SLURM_PROCID="0", SLURM_STEP_ID="0").rendezvous == ""


def test_the_innermost_launcher_wins():
    """Torchrun inside mpirun inside srun is torchrun's world; without it mpirun's; without that srun's."""
    assert world_of(**SLURM, **OPENMPI, **TORCHRUN).launcher == "torchrun"
    assert world_of(**SLURM, **OPENMPI).launcher == "openmpi"
    assert world_of(**SLURM).launcher == "slurm"


@pytest.mark.parametrize(
    ("base", "missing"),
    [
        (TORCHRUN, "RANK"),
        (TORCHRUN, "WORLD_SIZE"),
        (TORCHRUN, "MASTER_ADDR"),
        (TORCHRUN, "MASTER_PORT"),
        (OPENMPI, "OMPI_COMM_WORLD_SIZE"),
    ],
)
def test_incomplete_variables_name_the_missing_one(base, missing):
    """Half a launcher is an error that names what is missing, never a guess."""
    assert world_of(**base)
    with pytest.raises(WorldError, match=rf"\b{missing} is not set"):
        world_of(**{name: value for name, value in base.items() if name != missing})


@pytest.mark.parametrize(
    ("base", "name"),
    [(TORCHRUN, name) for name in TORCHRUN if name != "MASTER_ADDR"]
    + [(SLURM, name) for name in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID")]
    + [(SLURM, "MASTER_PORT"), (SLURM, "UNISONO_REPLICAS"), ({}, "UNISONO_REPLICAS")]
    + [(OPENMPI, name) for name in OPENMPI if name != "PMIX_NAMESPACE"],
)
@pytest.mark.parametrize("text", ["two", "", "1.5"])
def test_variables_that_are_no_numbers_are_named(base, name, text):
    """A variable that should be a number and is not is named with its value."""
    with pytest.raises(WorldError, match=rf"expected {name} to be a whole number, got '{text}'"):
        world_of(**base | {name: text})


@pytest.mark.parametrize(
    "change",
    [{"RANK": "8"}, {"RANK": "-1"}, {"WORLD_SIZE": "0"}, {"LOCAL_RANK": "4"}, {"LOCAL_WORLD_SIZE": "9"}],
)
def test_contradictions_are_refused(change):
    """A rank outside its world, or a host with more ranks than the world, is an error."""
    with pytest.raises(WorldError, match="expected"):
        world_of(**TORCHRUN | change)


def test_a_node_beyond_the_list_is_refused():
    """SLURM_NODEID must be one of the nodes that have tasks."""
    with pytest.raises(WorldError, match="SLURM_NODEID=4"):
        world_of(**SLURM | {"SLURM_NODEID": "4"})


def test_current_reads_the_process_environment(monkeypatch):
    """World.current is from_env of this process."""
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("UNISONO_RENDEZVOUS", raising=False)
    assert World.current().rank == 5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("local_rnk", "did you mean 'local_rank'"),
        ("is_main_process", "world.is_leader"),
        ("_x", "$"),
    ],
)
def test_names_of_others_are_answered(name, said):
    """With what a world is asked for here; copies and pickles of one are what they were."""
    with pytest.raises(AttributeError, match=rf"^a World has no '{name}'\.( Hint: )?{said}"):
        getattr(World(), name)
    assert copy.deepcopy(World()) == pickle.loads(pickle.dumps(World())) == World()


@pytest.mark.parametrize("text", ["", "2", "-0.1", "nan", "1.5", "often", "1e3"])
def test_a_witness_is_a_share(text):
    """What is no number from 0 to 1 is refused by the variable's name."""
    with pytest.raises(WorldError, match="expected UNISONO_WITNESS to be a number from 0 to 1"):
        world_of(UNISONO_WITNESS=text)
