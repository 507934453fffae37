"""What a loss weighs: the mean over whatever is counted, with the same bits on any number of ranks."""

import contextlib
import json
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from forks import run_forked
from ranks import once, run_threads
from strategies import weight_programs
from strategies.weight_programs import BATCH, IGNORED, REPLICAS, Tagger, counted, far, one_batch, refused, tokens, train
from unisono.errors import ConfigError, NonFiniteError, ScoreMismatch, StepError
from unisono.strategies.ddp import DDP
from unisono.strategies.objective import Objective
from unisono.train.guards.checks import check_objective

PLAIN = {"dropout": 0.0, "norm": False}


def alone(**settings):
    """Train in a world of one."""
    return run_threads(lambda transport: train(transport, **settings), 1)[0]


@once
def everywhere(world_size):
    """Return each rank's report of all ways to train."""
    return run_threads(weight_programs.same_everywhere, world_size)


def test_what_an_objective_is():
    """Another reduction, and a weight that is no function, are refused; the usual one is no part of the score."""
    with pytest.raises(ConfigError, match="'mean' or 'sum', got 'none'"):
        Objective(len, reduction="none")
    with pytest.raises(ConfigError, match=r"got Tensor\. Hint: weight=lambda"):
        Objective(len, torch.ones(3))
    assert Objective(len).score is None
    assert Objective(len, len, "sum").score == {"weight": True, "reduction": "sum"}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_mean_over_tokens_is_that_of_one_big_batch(reduction):
    """Losses and gradients are those of a plain step over the batch; means over samples are far from them."""
    loss, grads = one_batch(lambda x, _: torch.ones(x.shape[:2]))
    found = alone(model=PLAIN, reduction=reduction, steps=1)
    assert math.isclose(float.fromhex(found["losses"][0]), loss, rel_tol=1e-6)
    assert far(found["grads"], grads) < 1e-6
    by_samples = alone(model=PLAIN, weight=None, dataset=tokens(first_is_empty=False), steps=1)
    by_tokens = alone(model=PLAIN, dataset=tokens(first_is_empty=False), steps=1)
    assert far(by_samples["grads"], by_tokens["grads"]) > 0.05


def test_weights_of_samples():
    """Weighted sums over samples and places are divided by the sum of all weights of the batch."""
    kept = lambda micro: (micro.y != IGNORED) * micro.x[..., 0].abs()  # noqa: E731

    def loss_of(model, _):
        how = {"ignore_index": IGNORED, "reduction": "none"}
        return lambda m: (F.cross_entropy(model(m.x), m.y.flatten(), **how) * kept(m).flatten()).sum()

    loss, grads = one_batch(lambda x, _: x[..., 0].abs())
    weight = lambda micro: kept(micro).sum()  # noqa: E731
    found = alone(model=PLAIN, weight=weight, loss=loss_of, reduction="sum", steps=1)
    assert math.isclose(float.fromhex(found["losses"][0]), loss, rel_tol=1e-6)
    assert far(found["grads"], grads) < 1e-6


@pytest.mark.parametrize("world_size", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_the_same_bits_on_any_number_of_ranks(world_size):
    """Means, sums and odd weights, with dropout, batch norm and a replica that counts nothing."""
    (expected,) = everywhere(1)
    assert len({json.dumps(way) for way in expected.values()}) == len(expected)
    for rank, report in enumerate(everywhere(world_size)):
        assert report == expected | {"rank": rank}


def test_uneven_shares_have_these_bits_too():
    """Placements that are no equal parts."""
    strategy = unisono.strategy("exact", shares=(1, 4))
    ranks = run_threads(lambda transport: train(transport, strategy=strategy)["fingerprint"], 2)
    assert ranks == [everywhere(1)[0]["mean"][0]] * 2


def test_a_weight_that_knows_its_rank_is_seen():
    """Negative control: where the weight depends on the rank, the bits depend on the world."""

    def program(transport):
        return train(transport, weight=lambda micro: counted(micro) * (1 + transport.rank))["fingerprint"]

    assert run_threads(program, 1)[0] == everywhere(1)[0]["mean"][0] != run_threads(program, 2)[0]


def test_weights_that_are_samples_change_no_bit():
    """The number of samples as weight has the bits of no weight at all, also in the ledger."""
    usual = {"dataset": tokens(first_is_empty=False)}
    (one,) = run_threads(weight_programs.ledgers, 1, *())  # a weighted one, to be told apart
    plain = run_threads(lambda t: weight_programs.ledgers(t, weight=None, **usual), 1)[0]
    same = run_threads(lambda t: weight_programs.ledgers(t, weight=lambda m: len(m.x), **usual), 2)[0]
    weights = [float.fromhex(line.pop("samples_weight")) for line in same[:-1]]
    assert weights == [line["num_samples"] for line in plain[:-1]]
    assert [line | {"previous": ""} for line in same[:-1]] == [line | {"previous": ""} for line in plain[:-1]]
    assert same[-1].pop("objective") == {"weight": True, "reduction": "mean"}
    assert same[-1] == plain[-1]
    assert float.fromhex(one[0]["samples_weight"]) == int((tokens().arrays[1][:BATCH] != IGNORED).sum())


def test_batch_norm_keeps_the_shares_of_samples():
    """Running statistics are merged by samples, whatever the loss weighs; by its weights they would be others."""
    weight = lambda micro: (7.0, 0.0, 31.0)[int(counted(micro)) % 3]  # noqa: E731
    loss = lambda model, _: lambda micro: model(micro.x).square().mean()  # noqa: E731
    by_weight = alone(weight=weight, loss=loss, steps=1)
    usual = alone(weight=None, loss=loss, steps=1)
    assert by_weight["running"] == usual["running"] != [0.0] * 16
    assert by_weight["grads"] != usual["grads"]


def test_merging_by_the_loss_would_be_seen(monkeypatch):
    """Negative control of the test above: statistics that are merged by the loss's weight differ."""
    from unisono.strategies.parts.replica_buffers import ReplicaBuffers

    collect, shares = ReplicaBuffers.collect, iter((0.7, 0.0, 0.1, 0.1, 0.1))
    loss = lambda model, _: lambda micro: model(micro.x).square().mean()  # noqa: E731
    usual = alone(loss=loss, steps=1)
    monkeypatch.setattr(ReplicaBuffers, "collect", lambda self, _, *others: collect(self, next(shares), *others))
    assert alone(loss=loss, steps=1)["running"] != usual["running"]


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_weights_stop_all_ranks(bad):
    """Every rank raises the same error, which names the replica's samples; skipping is for losses."""
    weight = lambda micro: bad if int(counted(micro)) == 0 else 1.0  # noqa: E731
    for policy in ("stop", "skip"):
        told = run_threads(lambda t, how=policy: refused(t, weight, non_finite=how), 2)
        assert told[0] == told[1]
        assert told[0].startswith(f"StepError: step 1: a weight is {bad!r}; expected finite ones of at least 0")
        assert "Samples of replica 1 of 5: [5, 6, 7, 8, 9]. The weights of the model are those of step 0." in told[0]


def test_weights_that_are_no_numbers():
    """Texts and several numbers are refused with the line to write."""
    for weight, what in ((lambda _: "x", "str"), (lambda m: m.y != 1, r"Tensor of shape (5, 7)")):
        told = run_threads(refused, 1, weight)[0]
        assert f"one number, got {what}. Hint: weight=lambda micro: micro.mask.sum()." in told


def test_nothing_to_count():
    """All weights 0: the step stops alike on all ranks; or is skipped, with weights and statistics as they were."""
    first = tokens().arrays
    empty = unisono.ArrayDataset(first[0], first[1].index_fill(0, torch.arange(BATCH), IGNORED))
    told = run_threads(lambda t: refused(t, counted, dataset=empty), 2)
    assert told[0] == told[1]
    assert "step 1: nothing is counted: the weights of all micro-batches are 0" in told[0]
    assert "Run(non_finite='skip') leaves such steps out" in told[0]
    lines = [
        run_threads(lambda t: weight_programs.ledgers(t, dataset=empty, non_finite="skip"), size)[0] for size in (1, 3)
    ]
    assert lines[0] == lines[1]
    assert [line["gradient"] == "skipped" for line in lines[0][:-1]] == [True, False, False, True, False]
    assert lines[0][0]["samples_weight"] == (0.0).hex()
    assert lines[0][0]["weights"] == lines[0][1]["weights"] != lines[0][2]["weights"]


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_sum_that_overflows_at_the_root_is_judged(world_size):
    """Finite gradients of all replicas whose sum is not: the step ends before it changes anything."""

    def program(transport):
        with unisono.Run(transport=transport, replicas=2) as run:
            model = nn.Linear(1, 1, bias=False)
            with torch.no_grad():
                model.weight.zero_()
            model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
            data = unisono.ArrayDataset(torch.full((2, 1), 2e38), torch.zeros(2))
            for batch in run.steps(run.loader(data, batch_size=2), epochs=1):
                with pytest.raises(NonFiniteError, match="in replica 0, 1 of 2"):
                    run.step(batch, lambda micro: model(micro.x).sum(), reduction="sum")
                return model.weight.item()
        return None

    assert run_threads(program, world_size) == [0.0] * world_size


def test_a_weight_too_large_for_the_loss_is_no_crash():
    """A factor that float32 does not hold makes the gradient infinite, on whichever rank: all stop alike."""
    weight = lambda micro: 1e300 if int(counted(micro)) else 0.0  # noqa: E731
    told = run_threads(lambda t: refused(t, weight), 2)
    assert told[0] == told[1]
    assert "loss or gradient is NaN or infinite in replica 0" in told[0]


def test_the_score_holds_what_is_counted(tmp_path):
    """Known with the first step: another one in a later step, or of a resumed run, is refused; the same goes on."""
    whole = alone(steps=6)
    alone(steps=2, out=tmp_path / "run")
    assert json.loads((tmp_path / "run/score.json").read_text())["objective"] == {"weight": True, "reduction": "mean"}
    for other in ({"weight": None}, {"reduction": "sum"}):
        with pytest.raises(ScoreMismatch, match=r"another weight= or reduction=: objective\."):
            alone(steps=6, out=tmp_path / "run", **other)
    assert alone(steps=6, out=tmp_path / "run")["fingerprint"] == whole["fingerprint"]
    alone(steps=2, out=tmp_path / "usual", weight=None, dataset=tokens(first_is_empty=False))
    assert "objective" not in json.loads((tmp_path / "usual/score.json").read_text())
    with pytest.raises(ScoreMismatch, match=r"objective\.weight: False -> True"):
        alone(steps=6, out=tmp_path / "usual", dataset=tokens(first_is_empty=False))


def test_one_run_counts_one_thing():
    """A loop that changes its mind is refused at that step."""
    with unisono.Run(replicas=2) as run:
        net = Tagger()
        front, _ = run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        loss = lambda micro: front(micro.x).square().mean()  # noqa: E731
        with pytest.raises(ScoreMismatch, match="all steps of a run count the same"):
            for batch in run.steps(run.loader(tokens(), batch_size=BATCH), epochs=1):
                run.step(batch, loss, weight=None if batch.step == 1 else counted)


@pytest.mark.parametrize("chosen", [
    unisono.strategy("pipeline"), unisono.strategy("ps"), unisono.strategy("ps_async"),
    unisono.strategy("exact", island_steps=2), unisono.strategy("allreduce", sync_every=2),
], ids=str)  # fmt: skip
def test_strategies_without_the_whole_sum_refuse(chosen):
    """They say so, with those that have it."""
    for objective in (Objective(len, len), Objective(len, reduction="sum")):
        with pytest.raises(ConfigError, match=f"which strategy {chosen.name} does not have with these options. Hint"):
            check_objective(objective, chosen)
    check_objective(Objective(len), chosen)


def test_a_run_refuses_before_it_computes():
    """In the first step, and a trainer when it is made."""
    islands = unisono.strategy("exact", island_steps=2)
    told = run_threads(lambda t: refused(t, counted, strategy=islands, replicas=2), 1)[0]
    assert "ConfigError: weight= and reduction= need the whole batch's sums" in told
    with unisono.Run(strategy=islands, replicas=2) as run:
        net = Tagger()
        with pytest.raises(ConfigError, match="need the whole batch's sums"):
            unisono.Trainer(run, net, torch.optim.SGD(net.parameters(), lr=0.1), loss=F.mse_loss, weight=counted)


@pytest.mark.parametrize("chosen", [
    "ddp", "allreduce", "fsdp", "model_parallel", unisono.strategy("dp", devices=2),
    unisono.strategy("allreduce", predivide=2.0),
], ids=str)  # fmt: skip
def test_strategies_with_the_whole_batch_count_too(chosen):
    """In a world of one: the gradient of one big batch, with a replica that counts nothing."""
    loss, grads = one_batch(lambda x, _: torch.ones(x.shape[:2]))
    for reduction in ("mean", "sum"):
        found = alone(strategy=chosen, model=PLAIN, reduction=reduction, steps=2)
        assert math.isclose(float.fromhex(found["losses"][0]), loss, rel_tol=1e-6)
        assert chosen == "fsdp" or far(found["grads"], grads) < 1e-6
        if chosen == "fsdp":
            assert found["fingerprint"] == alone(model=PLAIN, reduction=reduction, steps=2)["fingerprint"]


def test_ddp_without_silence_would_be_seen(monkeypatch):
    """Negative control: DDP waits for the pass of a mean over nothing, in whose gradient 0 is divided by 0."""

    def loss_of(model, _):
        each = lambda m: F.cross_entropy(model(m.x), m.y.flatten().clamp(min=0), reduction="none")  # noqa: E731
        return lambda m: (each(m) * (m.y != IGNORED).flatten()).sum() / counted(m)

    _, grads = one_batch(lambda x, _: torch.ones(x.shape[:2]))
    assert far(alone(strategy="ddp", model=PLAIN, steps=1, loss=loss_of)["grads"], grads) < 1e-6
    monkeypatch.setattr(DDP, "silenced", lambda _: contextlib.nullcontext())
    with pytest.raises(NonFiniteError):
        alone(strategy="ddp", model=PLAIN, steps=1, loss=loss_of)


def test_a_step_that_is_begun_again_has_the_same_bits():
    """Interrupted when the sum has been multiplied already, as live recovery does it: nothing is counted twice."""
    with unisono.Run(replicas=REPLICAS) as run:
        net = Tagger(dropout=0.2, norm=True)
        run.prepare(net, torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9))
        batch = next(run.steps(run.loader(tokens(), batch_size=BATCH, shuffle=False), epochs=1))
        strategy, micros = run._prepared().strategy, list(batch.micros)
        finish, strategy._sum.finish_step = strategy._sum.finish_step, lambda *_, **__: 1 / 0
        objective = Objective(weight_programs.loss_of(net, "mean"), counted)
        with pytest.raises(ZeroDivisionError):
            strategy.compute_gradients(1, iter(micros), BATCH, objective)
        strategy._sum.finish_step = finish
        strategy.begin_again(is_within=True)
        strategy.compute_gradients(1, iter(micros), BATCH, objective)
        grads = [parameter.grad.flatten().tolist() for parameter in net.parameters()]
    assert grads == alone(steps=1)["grads"]


@pytest.mark.slow
def test_over_processes():
    """Shared memory and gloo, overlap and fsdp: the bits of one process; ddp and all-reduce up to rounding."""
    (expected,) = run_threads(train, 1)
    loss, grads = one_batch(lambda x, _: torch.ones(x.shape[:2]))
    for report in run_forked(weight_programs.over_processes, 3):
        assert report["exact"] == expected["fingerprint"]
        assert report["loss"] == expected["losses"]
        assert report["overlap auto"] == report["overlap gloo"] == expected["fingerprint"]
        assert report["fsdp"][2] == report["plain"] == alone(model=PLAIN)["fingerprint"]
        for name in ("ddp", "allreduce"):
            assert math.isclose(float.fromhex(report[name][0][0]), loss, rel_tol=1e-6)
            assert far(report[name][1], grads) < 1e-6


def test_a_replicated_strategy_that_forgot_the_factor_would_be_seen(monkeypatch):
    """Negative control: without the factor at the root the gradient is that of another mean."""
    _, grads = one_batch(lambda x, _: torch.ones(x.shape[:2]))
    monkeypatch.setattr("unisono.strategies.replicated.scale", lambda *_: None)
    assert far(alone(strategy="allreduce", model=PLAIN, steps=1)["grads"], grads) > 0.05


def test_a_step_error_says_where():
    """What a weight function does wrong is told with step and replica."""
    with pytest.raises(StepError) as caught:
        alone(weight=lambda _: None)
    assert any("in step 1, replica 0 of 5" in note for note in caught.value.__notes__)
