"""A loss of torch's that is a sum, in a step that takes means: told in the first step."""

import warnings

import pytest
from torch.nn import functional as F

TOLD = "the loss is the sum over the 4 samples of a micro-batch"


def train(toy, loss, steps=2, **how):
    with toy.run(replicas=3) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=steps):
            run.step(batch, lambda micro: loss(model(micro.x), micro.y), **how)
        return run.fingerprint()


def summed(output, target):
    return F.cross_entropy(output, target, reduction="sum")


def test_a_sum_is_told_once_and_the_hint_is_the_mean(toy):
    """What the hint says to write has the bits of the mean; the sum itself does not."""
    with pytest.warns(UserWarning, match=TOLD) as told:
        wrong = train(toy, summed)
    assert len(told) == 1
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right = train(toy, summed, reduction="sum", weight=lambda micro: len(micro.y))
        assert right == train(toy, F.cross_entropy) != wrong


@pytest.mark.parametrize("loss", [F.cross_entropy, lambda output, target: summed(output, target) / len(target)])
def test_means_are_left_alone(toy, loss):
    """Also one that the program has made of a sum."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(toy, loss)
