"""Who sees whose run directory, found out by looking; and what hosts without a common one send each other."""

import threading

import pytest
import torch

from unisono.checkpoint.format import State
from unisono.collectives.loopback import run_ranks
from unisono.errors import CheckpointError, LeaderFailed
from unisono.train.run_directory import directories
from unisono.train.run_directory.directories import find_directories, join_heads
from unisono.train.run_directory.handover import hand_over, send_bytes


def test_one_directory(tmp_path):
    """Ranks of one host that see one directory have one keeper, and leave nothing behind."""
    found = run_ranks(lambda transport: find_directories(transport, tmp_path / "run"), 3)
    assert {each.keepers for each in found} == {(0, 0, 0)}
    assert all(each.is_shared for each in found)
    assert list((tmp_path / "run").iterdir()) == []


def test_directories_of_their_own(tmp_path):
    """Each directory has the lowest of its ranks as keeper; links and other spellings are the same directory."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("a")
    paths = [tmp_path / "a", tmp_path / "link", tmp_path / "b", tmp_path / "a" / ".." / "b"]

    def look(transport):
        return find_directories(transport, paths[transport.rank], patience_s=0.1)

    found = run_ranks(look, 4)
    assert {each.keepers for each in found} == {(0, 0, 2, 2)}
    assert "ranks 0, 2 each keep the whole run" in str(found[0])
    assert not [file for path in paths for file in path.iterdir()]


def test_a_shared_directory_of_two_hosts(tmp_path, monkeypatch):
    """Hosts whose device numbers say nothing find each other's token, also when it shows late."""
    hosts = threading.local()
    monkeypatch.setattr(directories, "name_of_this_host", lambda: hosts.name)

    find, shown = directories._find_tokens, threading.Event()

    def find_late(path, tokens, patience_s):
        threading.Timer(0.2, shown.set).start()
        assert shown.wait(10)
        return find(path, tokens, patience_s)

    monkeypatch.setattr(directories, "_find_tokens", find_late)

    def look(transport):
        hosts.name = f"host {transport.rank // 2}"
        return find_directories(transport, tmp_path)

    found = run_ranks(look, 4)
    assert {each.keepers for each in found} == {(0, 0, 0, 0)}
    assert str(found[0]) == "is one directory for all 2 hosts."


def test_joining_heads():
    """Three hosts, two of which share a directory that the first does not see."""
    assert join_heads([0, 0, 2, 3], [[], None, [], [2]]) == (0, 0, 2, 2)
    assert join_heads([0, 1, 2], [[], [0], [0, 1]]) == (0, 0, 0)


def test_a_directory_that_cannot_be_made(tmp_path):
    """All ranks stop with the words of the one that failed."""
    (tmp_path / "file").touch()
    classes = []

    def look(transport):
        with pytest.raises((OSError, LeaderFailed), match=r"Not a directory|rank 1 stopped the run") as caught:
            find_directories(transport, tmp_path / ("file/run" if transport.rank else "run"))
        classes.append(caught.type)

    run_ranks(look, 2)
    assert set(classes) == {NotADirectoryError, LeaderFailed}


def test_state_goes_to_all_ranks(monkeypatch):
    """Every dtype, an empty tensor and values arrive bit for bit, in pieces; the home's failure is everybody's."""
    monkeypatch.setattr("unisono.train.run_directory.handover._PIECE_BYTES", 100)
    tensors = {
        "model": {"w": torch.randn(7, 5), "n": torch.tensor(3), "h": torch.randn(3).bfloat16()},
        "optimizer": {"m": torch.zeros(0, 4, dtype=torch.float64)},
    }
    state = State(tensors=tensors, values={"lr": 0.1, "list": [1, "a", None]})

    def read(rank):
        assert rank == 1
        return 12, state

    found = run_ranks(lambda transport: hand_over(transport, 1, lambda: read(transport.rank)), 3)
    for step, came in found:
        assert (step, came.values) == (12, state.values)
        for stem, part in tensors.items():
            assert came.tensors[stem].keys() == part.keys()
            assert all(torch.equal(came.tensors[stem][name], tensor) for name, tensor in part.items())
            assert all(came.tensors[stem][name].dtype == tensor.dtype for name, tensor in part.items())
    assert run_ranks(lambda transport: send_bytes(transport, 0, b"x" * 250, 250), 2) == [b"x" * 250] * 2

    def fail(transport):
        def broken():
            raise CheckpointError("gone")

        with pytest.raises((CheckpointError, LeaderFailed), match="gone"):
            hand_over(transport, 1, broken)

    run_ranks(fail, 2)
