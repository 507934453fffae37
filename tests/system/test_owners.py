"""Whose directory a run adopts: its user's own or root's, never a stranger's, never one that every user may write."""

import os
import re

import pytest

from unisono.errors import CheckpointError, ConfigError
from unisono.system.directory import Directory
from unisono.system.owners import Owners, adopt

STRANGER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to another user")


def names_in(path):
    return sorted(file.name for file in path.iterdir())


def test_its_own_directory_is_adopted(tmp_path):
    """Made where it is missing; a link that leads to it, and members of its group, are its user's own choice."""
    with adopt(tmp_path / "new" / "run") as home:
        assert home.owners is not None
        assert home.owners.ids >= {0, os.geteuid()}
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o2775)  # a directory that a group shares
    (tmp_path / "link").symlink_to("run")
    adopt(tmp_path / "link").close()
    assert names_in(tmp_path / "run") == []


@needs_root
def test_a_strangers_directory_is_refused(tmp_path):
    """Who owns it can change all that a run keeps; the message names him and the ways out. Nothing is left there."""
    (tmp_path / "run").mkdir()
    os.chown(tmp_path / "run", STRANGER, STRANGER)
    with pytest.raises(ConfigError, match=rf"{tmp_path}/run, which belongs to .*{STRANGER}\).*Hint: .*chown") as caught:
        adopt(tmp_path / "run")
    assert str(caught.value).count("\n") == 0
    assert names_in(tmp_path / "run") == []
    os.chown(tmp_path / "run", 0, 0)
    adopt(tmp_path / "run").close()


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o703])
def test_a_directory_that_every_user_may_write_is_refused(tmp_path, mode):
    """Sticky or not: what is not there yet could be put there by anybody. The hint's two ways out work."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(mode)
    with pytest.raises(ConfigError, match=rf"with mode {mode:04o}\. Hint: chmod o-w {tmp_path}/run, or") as caught:
        adopt(tmp_path / "run")
    inside = re.search(r"--out (\S+)/NAME", str(caught.value))
    assert inside is not None
    adopt(tmp_path / "run" / "NAME").close()
    (tmp_path / "run" / "NAME").rmdir()
    (tmp_path / "run").chmod(mode & ~0o002)
    adopt(tmp_path / "run").close()


@pytest.mark.parametrize("name", ["checkpoints", "phases", "logs"])
@pytest.mark.parametrize("what", ["a link", "a file", "open to all", pytest.param("a stranger's", marks=needs_root)])
def test_what_lies_inside_is_looked_at_too(tmp_path, name, what):
    """A directory of the run that leads elsewhere, or that strangers can write, stops the launch."""
    inner, elsewhere = tmp_path / "run" / name, tmp_path / "elsewhere"
    inner.parent.mkdir()
    elsewhere.mkdir()
    if what == "a link":
        inner.symlink_to(elsewhere)
    elif what == "a file":
        inner.touch()
    else:
        inner.mkdir()
        inner.chmod(0o777 if what == "open to all" else 0o700)
        if what == "a stranger's":
            os.chown(inner, STRANGER, STRANGER)
    with pytest.raises((CheckpointError, ConfigError), match=f"{inner}.*Hint: "):
        adopt(tmp_path / "run")
    assert names_in(tmp_path / "run") == [name]


@needs_root
def test_a_strangers_file_is_refused(tmp_path):
    """In a directory that a group may write, a member's file is neither believed nor continued; it can be replaced."""
    with adopt(tmp_path) as home:
        home.replace("x", b"1")
        assert home.read("x") == b"1"  # the control
        os.chown(tmp_path / "x", STRANGER, STRANGER)
        for act in (home.read, home.append):
            with pytest.raises(CheckpointError, match=rf"found one of .*{STRANGER}.*Hint: .*chown root {tmp_path}/x"):
                act("x")
        home.replace("x", b"2")
        assert home.read("x") == b"2"
    os.chown(tmp_path / "x", STRANGER, STRANGER)
    with Directory.open(tmp_path) as home:  # who only reads may read a colleague's
        assert home.read("x") == b"2"


@needs_root
def test_a_server_that_maps_users_and_keeps_no_modes(tmp_path):
    """Where new files are given to another user, with a mode open to all, that says nothing about strangers."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    os.chown(tmp_path / "run", STRANGER, STRANGER)
    (tmp_path / "created").touch()
    (tmp_path / "created").chmod(0o777)
    os.chown(tmp_path / "created", STRANGER, STRANGER)
    owners = Owners.judging_by((tmp_path / "created").stat())
    owners.check_directory(tmp_path / "run", (tmp_path / "run").stat())
    (tmp_path / "created").chmod(0o600)
    with pytest.raises(ConfigError, match="with mode 0777"):
        Owners.judging_by((tmp_path / "created").stat()).check_directory(tmp_path / "run", (tmp_path / "run").stat())


def test_a_directory_with_other_files_is_refused(tmp_path):
    """Nothing of a run is put among them; the hint's way out works."""
    (tmp_path / "thesis").mkdir()
    for name in ("a.tex", "b.tex", "c.tex", "d.tex"):
        (tmp_path / "thesis" / name).touch()
    with pytest.raises(
        ConfigError, match=r"empty directory or that of a run, got .*/thesis, which holds a.tex"
    ) as caught:
        adopt(tmp_path / "thesis", alone=True)
    assert "c.tex and 1 more. Hint: choose a new directory in it" in str(caught.value)
    assert names_in(tmp_path / "thesis") == ["a.tex", "b.tex", "c.tex", "d.tex"]
    adopt(tmp_path / "thesis" / "run", alone=True).close()
    adopt(tmp_path / "thesis").close()  # a program has its own reasons


@pytest.mark.parametrize("mark", ["run.json", "score.json", "run.lock", "ledger.jsonl", "checkpoints/step-00000001.ab"])
def test_what_is_left_of_a_run_is_a_run(tmp_path, mark):
    """Files that a user has put into a run's directory, and the loss of others, do not lock the run out."""
    (tmp_path / "notes.md").touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / mark).touch()
    adopt(tmp_path, alone=True).close()


def test_what_may_lie_there_before_a_run(tmp_path):
    """Hidden files, the launcher's, and the files to which its output is sent."""
    for name in (".gitkeep", "run.toml", "control.sock", "train.log", "slurm-12.out", "secret-12"):
        (tmp_path / name).touch()
    adopt(tmp_path, alone=True).close()
