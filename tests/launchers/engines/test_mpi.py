"""The command for Open MPI."""

import pytest

from unisono.errors import ConfigError
from unisono.launchers.engines.mpi import MpiJob, render, slots_of

COMMAND = ("python", "-m", "unisono", "join", "train.py")


def test_one_host():
    """Cores are not counted, ranks are not bound, and root has to be said."""
    assert render(MpiJob(command=COMMAND, workers=4, as_root=True)) == [
        "mpirun", "-n", "4", "-x", "UNISONO_SECRET", "--oversubscribe", "--bind-to", "none", "--allow-run-as-root",
        *COMMAND,
    ]  # fmt: skip
    assert "--allow-run-as-root" not in render(MpiJob(command=COMMAND, workers=4))


def test_several_hosts_meet_on_the_first():
    """The ranks learn its address and a port, which the user's variables may overrule."""
    job = MpiJob(command=COMMAND, workers=3, hosts=("a.net:2", "b"), port=4000, env={"A": "1 2"})
    assert render(job) == [
        "mpirun", "-n", "3", "-x", "UNISONO_SECRET", "--host", "a.net:2,b:1", "--bind-to", "none",
        "-x", "MASTER_ADDR=a.net", "-x", "MASTER_PORT=4000", "-x", "A=1 2", *COMMAND,
    ]  # fmt: skip
    own = MpiJob(command=COMMAND, workers=2, hosts=("a", "b"), env={"MASTER_ADDR": "10.0.0.1"})
    assert [word for word in render(own) if word.startswith("MASTER_ADDR")] == ["MASTER_ADDR=10.0.0.1"]


def test_more_words_for_mpirun_come_before_the_command():
    """Options of its own."""
    words = render(MpiJob(command=COMMAND, workers=2, options=("--mca", "btl", "tcp,self")))
    assert words[-len(COMMAND) - 3 :] == ["--mca", "btl", "tcp,self", *COMMAND]


@pytest.mark.parametrize(
    "settings",
    [{"workers": 0}, {"hosts": ("a:2", "a:2"), "workers": 4}, {"hosts": ("a:0",)}, {"hosts": ("a b",)}, {"port": 0}],
    ids=str,
)
def test_wrong_settings(settings):
    """No worker, a host twice or without slots, a name that is none, a port that is none."""
    with pytest.raises(ConfigError, match="expected"):
        render(MpiJob(**{"command": COMMAND, "workers": 1, **settings}))


def test_slots_and_workers_must_agree():
    """Otherwise ranks would crowd one host, or a host stay empty."""
    assert slots_of(["a:2", "b"]) == {"a": 2, "b": 1}
    with pytest.raises(ConfigError, match=r"got 3 slots on 2 hosts for 4 workers.*Hint"):
        MpiJob(command=COMMAND, workers=4, hosts=("a:2", "b"))
