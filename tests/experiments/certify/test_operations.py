"""Operations repeated: one result each, and the control is found."""

import pytest
import torch

from unisono.experiments.certify.operations import CONTROL, OPERATIONS, different

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", OPERATIONS)
def test_repeated(name):
    """Three times, forward and backward; a sum in a drawn order has more than one result."""
    found = different(OPERATIONS[name], CPU, torch.float32, 12 if name == CONTROL else 3)
    assert (found > 1) if name == CONTROL else (found == 1)


def test_a_refusal_of_torch_is_told():
    """Other errors are errors."""

    def refused(x, y):
        raise RuntimeError("x does not have a deterministic implementation")

    def wrong(x, y):
        raise RuntimeError("sizes do not match")

    assert "refused by torch" in different(refused, CPU, torch.float32, 2)
    with pytest.raises(RuntimeError, match="sizes"):
        different(wrong, CPU, torch.float32, 2)
