"""What is said of a user's model that failed in its forward or backward pass."""

from pathlib import Path

import pytest
import torch
from torch import nn

from unisono.data.batches import XY
from unisono.errors import StepError
from unisono.strategies.base import Micro
from unisono.strategies.parts.backward import checked_loss, explain, explained


def test_what_fsdp_cannot_is_explained():
    """A loss that differentiates twice meets weights that torch's FSDP has freed: the way out is said."""
    for text, is_meant in (("setStorage: sizes [4] are out of bounds for storage of size 0", True), ("other", False)):
        error = RuntimeError(text)
        explain(error, 1, Micro(replica=0, num_samples=1, data=None), 1)
        assert any("needs another strategy, exact" in note for note in error.__notes__) == is_meant


def test_too_many_shapes_for_the_compiler_are_explained():
    """What to write is said beside torch's error, known by its name: nobody imports the compiler."""
    source = Path(torch.__file__).with_name("_dynamo") / "exc.py"
    for name, is_meant in (("FailOnRecompileLimitHit", True), ("Other", False)):
        assert (f"class {name}(" in source.read_text()) == is_meant
        error = type(name, (Exception,), {})("Hard failure due to fail_on_recompile_limit_hit")
        explain(error, 1, Micro(replica=0, num_samples=1, data=None), 1)
        assert any("torch.compile(model, dynamic=True)" in note for note in error.__notes__) == is_meant


def test_an_index_behind_the_embedding_is_explained():
    """Torch says neither which layer it was nor which number; an IndexError of the program's own stays as it is."""
    for lookup, is_meant in ((nn.Embedding(4, 2), True), ([0].__getitem__, False)):
        with pytest.raises(IndexError) as caught, explained(1, Micro(replica=0, num_samples=1, data=None), 1):
            lookup(torch.tensor([4]))
        assert any("TokenFile(vocabulary=" in note for note in caught.value.__notes__) == is_meant


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (0.5, "got float. Hint: return the loss itself, without .item()"),
        (None, "got None. Hint: end the loss function"),
    ],
)
def test_no_tensor(loss, told):
    """A loss that is a number, or nothing: what to write instead."""
    with pytest.raises(StepError, match="step 3: expected the loss as a tensor of one element") as failure:
        checked_loss(loss, 3)
    assert told in str(failure.value)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (XY(torch.ones(1), torch.ones(1)), "Hint: the micro-batch has .x and .y."),
        (
            torch.ones(1),
            "Hint: the micro-batch is a Tensor, as the data set's samples are; those of pairs have .x and .y.",
        ),
    ],
)
def test_what_a_micro_batch_has(data, told):
    """A misspelt name of its parts is answered with the right ones; of something else nothing is said."""
    micro = Micro(replica=0, num_samples=1, data=data)
    for wrong, notes in ((data, [told]), (torch, [])):
        with pytest.raises(AttributeError) as failure, explained(1, micro, 1):
            wrong.labels  # noqa: B018
        assert failure.value.__notes__[1:] == notes
