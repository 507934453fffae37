"""The copy of a step's end: equal to the last bit, in memory that is used again, unmoved by what follows."""

import torch

from unisono.checkpoint.staging import Staging, bytes_of, is_roomy


def files():
    return {
        "model.safetensors": {
            "a": torch.arange(1000.0),
            "b": torch.tensor(5, dtype=torch.int64),
            "t": torch.arange(12.0).view(3, 4).t(),
            "n": torch.tensor([True]),
            "e": torch.empty(0, 3),
            "j": torch.tensor([1 + 1j]).conj(),
        },
        "optimizer.safetensors": {"h": torch.randn(7, 3).to(torch.bfloat16)},
    }


def copy(staging, files):
    copies = {file: {} for file in files}
    for file, name, offset in staging.lay_out(files):
        copies[file][name] = staging.put(files[file][name], offset)
    return copies


def test_copies_are_equal_and_apart():
    """Every tensor is copied with its values; changing the original afterwards does not show."""
    staging, source = Staging(), files()
    wanted = {name: tensor.clone() for part in source.values() for name, tensor in part.items()}
    copies = copy(staging, source)
    for part in source.values():
        for tensor in part.values():
            tensor.zero_()
    assert {file: list(part) for file, part in copies.items()} == {file: list(part) for file, part in source.items()}
    for part in copies.values():
        for name, tensor in part.items():
            assert torch.equal(tensor, wanted[name])
            assert tensor.dtype == wanted[name].dtype
            assert tensor.is_contiguous()


def test_the_memory_is_used_again():
    """A second copy of the same size lands in the same place; a larger one gets more room."""
    staging = Staging()
    first = copy(staging, files())["model.safetensors"]["a"].data_ptr()
    assert copy(staging, files())["model.safetensors"]["a"].data_ptr() == first
    held = staging.num_bytes
    assert held == bytes_of(files())
    staging.reserve(10 * held)
    assert staging.num_bytes == 10 * held
    staging.reserve(held)
    assert staging.num_bytes == 10 * held


def test_room(tmp_path):
    """Half of what the machine says is available may be used; where it says nothing, all is fine."""
    told = tmp_path / "meminfo"
    told.write_text("MemTotal: 9000 kB\nMemAvailable:     1000 kB\n")
    assert is_roomy(512_000, told)
    assert not is_roomy(512_001, told)
    assert is_roomy(10**15, tmp_path / "none")
    told.write_text("nothing")
    assert is_roomy(10**15, told)
