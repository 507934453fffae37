"""The loss of an evaluation is that which training minimises, over the whole data set."""

import math

import pytest
import torch
from torch.nn import functional as F

import unisono
from ranks import run_threads
from strategies.weight_programs import BATCH, IGNORED, Tagger, counted, tokens
from unisono.train.evaluated_loss import EvaluatedLoss


def cross_entropy(reduction):
    """Return the loss of a trainer."""
    return lambda output, y: F.cross_entropy(output, y.flatten(), ignore_index=IGNORED, reduction=reduction)


def fit(transport, reduction, weight=counted):
    """Train and evaluate; return bits of the test loss, and how far it is from that of one batch of all samples."""
    with unisono.Run(replicas=5, transport=transport or "auto") as run:
        net = Tagger()
        trainer = unisono.Trainer(
            run, net, torch.optim.SGD(net.parameters(), lr=0.1), loss=cross_entropy(reduction), weight=weight,
            reduction=reduction, metrics={},
        )  # fmt: skip
        trainer.fit(tokens(), epochs=2, batch_size=BATCH, last="join", show_progress=False)
        loss = trainer.evaluate(tokens())["test_loss"]
        x, y = tokens().arrays
        net.eval()
        whole = cross_entropy("mean" if weight else "sum")(net(x), y).item()
        return loss.hex(), abs(loss - whole) / whole


@pytest.mark.parametrize(("reduction", "weight"), [("mean", counted), ("sum", counted), ("sum", None)])
def test_a_trainer_evaluates_what_it_trains(reduction, weight):
    """Test losses are means over tokens, sums their sum, the same bits for any number of ranks."""
    (alone,) = run_threads(fit, 1, reduction, weight)
    assert alone[1] < 1e-6
    assert [told[0] for told in run_threads(fit, 3, reduction, weight)] == [alone[0]] * 3


def play(batches, weight=lambda micro: micro, reduction="mean"):
    """Return the metric after (loss, weight) of some batches."""
    metric = EvaluatedLoss(lambda output, _: output, weight, reduction)
    for loss, each in batches:
        metric.begin(each)
        metric.update(torch.tensor(loss), torch.ones(3))
    return metric.compute()


def test_what_weights_make_of_losses():
    """Exact weighted means; a mean over nothing is not looked at; bad weights, and no weight at all, give NaN."""
    assert play([(1.0, 3), (5.0, 1)]) == 2.0
    assert play([(1.0, 3), (math.nan, 0)]) == 1.0
    assert play([(3.0, 3), (5.0, 1)], reduction="sum") == 2.0
    assert play([(3.0, 3), (5.0, 1)], None, "sum") == 8.0
    assert play([(1.0, 3), (5.0, 1)], None) == 3.0  # three samples each
    for batches in ([(1.0, -1.0)], [(1.0, math.inf)], [(1.0, math.nan)], [(math.inf, 1)], [(1.0, 0)], []):
        assert math.isnan(play(batches))
    assert math.isnan(play([(math.nan, 0)], reduction="sum"))
