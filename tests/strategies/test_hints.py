"""Mistakes with one's own arrays: torch's words, beside which stands what to write."""

import ast
import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unisono.data.batches import XY
from unisono.strategies.base import Micro
from unisono.strategies.parts.backward import explained

LINEAR, CONVOLUTION, TOKENS = nn.Linear(4, 3), nn.Conv2d(1, 2, 1), nn.Embedding(4, 2)
X, Y = torch.ones(2, 4), torch.tensor([0, 1])
BARE = nn.functional.cross_entropy

MISTAKES = {
    "float64 images": (X.double(), Y, LINEAR, BARE, "x is float64: NumPy makes float64"),
    "float64 into a convolution": (X.double()[:, None, None], Y, CONVOLUTION, BARE, "images.astype('float32') before"),
    "float64 into a norm": (X.double(), Y, nn.LayerNorm(4), BARE, "images.astype('float32') before"),
    "float64 into an LSTM": (X.double(), Y, nn.LSTM(4, 3), BARE, "images.astype('float32') before"),
    "float64 into a product": (X.double()[None], Y, lambda x: torch.bmm(x.mT, X[None]), BARE, "x is float64: NumPy"),
    "bytes": (X.byte(), Y, LINEAR, BARE, "images.astype('float32') / 255"),
    "whole numbers": (X.long(), Y, LINEAR, BARE, "whole numbers go into an nn.Embedding alone"),
    "tokens with decimals": (X, Y, TOKENS, BARE, "tokens.astype('int64')"),
    "int32 classes": (X, Y.int(), LINEAR, BARE, "labels.astype('int64')"),
    "classes with decimals": (X, Y.float(), LINEAR, BARE, "labels.astype('int64')"),
    "a column of classes": (X, Y[:, None], LINEAR, BARE, "labels.squeeze(1)"),
    "one-hot classes": (X, torch.ones(2, 3).long(), LINEAR, BARE, "labels.argmax(1)"),
    "classes from 1": (X, Y + 2, LINEAR, BARE, "labels - 1"),
    "too few outputs": (X, Y + 2, LINEAR, BARE, "are from 2 to 3, and there are 3 outputs, for classes 0 to 2"),
    "classes of places": (
        torch.ones(2, 3, 5),
        torch.full((2, 5), -1),
        nn.Identity(),
        nn.CrossEntropyLoss(),
        "the targets are from -1 to -1, and there are 3 outputs, for classes 0 to 2",
    ),
    "log-probabilities": (X, Y + 3, nn.LogSoftmax(1), F.nll_loss, "from 3 to 4, and there are 4 outputs"),
    "flattened over samples": (X.view(1, 8), Y, lambda x: LINEAR(x.view(-1, 4)[:1]), BARE, "makes 1 rows of 2 samples"),
    "two shapes": (X, Y.float(), nn.Linear(4, 1), F.binary_cross_entropy_with_logits, ".squeeze(1)"),
    "whole targets": (X, torch.ones(2, 3).long(), LINEAR, F.binary_cross_entropy_with_logits, "takes targets with"),
    "targets first": (X, Y, LINEAR, lambda output, y: BARE(y, output), "outputs come first, then targets"),
    "larger images": (torch.ones(2, 9), Y, LINEAR, BARE, "nn.Linear(4, 3) was given 2 rows of 9 numbers. If"),
    "no channels": (torch.ones(2, 4, 4), Y, CONVOLUTION, BARE, "images[:, None]"),
    "channels last": (torch.ones(2, 4, 4, 3), Y, nn.Conv2d(3, 2, 1), BARE, "images.transpose(0, 3, 1, 2)"),
    "flat images": (X, Y, CONVOLUTION, BARE, "images[:, None]"),
}


@pytest.mark.parametrize(("x", "y", "model", "loss", "written"), MISTAKES.values(), ids=MISTAKES)
def test_what_to_write_stands_beside_torchs_words(x, y, model, loss, written):
    """Torch of this version really says what the table looks for; one hint each."""
    micro = Micro(replica=0, num_samples=len(x), data=XY(x, y))
    with pytest.raises((RuntimeError, ValueError, IndexError)) as caught, explained(1, micro, 2):
        output = model(x)
        loss(output, y)
    where, *hints = caught.value.__notes__
    assert len(hints) == 1
    assert "Hint: " in hints[0]
    assert written in hints[0]
    assert all(f"{name} {str(of.dtype)[6:]} {tuple(of.shape)}" in where for name, of in (("x", x), ("y", y)))


def test_a_pair_is_asked_for_a_key():
    """``micro["x"]``, as in programs whose batches are dictionaries."""
    micro = Micro(replica=0, num_samples=2, data=XY(X, Y))
    with pytest.raises(TypeError) as caught, explained(1, micro, 2):
        micro.data["x"]
    assert caught.value.__notes__[1:] == ["Hint: the micro-batch is a pair: micro.x and micro.y."]


def test_a_result_is_called():
    """``run.step(batch, loss(...))``, or ``loss = loss(...)`` before it: both are answered, in one hint."""
    with pytest.raises(TypeError) as caught, explained(1, Micro(replica=0, num_samples=2, data=XY(X, Y)), 2):
        BARE(X, Y)()
    assert re.fullmatch(
        r"Hint: run\.step\(\) calls .*, not a result that has taken its name .*", *caught.value.__notes__[1:]
    )


class Ragged:
    """As a nested tensor: it has a dtype, and asking for its shape is an error."""

    dtype, is_nested = torch.float32, True
    shape = property(lambda _: int("none"))


@pytest.mark.parametrize("model", [LINEAR, CONVOLUTION, TOKENS, nn.Flatten()], ids=lambda model: type(model).__name__)
def test_a_model_is_given_the_whole_micro_batch(model):
    """``model(micro)`` in place of ``model(micro.x)``."""
    micro = Micro(replica=0, num_samples=2, data=XY(X, Y))
    with pytest.raises((TypeError, AttributeError)) as caught, explained(1, micro, 2):
        model(micro.data)
    assert any("model(micro.x)" in note or "has .x and .y" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("data", [None, np.ones(2), {"text": "a", "ragged": Ragged()}, [X], ast.Name("a")])
def test_of_other_errors_and_batches_nothing_is_guessed(data):
    """The place alone is told."""
    micro = Micro(replica=0, num_samples=1, data=data)
    with pytest.raises(RuntimeError) as caught, explained(1, micro, 2):
        raise RuntimeError("something of the program's own")
    assert caught.value.__notes__ == ["in step 1, replica 0 of 2, a micro-batch of 1 sample"]
