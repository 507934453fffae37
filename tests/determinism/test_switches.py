"""Generators, checksums and the environment's fingerprint: what bits rest on."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unisono.determinism.switches import (
    NUMERIC,
    Checksum,
    checksum,
    describe_environment,
    drift,
    float32_precision,
    set_determinism,
    set_generators,
)

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("switches_put_back")


def draw() -> tuple[object, ...]:
    """Draw from every stream a model or a transform may use."""
    return (
        tuple(torch.rand(3).tolist()),
        int(torch.randint(10**9, (1,))),
        tuple(torch.nn.functional.dropout(torch.ones(8)).tolist()),
        random.random(),
        random.gauss(0, 1),
        float(np.random.rand()),
        float(np.random.normal()),
    )


@pytest.mark.parametrize("key", [0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1])
def test_generators_are_repeatable(key):
    """The same key gives the same draws from torch, Python and NumPy, whatever was drawn before."""
    set_generators(key)
    first = draw()
    draw()
    set_generators(key)
    assert draw() == first


def test_other_keys_give_other_draws_in_every_library():
    """No stream is left out: with another key each single draw differs."""
    set_generators(1)
    first = draw()
    set_generators(2)
    assert all(ours != theirs for ours, theirs in zip(first, draw(), strict=True))


def test_set_determinism_pins_the_switches():
    """Threads are as asked, deterministic kernels are on, and fresh memory is not filled."""
    set_determinism(1)
    assert torch.get_num_threads() == 1
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory
    set_determinism(2)
    assert torch.get_num_threads() == 2


raw_bytes = st.binary(min_size=1, max_size=100)


@given(raw_bytes, st.data())
def test_any_flipped_bit_changes_the_checksum(raw, data):
    """One wrong bit anywhere, in a tensor of any length, is seen."""
    place = data.draw(st.integers(0, 8 * len(raw) - 1))
    damaged = bytearray(raw)
    damaged[place // 8] ^= 1 << place % 8
    before = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    after = torch.frombuffer(damaged, dtype=torch.uint8)
    assert checksum([before]) == checksum([before.clone()])
    assert checksum([before]) != checksum([after])


@given(st.lists(raw_bytes, min_size=1, max_size=6), st.data())
def test_a_checksum_adds_up_over_tensors_in_any_order(parts, data):
    """Order and grouping of the tensors do not count: shards can be summed."""
    tensors = [torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts]
    whole = checksum(tensors)
    shuffled = data.draw(st.permutations(tensors))
    place = data.draw(st.integers(0, len(tensors)))
    assert checksum(shuffled) == whole
    assert (checksum(shuffled[:place]) + checksum(shuffled[place:])) % 2**64 == whole


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool])
def test_checksum_of_slices_is_that_of_their_copies(dtype):
    """Where a tensor starts in memory does not count, only its bits."""
    base = (torch.arange(40) % 7).to(dtype)
    for start in range(9):
        part = base[start : start + 21]
        assert checksum([part]) == checksum([part.clone()])
    assert checksum([]) == checksum([base[:0]]) == 0


def test_checksum_tells_minus_zero_from_zero():
    """Bits are compared, not values."""
    assert checksum([torch.tensor([0.0])]) != checksum([torch.tensor([-0.0])])


def test_the_environment_has_every_numeric_entry():
    """Everything that decides bits is recorded, and the rest of the record is there for the reader."""
    environment = describe_environment(threads=3, device=CPU)
    # A run adds the world's size where the strategy is not exact; the CPU has no facts of a device.
    assert set(NUMERIC) - {"world_size", "device_facts"} <= set(environment)
    assert environment["threads"] == 3
    assert environment["torch"] == torch.__version__
    assert {"python", "numpy", "system"} <= set(environment)
    assert environment == describe_environment(threads=3, device=CPU)


def test_a_variable_that_chooses_kernels_is_in_the_environment(monkeypatch):
    """A CPU capability asked for by variable is a drift against a run without it."""
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    before = describe_environment(threads=1, device=CPU)
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    (line,) = drift(before, describe_environment(threads=1, device=CPU))
    assert line.startswith("variables: ")
    assert "default" in line


@pytest.mark.parametrize("name", NUMERIC)
def test_drift_names_each_numeric_entry(name):
    """One line with recorded and present value for each entry that decides bits, also for a missing one."""
    environment = describe_environment(threads=1, device=CPU) | {
        "world_size": 2,
        "device_facts": {"multiprocessors": 132},
    }
    assert drift(environment, environment) == []
    assert drift(environment, environment | {name: "other"}) == [f"{name}: {environment[name]!r} -> 'other'"]
    without = {key: value for key, value in environment.items() if key != name}
    # A missing world size means another strategy, and so another score.
    expected = [] if name == "world_size" else [f"{name}: None -> {environment[name]!r}"]
    assert drift(without, environment) == expected


def test_what_does_not_decide_bits_is_no_drift():
    """Another kernel release or Python patch is recorded but lets a run go on."""
    environment = describe_environment(threads=1, device=CPU)
    assert drift(environment, environment | {"system": "other", "cpu": "other", "python": "0"}) == []


def test_a_kept_checksum_is_the_checksum():
    """Sums that keep their views are the plain ones: tensors small, large, odd, transposed, moved, replaced."""
    torch.manual_seed(0)
    large = 1 << 16
    tensors = [torch.randn(4, 4), torch.randn(large), torch.randn(3), torch.randn(4, 6).t()]
    tensors += [torch.empty(0), torch.ones(())]
    tensors.append(torch.nn.Parameter(torch.randn(2, 2, dtype=torch.float64)))
    kept = Checksum()

    def agree():
        assert kept(tensors) == checksum(tensors)
        return kept(tensors)

    seen = [agree()]
    tensors[0][1, 1] += 1  # in place
    tensors[1][large - 1] += 1
    seen.append(agree())
    tensors[6].data = torch.randn(2, 2, dtype=torch.float64)  # elsewhere
    seen.append(agree())
    tensors[0] = tensors[0] + 1  # another
    seen.append(agree())
    tensors.pop()
    seen.append(agree())
    assert len(set(seen)) == len(seen)
    assert all(tensor.untyped_storage().resizable() for tensor in tensors)


def test_the_same_tuple_again():
    """Its tensors are not asked who they are, but where they lie; another tuple is another question."""
    tensors = tuple(torch.nn.Parameter(torch.randn(4)) for _ in range(2))
    kept = Checksum()
    seen = [kept(tensors)]
    with torch.no_grad():
        tensors[0].add_(1)
    seen.append(kept(tensors))
    tensors[1].data = torch.randn(4)
    seen.append(kept(tensors))
    assert seen[-1] == checksum(tensors)
    seen.append(kept((tensors[0], torch.randn(4))))
    assert len(set(seen)) == 4


def test_another_precision_inside():
    """Of matrix products and of cuDNN's convolutions; afterwards as before, also after an error."""
    read = lambda: (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)  # noqa: E731
    before, seen = read(), []
    for wanted in ("high", "highest", None):
        with float32_precision(wanted):
            seen.append(read())
    assert seen == [("high", True), ("highest", False), before]
    with pytest.raises(ValueError, match="inside"), float32_precision("medium"):
        raise ValueError("inside")
    assert read() == before
