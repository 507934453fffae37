"""Bytes on disk are those that were handed in, tensors are those that any safetensors reader finds."""

import os

import pytest
import safetensors.torch
import torch

from unisono.checkpoint.files import (
    FileSum,
    check_sum,
    read_checked,
    safetensors_chunks,
    write_synced,
)
from unisono.errors import CheckpointError
from unisono.system.directory import Directory
from unisono.system.files import replace_file

TENSORS = {
    "b.weight": torch.arange(6.0).view(2, 3),
    "a": torch.tensor(3, dtype=torch.int64),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "yes": torch.tensor([True, False, True]),
    "none": torch.empty(0, 4),
    "t": torch.arange(6.0, dtype=torch.float64).view(2, 3).t(),
    "c": torch.tensor([1 + 2j], dtype=torch.complex64),
    "f8": torch.ones(5).to(torch.float8_e4m3fn),
}


def test_the_library_reads_what_we_write(tmp_path):
    """Values, shapes and dtypes come back through the safetensors library; the sum is that of the file."""
    file = tmp_path / "x.safetensors"
    home = Directory.open(tmp_path)
    entry = write_synced(home, file.name, safetensors_chunks(TENSORS))
    found = safetensors.torch.load_file(file)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].tolist() == tensor.tolist() if "f8" not in name else True
    assert read_checked(home, file.name, entry) == file.read_bytes()
    assert entry.bytes == file.stat().st_size


def test_the_bytes_are_the_librarys():
    """For contiguous tensors the file is the one that the library would have written."""
    plain = {name: tensor for name, tensor in TENSORS.items() if tensor.is_contiguous() and name not in ("c", "f8")}
    ours = safetensors.torch.load(b"".join(bytes(chunk) for chunk in safetensors_chunks(plain)))
    theirs = safetensors.torch.load(safetensors.torch.save(plain))
    assert all(torch.equal(ours[name], theirs[name]) for name in plain)


@pytest.mark.parametrize("tensor", [torch.zeros(1, dtype=torch.complex128), torch.ones(2).to_sparse()])
def test_what_has_no_place_in_the_format_is_named(tensor):
    """A dtype or layout that the format does not know is refused before a byte is written."""
    with pytest.raises(CheckpointError, match=r"'x': .*has no place in a safetensors file"):
        next(safetensors_chunks({"x": tensor}))


def test_a_file_is_never_overwritten(tmp_path):
    """Writing needs a new name; replacing is whole or not at all."""
    home = Directory.open(tmp_path)
    write_synced(home, "a", [b"1"])
    with pytest.raises(FileExistsError):
        write_synced(home, "a", [b"2"])
    replace_file(tmp_path / "a", b"3")
    assert (tmp_path / "a").read_bytes() == b"3"
    assert os.listdir(tmp_path) == ["a"]  # noqa: PTH208


def test_sums_are_of_what_was_handed_in(tmp_path):
    """A file that is other than what was handed to the writer does not check, from memory or from the disk."""
    home = Directory.open(tmp_path)
    entry = write_synced(home, "a", [b"12", memoryview(b"34")])
    check_sum(home, "a", entry, from_disk=True)
    (tmp_path / "a").write_bytes(b"1235")
    for check in (check_sum, read_checked):
        with pytest.raises(CheckpointError, match="is damaged"):
            check(home, "a", entry)
        with pytest.raises(CheckpointError, match="found 4 bytes"):
            check(home, "a", FileSum(5, entry.sha256))
