"""Several models and optimizers in one run: the bits of a plain loop, on any number of ranks, wherever it is left."""

import json
import re
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import unisono
from cases import some_are_slow
from ranks import run_processes, run_threads
from train import several_programs
from train.several_programs import CASES, Gan, Teacher, play, play_and_die, play_plainly, tensors
from unisono.checkpoint import store
from unisono.determinism.switches import checksums
from unisono.errors import NonFiniteError, StepError
from unisono.strategies import exact
from unisono.strategies.objective import Objective
from unisono.strategies.parts import leaf_sum

SMALL = [name for name in CASES if name != "large"]


@pytest.fixture
def made(monkeypatch):
    """Return a function that plays a case, by name or class, on one rank, and returns it with what it has learned."""

    def play_one(case, **settings):
        kept = []

        class Kept(CASES.get(case, case)):
            def __init__(self):
                super().__init__()
                kept.append(self)

        monkeypatch.setitem(CASES, "kept", Kept)
        run_threads(lambda transport: play(transport, "kept", **settings), 1)
        return kept[0]

    return play_one


@pytest.mark.parametrize("name", some_are_slow(SMALL, 1))
def test_any_number_of_ranks_has_the_same_bits(name, tmp_path):
    """One, two and three ranks: one fingerprint, one ledger."""
    found = set()
    for ranks in (1, 2, 3):
        out = tmp_path / str(ranks)
        fingerprints = run_threads(lambda transport, out=out: play(transport, name, str(out), epochs=1), ranks)
        found |= {(fingerprint, (out / "ledger.jsonl").read_text()) for fingerprint in fingerprints}
    assert len(found) == 1


@pytest.mark.parametrize("name", CASES)
def test_a_plain_loop_has_the_same_bits(name, made):
    """With one replica every weight, buffer and average is that of a loop of plain PyTorch, to the last bit."""
    assert tensors(made(name, replicas=1)) == play_plainly(name)


def test_equal_generators_in_two_updates_would_be_seen(made, monkeypatch):
    """The control: with the first update's keys in the second one the bits are others."""
    monkeypatch.setattr(Objective, "key", lambda _, *place: place)
    assert tensors(made("gan", replicas=1)) != play_plainly("gan")


class Repaint(Gan):
    """A game without chance and without batch statistics: G changes what it is given."""

    def __init__(self):
        super().__init__()
        G, D = (nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, width)) for width in (12, 1))
        self.models = {"G": G, "D": D}
        self.optimizers = {"G": torch.optim.Adam(G.parameters(), 1e-2), "D": torch.optim.SGD(D.parameters(), 5e-2)}
        self.schedulers = {}

    def fake(self, micro):
        return self.models["G"](micro.x)


def test_replicas_change_only_the_rounding(made):
    """Four replicas come to the weights of one, as nearly as sums of float32 in another order do."""
    one, four = (made(Repaint, replicas=replicas) for replicas in (1, 4))
    for name, value in nn.ModuleDict(one.models).state_dict().items():
        torch.testing.assert_close(nn.ModuleDict(four.models).state_dict()[name], value, rtol=1e-3, atol=1e-5)
    assert tensors(one) != tensors(four)


class Checkpointed(Gan):
    """The discriminator is computed again in the backward pass, the old way."""

    def __init__(self):
        super().__init__()
        inner = self.models["D"]
        self.models["D"] = Again(inner)


class Again(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x if x.requires_grad else x.clone().requires_grad_(), use_reentrant=True)


def test_reentrant_checkpointing_loses_no_gradient(made, monkeypatch):
    """Every parameter of both has a gradient, and the bits are those of a plain loop."""
    case = made(Checkpointed, replicas=1)
    assert all(p.grad is not None for model in case.models.values() for p in model.parameters())
    monkeypatch.setitem(CASES, "again", Checkpointed)
    assert tensors(case) == play_plainly("again")


def gradients(model):
    return checksums({name: p.grad for name, p in model.named_parameters() if p.grad is not None})


def left_alone(transport):
    """Return whether the gradients of D are the same before and after an update of G, in every step."""
    with unisono.Run(replicas=2, transport=transport) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers)
        same = []
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            run.step(batch, case.d_loss, update="D")
            before = gradients(case.models["D"])
            run.step(batch, case.g_loss, update="G")
            same.append(len(before) == 6 and gradients(case.models["D"]) == before)
    return all(same)


def test_gradients_of_others_are_left_alone(monkeypatch):
    """They are the same before and after another's update; memory that updates share (the control) would be seen."""
    assert run_threads(left_alone, 2) == [True, True]

    made, LeafSum = [], exact.LeafSum
    monkeypatch.setattr(exact, "LeafSum", lambda *args: made[0] if made else made.append(LeafSum(*args)) or made[0])
    assert run_threads(left_alone, 1) == [False]


def test_each_optimizer_is_laid_out_once(monkeypatch):
    """Alternating updates lay nothing out anew: one plan for each name, however many steps."""
    made, Layout = [], leaf_sum.Layout
    monkeypatch.setattr(leaf_sum, "Layout", lambda *args, **more: made.append(1) or Layout(*args, **more))
    run_threads(lambda transport: play(transport, "wgan"), 1)
    assert len(made) == 2


def test_what_the_program_has_frozen_stays_so():
    """Parameters learn again after an update, also where it has failed; those that the program froze do not."""
    with unisono.Run(replicas=1) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers)
        first = case.models["D"][0]
        flags = lambda: [p.requires_grad for model in case.models.values() for p in model.parameters()]  # noqa: E731
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            first.weight.requires_grad_(False)
            expected, weight = flags(), first.weight.clone()

            def loss(micro, expected=expected):
                assert [p.requires_grad for p in case.models["G"].parameters()] == [False] * 6
                assert flags()[6:] == expected[6:]
                return case.d_loss(micro)

            run.step(batch, loss, update="D")
            assert flags() == expected
            assert torch.equal(first.weight, weight)
            with pytest.raises(ZeroDivisionError):
                run.step(batch, lambda _: 1 / 0, update="G")
            assert flags() == expected
            with pytest.raises(StepError, match="an update of this batch has failed"):
                run.step(batch, case.g_loss, update="G")
            break


def leave(transport, out, how, step=4):
    """Play until within a step, and leave: by an exception, by break, or by the run's own stop, after all updates."""
    with unisono.Run(seed=3, replicas=4, out=out, transport=transport, checkpoint_every=3) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers, case.schedulers, clip_norm=case.clip_norm)
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=2):
            run.step(batch, case.d_loss, update="D")
            if batch.step == step and how != "stop":
                if how == "exception":
                    raise ZeroDivisionError
                if how == "too early":
                    run.stop("enough")
                break
            run.step(batch, case.g_loss, update="G")
            if batch.step == step:
                run.stop("enough")
                break


@pytest.mark.parametrize("how", ["exception", "break"])
def test_a_batch_left_half_done_is_done_again(how, tmp_path, capsys):
    """Left between two updates, nothing of the step is kept, and that is said; the resumed run is the calm one."""
    calm = run_threads(lambda transport: play(transport, "gan", str(tmp_path / "calm")), 1)[0]
    out = tmp_path / how
    if how == "break":
        run_threads(leave, 2, str(out), how)
    else:
        with pytest.raises(ZeroDivisionError):
            run_threads(leave, 2, str(out), how)
    said = "keeps nothing of step 4, within which the loop was left: .* goes on after step 3"
    assert len(re.findall(said, capsys.readouterr().err)) == 1
    assert not (out / "result.json").exists()
    assert run_threads(lambda transport: play(transport, "gan", str(out), checkpoint_every=3), 3) == [calm] * 3
    assert (out / "ledger.jsonl").read_text() == (tmp_path / "calm" / "ledger.jsonl").read_text()


@pytest.mark.slow
def test_a_stopped_run_keeps_the_batch(tmp_path, capsys):
    """`run.stop` says that the batch is done: leaving the loop then keeps it. Said between two updates, it would be
    seen in the bits (the control).
    """
    calm = run_threads(lambda transport: play(transport, "gan"), 1)[0]
    run_threads(leave, 2, str(tmp_path), "stop")
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 4
    assert "keeps nothing" not in capsys.readouterr().err
    assert run_threads(lambda transport: play(transport, "gan", str(tmp_path), checkpoint_every=3), 1) == [calm]
    run_threads(leave, 1, str(tmp_path / "early"), "too early")
    assert run_threads(lambda transport: play(transport, "gan", str(tmp_path / "early"), checkpoint_every=3), 1) != [
        calm
    ]


def test_a_run_left_within_a_step_does_not_go_on():
    """Its weights are those of no step: a second loop is refused, with the way out."""
    with unisono.Run(replicas=1) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers)
        loader = run.loader(several_programs.data(), batch_size=24)
        for batch in run.steps(loader, epochs=1):
            run.step(batch, case.d_loss, update="D")
            break
        with pytest.raises(StepError, match=r"left within step 1.*a new Run goes on"):
            next(run.steps(loader, epochs=1))


def test_a_batch_has_one_line_with_its_updates(tmp_path):
    """Name, loss, gradient, weights and rate of each; above them the first's weights, the last's loss, the sum."""
    run_threads(lambda transport: play(transport, "gan", str(tmp_path)), 2)
    lines = [json.loads(line) for line in (tmp_path / "ledger.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    for line in lines:
        first, last = line["updates"]
        assert (first["name"], last["name"]) == ("D", "G")
        assert (line["weights"], line["loss"], line["lr"]) == (first["weights"], last["loss"], last["lr"])
        assert int(line["gradient"], 16) == (int(first["gradient"], 16) + int(last["gradient"], 16)) % 2**64
        assert first["weights"] != last["weights"]
    assert [float.fromhex(line["updates"][1]["lr"]) for line in lines[:3]] == pytest.approx([2e-2, 1.8e-2, 1.62e-2])
    assert {float.fromhex(line["updates"][0]["lr"]) for line in lines} == {5e-2}
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["steps"], result["totals"]["steps"], result["totals"]["samples"]) == (6, 6, 140)


def test_checkpoints_hold_optimizers_and_schedules_by_name(tmp_path):
    """Moments under the names of parameters, groups and schedules under those of their optimizers; weights once."""
    run_threads(lambda transport: play(transport, "gan", str(tmp_path / "gan")), 1)
    (_, newest), *_ = store.list_steps(tmp_path / "gan" / "checkpoints")
    _, state = store.read(newest)
    assert state.values["optimizers"].keys() == {"G", "D"}
    assert state.values["schedulers"]["G"]["last_epoch"] == 6
    assert {"G.0.weight/exp_avg", "D.0.weight/momentum_buffer"} <= state.tensors["optimizer"].keys()
    assert not {"optimizer", "scheduler"} & state.values.keys()
    run_threads(lambda transport: play(transport, "actor-critic", str(tmp_path / "ac")), 1)
    (_, newest), *_ = store.list_steps(tmp_path / "ac" / "checkpoints")
    assert store.read(newest)[1].values["tied"] == {
        f"critic.trunk.0.{name}": f"actor.trunk.0.{name}" for name in ("bias", "weight")
    }


def test_a_bad_update_is_skipped_alone(tmp_path):
    """Only the optimizer whose gradient is not finite stays as it is; too many of one in a row end the run."""

    def train(transport, bad, epochs, out=None):
        with unisono.Run(replicas=2, non_finite="skip", transport=transport, out=out) as run:
            case = Gan()
            run.prepare(case.models, case.optimizers, case.schedulers)
            for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=epochs):
                before = [checksums(dict(model.named_parameters())) for model in case.models.values()]
                run.step(batch, case.d_loss, update="D")
                run.step(batch, lambda m: case.g_loss(m) * (torch.nan if batch.step in bad else 1), update="G")  # noqa: B023
                after = [checksums(dict(model.named_parameters())) for model in case.models.values()]
                assert [one != other for one, other in zip(before, after, strict=True)] == [batch.step not in bad, True]
            return run.non_finite.num_skipped

    assert run_threads(train, 2, [2], 2, str(tmp_path)) == [1, 1]
    line = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[1])
    assert [update["gradient"] == "skipped" for update in line["updates"]] == [False, True]
    assert line["gradient"] == line["updates"][0]["gradient"]
    with pytest.raises(
        NonFiniteError, match=r"step 11, update 'G': .* weights are those before this update.*11th such"
    ):
        run_threads(train, 1, range(1, 30), 10)


def test_a_micro_batch_changed_in_place_is_refused():
    """The next update of the batch would see it: the replica and the way out are named."""
    with unisono.Run(replicas=2) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers)
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            run.step(batch, lambda micro: (micro.x.mul_(2), case.d_loss(micro))[1], update="D")
            with pytest.raises(
                StepError, match=r"replica 0 was changed in place, and update 2 .*Hint: x = micro\.x \* 2"
            ):
                run.step(batch, case.g_loss, update="G")
            break


def test_names_of_updates():
    """An update that there is not, none where there are several, and one where there is none are refused."""
    with unisono.Run(replicas=1) as run:
        case = Gan()
        nets, optimizers = run.prepare(case.models, case.optimizers)
        assert (nets, optimizers) == (case.models, case.optimizers)
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            for name in ("C", None):
                with pytest.raises(StepError, match=rf"update= as one of \['D', 'G'\], got {name!r}"):
                    run.step(batch, case.d_loss, update=name)
            break
    with unisono.Run(replicas=1) as run:
        model = nn.Linear(12, 1)
        run.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            with pytest.raises(StepError, match="expected no update=, got 'D': the run has one optimizer"):
                run.step(batch, lambda micro: model(micro.x).mean(), update="D")
            break


def test_a_loss_of_another_model_is_refused():
    """One that does not depend on what the named optimizer trains: the message says whose."""
    with unisono.Run(replicas=1) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers)
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            with pytest.raises(StepError, match=r"on no trainable parameter of the optimizer 'G'\. Hint"):
                run.step(batch, case.d_loss, update="G")
            break


def test_a_batch_without_an_update_is_refused():
    """As in any run: a loop that forgets a batch ends."""
    with unisono.Run(replicas=1) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers)
        loader = run.loader(several_programs.data(), batch_size=24)
        with pytest.raises(StepError, match="the batch of step 1 was not passed"):
            for _ in run.steps(loader, epochs=1):
                pass


def test_a_teacher_may_be_in_evaluation_mode():
    """Models that an update only uses may be in evaluation mode; of those that it trains that is said."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_threads(lambda transport: play(transport, "teacher"), 1)
    case = Teacher()
    with unisono.Run(replicas=1) as run:
        run.prepare(case.models, case.optimizers)
        case.models["student"].eval()
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1, max_steps=1):
            with pytest.warns(UserWarning, match="trained in evaluation mode"):
                run.step(batch, case.loss, update="student")


def test_metrics_of_a_batch_belong_to_its_checkpoint(tmp_path):
    """What the loop records after the updates of a batch is told by the checkpoint of that step."""
    with unisono.Run(replicas=1, out=tmp_path, checkpoint_every=1) as run:
        case = Gan()
        run.prepare(case.models, case.optimizers, case.schedulers)
        for batch in run.steps(run.loader(several_programs.data(), batch_size=24), epochs=1):
            loss = run.step(batch, case.d_loss, update="D")
            run.record({"loss": loss})
    (step, newest), *_ = store.list_steps(tmp_path / "checkpoints")
    assert (step, store.verify(newest).facts.metrics) == (3, {"loss": loss})


@pytest.mark.slow
def test_killed_between_two_updates(tmp_path):
    """Of two processes one dies by SIGKILL before G's update of step 4: another launch goes on, or the other process
    does, to the weights and the ledger of one process left alone.
    """
    calm = run_threads(lambda transport: play(transport, "large", str(tmp_path / "calm")), 1)
    with pytest.raises(unisono.WorkerFailed, match="SIGKILL"):
        unisono.launch(play_and_die, None, str(tmp_path / "killed"), "large", (4, 1), workers=2, threads=1)
    assert json.loads((tmp_path / "killed" / "ledger.jsonl").read_text().splitlines()[-1])["step"] <= 3
    assert run_processes(play_and_die, 2, str(tmp_path / "killed"), "large", None) == calm * 2
    unisono.launch(play_and_die, None, str(tmp_path / "live"), "large", (4, 1), workers=2, threads=1, live="auto")
    assert json.loads((tmp_path / "live" / "result.json").read_text())["deaths"] == 1
    ledgers = {(tmp_path / name / "ledger.jsonl").read_text() for name in ("calm", "killed", "live")}
    assert len(ledgers) == 1
