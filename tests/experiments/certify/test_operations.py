"""Operations repeated: one result each, and the control is found."""

import pytest
import torch

from unisono.experiments.certify.operations import ATOMIC, CONTROL, CONTROLS, DTYPES, OPERATIONS, different

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", OPERATIONS)
def test_repeated(name):
    """Three times, forward and backward."""
    assert different(OPERATIONS[name], CPU, torch.float32, 3) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_control_has_several_results(dtype):
    """A sum in a random order, also of bfloat16, whose sums are mostly rounded to one number."""
    assert different(CONTROLS[CONTROL], CPU, DTYPES[dtype], 10) > 1


def test_the_control_of_gpus_leaves_determinism_on():
    """A CPU adds in one order all the same."""
    before = torch.are_deterministic_algorithms_enabled()
    try:
        torch.use_deterministic_algorithms(True)
        assert different(CONTROLS[ATOMIC], CPU, torch.float32, 2) == 1
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(before)


def test_a_refusal_of_torch_is_told():
    """Other errors are errors."""

    def refused(x, y):
        raise RuntimeError("x does not have a deterministic implementation")

    def wrong(x, y):
        raise RuntimeError("sizes do not match")

    assert "refused by torch" in different(refused, CPU, torch.float32, 2)
    with pytest.raises(RuntimeError, match="sizes"):
        different(wrong, CPU, torch.float32, 2)
