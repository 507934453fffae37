"""Prediction: every sample once, in order, the same bits on every rank of every world."""

import pytest
import torch
from torch import nn

import unisono
from forks import run_forked
from ranks import run_threads
from train.callbacks.small import predicted
from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.errors import ConfigError, RankDivergence
from unisono.train.predict import Outputs, inputs_of

INPUTS = torch.randn(37, 6, generator=torch.Generator().manual_seed(0))


def predict(transport, dataset=None, **settings):
    """Return (model, predictions) of an untrained model."""
    with unisono.Run(seed=0, replicas=8, transport=transport) as run:
        model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
        trainer = unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=0.1), loss=nn.CrossEntropyLoss())
        found = trainer.predict(
            dataset or unisono.ArrayDataset(INPUTS, torch.zeros(37)), **{"batch_size": 5, **settings}
        )
        assert all(module.training for module in model.modules())
        return model.eval(), found


def bits(found):
    """Return tensors as something JSON-able that tells bits and shapes."""
    if isinstance(found, torch.Tensor):
        return [str(found.dtype), list(found.shape), found.reshape(-1).view(torch.uint8).tolist()]
    return {key: bits(value) for key, value in (found.items() if isinstance(found, dict) else enumerate(found))}


def several(micro):
    """Outputs of several dtypes and shapes."""
    return {
        "sum": micro.x.double().sum(1), "picture": micro.x.bfloat16().view(-1, 2, 3).transpose(1, 2),
        "is_positive": micro.x > 0, "nothing": micro.x[:, :0], "label": micro.x.argmax(1),
    }  # fmt: skip


def test_any_world():
    """Outputs are the bits of one rank on all ranks of all worlds, more ranks than batches among them."""
    expected = run_threads(lambda transport: bits(predict(transport)[1]), 1)[0]
    for world_size in (2, 3, 5, 8):
        assert run_threads(lambda transport: bits(predict(transport)[1]), world_size) == [expected] * world_size
    kinds = run_threads(lambda transport: bits(predict(transport, output=several)[1]), 1)[0]
    assert run_threads(lambda transport: bits(predict(transport, output=several, batch_size=19)[1]), 3) == [kinds] * 3


def test_right_outputs_in_order():
    """They are what the model says of each sample, in evaluation mode, without a graph."""
    (model, found), _ = run_ranks(lambda transport: predict(transport, batch_size=9), 2)
    assert found.shape == (37, 4)
    assert not found.requires_grad and not found.is_inference()
    torch.testing.assert_close(found, model(INPUTS).detach())
    kept = run_ranks(lambda transport: predict(transport, output=lambda micro: (micro.x, micro.y))[1], 3)[2]
    assert isinstance(kept, tuple)
    assert kept[0].equal(INPUTS)
    assert not kept[0].equal(INPUTS.flip(0))  # the control: order matters


def test_samples_without_targets():
    """Bare tensors, single fields and any structure of its own; a limit takes the first samples."""
    expected = predict(LoopbackTransport())[1]
    for dataset in (list(INPUTS), unisono.ArrayDataset(INPUTS)):
        assert predict(LoopbackTransport(), dataset)[1].equal(expected)
    rows = [{"x": row} for row in INPUTS]
    assert predict(LoopbackTransport(), rows, output=lambda micro: micro["x"], limit=8)[1].equal(INPUTS[:8])
    assert inputs_of({"x": 1}) == {"x": 1}


def test_repeated_batches_are_not_kept():
    """Strategies that need all ranks in a forward pass repeat work where a rank has less to do."""
    outputs = Outputs(7, 3, LoopbackTransport())
    for part in (*INPUTS[:7].split(3), INPUTS[:3]):
        outputs.add(part)
    assert outputs.gather().equal(INPUTS[:7])


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (lambda micro: micro.x.sum(), r"5 rows.*as output, got a tensor of shape \(\)"),
        (lambda micro: (micro.x, 3), r"as output\[1\], got int"),
        (lambda micro: {"first": micro.x[:2]}, r"as first, got a tensor of shape \(2, 6\)"),
    ],
)
def test_rows_are_needed(output, told):
    """What has no row for each sample is refused with what it was."""
    with pytest.raises(ConfigError, match=told):
        predict(LoopbackTransport(), output=output)


def test_other_shapes_are_refused():
    """Batches of other widths cannot be put together: every rank says so, with both."""

    def program(transport):
        with pytest.raises(RankDivergence, match=r"float32.*\[6\].*on rank 0.*\[1\].*on rank 2"):
            predict(transport, output=lambda micro: micro.x[:, : 6 if len(micro.x) == 5 else 1])

    run_ranks(program, 3)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "pipeline"])
def test_strategies_that_share_a_model(strategy):
    """Where the model itself is spread over two processes, the bits are those of the whole one."""
    assert run_forked(predicted, 2, strategy) == run_threads(predicted, 1, "exact") * 2
