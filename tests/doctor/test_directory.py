"""A directory that keeps what checkpoints need, and ones that do not."""

import pytest

from unisono.doctor import directory
from unisono.doctor.directory import check_directory, filesystem_of, torn_reads


def test_a_local_directory_is_well_and_left_as_it_was(tmp_path):
    """Nothing of the test stays behind."""
    found = check_directory(tmp_path)
    assert found.status in ("ok", "warn"), found
    assert "atomic" in found.detail
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_fails(tmp_path):
    """It is named, with the reason."""
    found = check_directory(tmp_path / "none")
    assert (found.status, "none: cannot write" in found.detail) == ("fail", True)


def test_a_rename_that_is_not_whole_would_be_noticed(tmp_path, monkeypatch):
    """The control: versions that stay short or vanish are torn reads, and fail the directory."""
    assert torn_reads(tmp_path / "whole") == 0
    assert torn_reads(tmp_path / "short", lambda path: lambda content: path.write_bytes(content[:-1])) > 0
    assert torn_reads(tmp_path / "gone", lambda path: lambda content: None) > 0
    monkeypatch.setattr(directory, "torn_reads", lambda path: 3)
    found = check_directory(tmp_path)
    assert (found.status, "3 reads" in found.detail, bool(found.hint)) == ("fail", True, True)


@pytest.mark.parametrize(
    ("path", "kind"), [("/", "ext4"), ("/data/a", "nfs4"), ("/database", "ext4"), ("/data/fast/a", "tmpfs")]
)
def test_the_nearest_mount_counts(tmp_path, path, kind):
    """By whole parts of the path; what was mounted last covers the rest."""
    mounts = "none / ramfs rw 0 0\n/dev/a / ext4 rw 0 0\nhost:/x /data nfs4 rw 0 0\nnone /data/fast tmpfs rw 0 0\n"
    assert filesystem_of(tmp_path.__class__(path), mounts) == kind


def test_a_network_file_system_is_a_warning(tmp_path, monkeypatch):
    """What other hosts see cannot be told from here."""
    monkeypatch.setattr(directory, "filesystem_of", lambda *_: "nfs4")
    assert check_directory(tmp_path).status == "warn"
