"""DataParallel in one process: one device's gradients, exact sample counts, the traps of the original."""

import pytest
import torch
from torch import nn

import unisono
from ranks import run_threads
from strategies.conformance import loss_of
from strategies.strategy_runs import toy_data, train
from unisono.collectives.loopback import LoopbackTransport
from unisono.errors import ConfigError, StepError
from unisono.strategies.base import StrategyContext
from unisono.strategies.data_parallel import DataParallel


def values(strategy, **settings):
    return torch.tensor(train(None, strategy, steps=9, **settings)["values"])


@pytest.mark.parametrize("options", [
    {"gpu0_bsz": 0}, {"gpu0_bsz": 2}, {"gpu0_bsz": 50}, {"gpu0_bsz": 3, "batch_chunk": 5}, {"devices": 13},
])  # fmt: skip
def test_gradients_are_those_of_one_device(options):
    """Whatever the shares, the chunks and the remainders: 97 samples in batches of 12, the last of one sample."""
    expected = values("exact")
    assert torch.allclose(values(unisono.strategy("balanced_dp", **options)), expected, atol=1e-5)
    assert torch.allclose(values(unisono.strategy("dp", devices=options.get("devices", 3))), expected, atol=1e-5)


class Recorder(nn.Module):
    """Notes how many samples each forward pass gets, and in which thread's turn; takes keyword arguments too."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.seen = []

    def forward(self, x, *, scale=None):
        self.seen.append(len(x))
        return self.linear(x) if scale is None else self.linear(x) * scale


def engine(model, **options):
    chosen = unisono.strategy("balanced_dp", **options)
    setting = StrategyContext(transport=LoopbackTransport(), placement=[range(1)], seed=0, device=torch.device("cpu"))
    return DataParallel(model, torch.optim.SGD(model.parameters(), lr=0.1), setting, chosen)


@pytest.mark.parametrize(("devices", "gpu0", "batch", "sizes"), [
    (4, 2, 10, [2, 3, 3, 2]), (4, 0, 10, [4, 3, 3]), (3, 0, 1, [1]), (2, 5, 3, [3]), (3, 6, 11, [6, 3, 2]),
])  # fmt: skip
def test_sample_counts_are_exact(devices, gpu0, batch, sizes):
    """The first device gets its number, also where that is more than an even share; 0 and a batch of 1 work."""
    model = Recorder()
    dp = engine(model, devices=devices, gpu0_bsz=gpu0)
    x = torch.randn(batch, 64)
    assert torch.allclose(dp.forward(x), model.linear(x), atol=1e-6)
    assert sorted(model.seen) == sorted(sizes)
    assert [size for size in dp.sizes if size] == sizes


@pytest.mark.parametrize(("gpu0", "chunks", "sizes"), [
    (4, 2, [2, 4, 4]), (4, 1, [4, 3, 3]), (5, 2, [2, 4, 4]), (1, 2, [0, 5, 5]), (0, 1, [0, 5, 5]), (-1, 2, [4, 3, 3]),
])  # fmt: skip
def test_the_first_device_s_samples_are_those_of_a_step(gpu0, chunks, sizes):
    """As in the original: `gpu0_bsz // batch_chunk` of each pass, here of 10 samples; -1 is plain DataParallel."""
    dp = engine(nn.Linear(64, 10), devices=3, gpu0_bsz=gpu0, batch_chunk=chunks)
    dp.forward(torch.randn(10, 64))
    assert dp.sizes == sizes


def test_the_share_is_even_where_nothing_is_said():
    """The default is the original's -1: the sizes and the bits of `dp`."""
    plain, balanced = (train(None, unisono.strategy(name, devices=3)) for name in ("dp", "balanced_dp"))
    assert plain["weights"] == balanced["weights"]
    assert balanced["weights"] != train(None, unisono.strategy("balanced_dp", devices=3, gpu0_bsz=1))["weights"]


def test_keyword_arguments_alone_are_scattered_and_failures_name_the_device():
    """The original fails on inputs that are keyword arguments only, and swallows errors."""
    model = Recorder()
    dp = engine(model, devices=2, gpu0_bsz=1)
    x, scale = torch.randn(4, 64), torch.randn(4, 1)
    assert torch.allclose(dp.forward(x=x, scale=scale), model.linear(x) * scale, atol=1e-6)
    with pytest.raises(StepError, match=r"one common length along dim 0, got \[3, 4\]"):
        dp.forward(x, scale=scale[:3])
    with pytest.raises(RuntimeError) as failure:
        dp.forward(torch.randn(4, 63))
    assert "on device 0 of 2, with 1 samples" in failure.value.__notes__[0]


def test_random_forward_passes_are_repeatable():
    """With dropout the logical devices take turns; without it they run in threads at the same time."""

    def build(p):
        return lambda: nn.Sequential(nn.Linear(64, 32), nn.Dropout(p), nn.Linear(32, 10))

    once, twice = (train(None, unisono.strategy("dp", devices=3), build=build(0.3)) for _ in range(2))
    assert once["weights"] == twice["weights"]
    assert once["weights"] != train(None, unisono.strategy("dp", devices=3), build=build(0.0))["weights"]
    for p, draws in ((0.3, True), (0.0, False)):
        dp = engine(build(p)(), devices=3)
        dp.forward(torch.randn(6, 64))
        assert dp._draws is draws


def test_one_device_and_several_processes_are_refused():
    """Said before the start, with what to write."""
    with pytest.raises(ConfigError, match=r"several devices, got devices 1\. Hint: --devices 2"):
        unisono.strategy("dp", devices=1)
    with pytest.raises(ConfigError, match="dp runs in 1 process, got 2"):
        run_threads(lambda transport: unisono.Run(strategy="dp", transport=transport), 2)


def test_batch_statistics_are_the_first_device_s():
    """As in torch: the model's buffers see the first device's samples only."""
    with unisono.Run(strategy=unisono.strategy("dp", devices=2)) as run:
        model = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 10))
        front, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        batch = next(run.steps(run.loader(toy_data(), batch_size=10, shuffle=False), epochs=1))
        run.step(batch, loss_of(front))
        first = toy_data().arrays[0][:5]
        assert torch.allclose(model[0].running_mean, 0.1 * first.mean(0), atol=1e-6)
