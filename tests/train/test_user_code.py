"""The user's own code around the step: what it draws, breaks off, keeps and gets wrong."""

import contextlib
import copy
import json
import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from cases import some_are_slow
from train.conftest import Killed, build_batch_norm, die
from unisono.checkpoint.saver import Saver
from unisono.checkpoint.snapshot import Snapshot
from unisono.collectives.loopback import run_ranks
from unisono.determinism.switches import address_of
from unisono.train.run_directory.run_progress import RunProgress


def draws():
    return [torch.rand(1).item(), random.random(), float(np.random.rand())]


def train_with_draws(toy, transport=None, *, out=None, stop_after=None):
    """Train with noise on the weights that is drawn in the loop's body, before and after the step and an evaluation."""
    settings = {"transport": transport} if transport else {}
    with toy.run(out=out, **settings) as (run, model, _):
        drawn = []
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            drawn.append(draws())
            run.step(batch, lambda micro: F.cross_entropy(F.dropout(model(micro.x), 0.1), micro.y))
            drawn.append(draws())
            if batch.step == 3:
                run.evaluate(
                    toy.data, lambda m: (F.dropout(model(m.x)[:, 0]), m.y), {"mean": unisono.Mean()}, batch_size=9
                )
                drawn.append(draws())
            with torch.no_grad():
                model[0].weight.add_(torch.randn_like(model[0].weight), alpha=0.01)
            if batch.step == stop_after:
                break
        return run.fingerprint(), drawn


def test_what_the_loop_draws_depends_on_the_step_alone(toy, tmp_path):
    """Noise drawn in the loop's body is the same on 1, 2 and 3 ranks and after a resume; no two draws are equal."""
    alone, drawn = train_with_draws(toy)
    assert len({str(draw) for draw in drawn}) == len(drawn) == 11
    for ranks in (2, 3):
        assert run_ranks(lambda transport: train_with_draws(toy, transport), ranks) == [(alone, drawn)] * ranks
    train_with_draws(toy, out=tmp_path, stop_after=2)
    assert train_with_draws(toy, out=tmp_path) == (alone, drawn[4:])


def test_a_batch_has_no_samples(toy):
    """Who looks for them in the loop is told where they are."""
    with toy.run() as (run, _, _):
        batch = next(iter(run.steps(run.loader(toy.data, batch_size=12), epochs=1)))
        with pytest.raises(AttributeError, match=r"no 'x'.*in micro-batches, which.*Hint: run.step\(batch, lambda"):
            batch.x  # noqa: B018
        for use in (lambda: dict(zip("xy", batch, strict=True)), lambda: [*batch], lambda: batch[0]):
            with pytest.raises(TypeError, match=r"no pair of inputs and targets.*Hint: run.step\(.*y = micro"):
                use()
        with pytest.raises(TypeError, match=r"has no length.*len\(batch.indices\)"):
            len(batch)
        assert batch and "indices=array(" in repr(batch)
        assert copy.copy(batch).indices is batch.indices


def build_large():
    """Return a model whose weights a checkpoint shares with the training until they are copied: 512 KB."""
    return nn.Sequential(nn.Linear(6, 1 << 14), nn.Tanh(), nn.Linear(1 << 14, 4))


CHANGES = {  # of the weights, by the loop's body before a step
    "data": lambda model: model[0].weight.data.mul_(0.9),
    "no_grad": lambda model: [parameter.detach().clamp_(-0.1, 0.1) for parameter in model.parameters()],
    "numpy": lambda model: np.multiply(array := model[2].weight.detach().numpy(), 0.9, out=array),
    "replaced": lambda model: setattr(model[2].weight, "data", model[2].weight.data * 1.5),
    "nothing": lambda model: None,
}


def copy_late(monkeypatch):
    """Let snapshots be copied only when the training waits for them: as late as can be."""
    make, copied, release, wait = Snapshot.__init__, Snapshot.copied, Snapshot.release, Saver.wait
    wanted = {}

    def making(held, *given):
        wanted[held] = threading.Event()
        make(held, *given)

    def copying(held):
        assert wanted[held].wait(60)
        return copied(held)

    def releasing(held):
        wanted[held].set()
        release(held)

    def waiting(saver):
        for event in wanted.values():
            event.set()
        wait(saver)

    for owner, name, act in (
        (Snapshot, "__init__", making), (Snapshot, "copied", copying), (Snapshot, "release", releasing),
        (Saver, "wait", waiting),
    ):  # fmt: skip
        monkeypatch.setattr(owner, name, act)


def train_changing(toy, change, *, out=None, stop_after=None):
    """Train, changing weights before every step, and return the fingerprint and where the weights lay at each step."""
    with toy.run(build=build_large, out=out, checkpoint_every=1) as (run, model, _):
        places = []
        for batch in run.steps(run.loader(toy.data, batch_size=28), epochs=3):
            change(model)
            if stop_after is not None and batch.step > stop_after:
                with contextlib.suppress(Killed):
                    run.step(batch, die)
                break
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            places.append(address_of(model[0].weight))
        return run.fingerprint(), places


@pytest.mark.parametrize("change", some_are_slow(CHANGES.values(), 2), ids=CHANGES)
def test_weights_that_the_loop_changes_beside_a_checkpoint(toy, tmp_path, monkeypatch, change):
    """A checkpoint holds the step's end, though it is copied after the loop's body has changed the weights again."""
    alone, _ = train_changing(toy, change)
    copy_late(monkeypatch)
    train_changing(toy, change, out=tmp_path, stop_after=3)
    assert train_changing(toy, change, out=tmp_path)[0] == alone


def test_a_late_copy_of_live_weights_is_another_state(toy, tmp_path, monkeypatch):
    """The control: without copy-on-write, the same late copy resumes to other bits."""
    alone, _ = train_changing(toy, CHANGES["data"])
    copy_late(monkeypatch)
    monkeypatch.setattr(
        "unisono.checkpoint.snapshot.shared", lambda live: live.detach() if live.nbytes > 9999 else None
    )
    train_changing(toy, CHANGES["data"], out=tmp_path, stop_after=3)
    assert train_changing(toy, CHANGES["data"], out=tmp_path)[0] != alone


@pytest.mark.parametrize("waits", [True, False])
def test_the_update_waits_for_the_copy(toy, tmp_path, monkeypatch, waits):
    """No weight has to move to new memory, however late the copy is made; without the wait before the update all do."""
    copy_late(monkeypatch)
    if not waits:
        monkeypatch.setattr(RunProgress, "before_update", lambda progress: None)
    _, places = train_changing(toy, CHANGES["nothing"], out=tmp_path)
    assert (len(set(places)) == 1) == waits


def test_what_a_model_draws_in_evaluation(toy):
    """A model that is random in evaluation gives the same metrics on any number of ranks."""

    def program(transport=None):
        with toy.run(**({"transport": transport} if transport else {})) as (run, _, _):
            return run.evaluate(
                toy.data, lambda micro: (torch.rand(len(micro.x)), micro.y), {"mean": unisono.Mean()}, batch_size=5
            )

    assert run_ranks(program, 3) == [program()] * 3


def test_a_loop_left_early_keeps_its_work(toy, tmp_path):
    """``break`` saves the last step and a result that says it is not finished; the next run goes on from there."""
    whole, _ = toy.train()
    with toy.run(out=tmp_path) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            if batch.step == 7:
                break
        assert run.result()["finished"] is False
    assert json.loads((tmp_path / "result.json").read_text())["steps"] == 7
    assert toy.train(out=tmp_path) == (whole, [8, 9, 10])
    assert json.loads((tmp_path / "result.json").read_text())["finished"] is True


def test_max_steps(toy, tmp_path):
    """A run can be stopped after some steps, also in the middle of an epoch, and goes on later with the same bits."""
    whole, _ = toy.train()
    with toy.run(out=tmp_path) as (run, model, _):
        loader = run.loader(toy.data, batch_size=12)
        for batch in run.steps(loader, epochs=2, max_steps=3):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        assert (run.result()["steps"], run.result()["finished"]) == (3, True)
    assert toy.train(out=tmp_path) == (whole, [4, 5, 6, 7, 8, 9, 10])


def test_a_complete_run_says_so(toy, tmp_path, capsys):
    """Started again, a complete run says that nothing is left to train, and how to go on."""
    whole, _ = toy.train(out=tmp_path)
    assert capsys.readouterr().err == ""
    assert toy.train(out=tmp_path) == (whole, [])
    said = capsys.readouterr().err
    assert said.startswith(f"unisono: {tmp_path} is complete: step 10 of 10 is done")
    assert said.count("\n") == 1


def test_registered_parts_are_restored(toy, tmp_path):
    """A scheduler stepped by hand at the end of each epoch: killed in between, the run ends with the same bits."""

    def train(out=None, stop_after=None):
        with toy.run(out=out, checkpoint_every=2) as (run, model, optimizer):
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
            run.register("scheduler", scheduler)
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=3):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                if batch.step % 5 == 0:
                    scheduler.step()
                if batch.step == stop_after:
                    break
            return run.fingerprint(), scheduler.last_epoch

    whole = train()
    train(tmp_path, 7)
    assert train(tmp_path) == whole
    assert whole[1] == 3
    with toy.run(out=tmp_path) as (run, _, _), pytest.raises(unisono.ConfigError, match=r"parts \['scheduler'\], this"):
        next(run.steps(run.loader(toy.data, batch_size=12), epochs=4))


def test_a_registered_dictionary_is_filled_in_place(toy, tmp_path):
    """What the program holds of it stays its own; a loss that reads it has the same bits after a kill."""

    def train(out=None, stop_after=None):
        with toy.run(out=out, checkpoint_every=2) as (run, model, _):
            seen, mean, table = [0.0], torch.zeros(2), np.zeros(2)
            state = {"n": 0, "ema": 0.0, "deep": {"seen": seen}, "mean": mean, "table": table, "gone": 1}
            run.register("state", state)
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                loss = run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y) * (1 + state["ema"]))
                state["n"] += 1
                state["ema"] = 0.9 * state["ema"] + 0.1 * loss
                state.pop("gone", None)
                state["late"] = batch.step
                seen.append(loss)
                mean += loss
                table += loss
                if batch.step == stop_after:
                    break
            assert state["deep"]["seen"] is seen and state["mean"] is mean and state["table"] is table
            return run.fingerprint(), repr(state)

    whole = train()
    train(tmp_path, 7)
    assert train(tmp_path) == whole
    assert "'n': 10" in whole[1] and "gone" not in whole[1]


def test_register_refuses(toy):
    """A name taken twice, an object without a state, and a call that comes too late."""
    with toy.run() as (run, _, optimizer):
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        run.register("it", scheduler)
        with pytest.raises(unisono.ConfigError, match="'it', which is registered already"):
            run.register("it", scheduler)
        with pytest.raises(unisono.ConfigError, match="for 'number', got int"):
            run.register("number", 3)
        with pytest.raises(
            unisono.ConfigError, match=r"cannot save registered part 'state'\.teacher: .* got Linear\. Hint"
        ):
            run.register("state", {"teacher": torch.nn.Linear(1, 1)})
        next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(unisono.ConfigError, match=r"before run\.steps"):
            run.register("late", scheduler)


def test_foreign_steps_are_refused(toy):
    """optimizer.step() outside run.step() stops the run; weights are as they were."""
    with toy.run() as (run, model, optimizer):
        before = run.fingerprint()
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            F.cross_entropy(model(toy.x), toy.y).backward()
            with pytest.raises(unisono.StepError, match=r"outside run\.step"):
                optimizer.step()
            assert run.fingerprint() == before
            optimizer.zero_grad()
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            break


def test_threads_are_those_of_the_launcher(toy, monkeypatch, tmp_path):
    """Unset, the number of threads is the launcher's, then that of the run which is resumed; a given one wins."""
    try:
        for asked, expected in (("2", 2), ("junk", 1), ("", 1), (None, 1)):
            if asked is None:
                monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            else:
                monkeypatch.setenv("OMP_NUM_THREADS", asked)
            with toy.run() as (run, _, _):
                assert (run.threads, torch.get_num_threads()) == (expected, expected), asked
        toy.train(threads=2, out=tmp_path)
        with unisono.Run(out=tmp_path) as run:
            assert (run.threads, torch.get_num_threads()) == (2, 2)
        with pytest.raises(unisono.EnvironmentDrift, match="threads: 2 -> 1"):
            toy.train(threads=1, out=tmp_path)
    finally:
        torch.set_num_threads(1)


def test_where_a_model_failed(toy):
    """The user's own error keeps its type and says step, replica and size of the micro-batch; once."""
    with toy.run() as (run, _, _):
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(KeyError) as caught:
            run.step(batch, lambda micro: {}["loss"])
        assert caught.value.__notes__ == [
            "in step 1, replica 0 of 4, a micro-batch of 3 samples: x float32 (3, 6), y int64 (3,) from 0 to 1"
        ]


def test_batch_norm_with_one_sample(toy):
    """Torch's refusal of one sample under BatchNorm comes with what to change."""

    def program():
        with toy.run(build=build_batch_norm) as (run, model, _):
            batch = next(run.steps(run.loader(toy.data, batch_size=4), epochs=1))
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))

    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        program()
    assert "last='join') adds its samples to the batch before" in caught.value.__notes__[1]
    assert "fewer replicas" in caught.value.__notes__[1]


def test_a_graph_kept_from_another_micro_batch(toy):
    """Torch's words name retain_graph, which a loss function has no place for; the note says what to write."""
    kept = []

    def loss(micro):
        kept.append(model(micro.x))
        return F.cross_entropy(kept[0], micro.y)

    with toy.run() as (run, model, _):
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        with pytest.raises(RuntimeError, match="backward through the graph a second time") as caught:
            run.step(batch, loss)
    assert "in another micro-batch, update or step: compute it again" in caught.value.__notes__[1]


def test_a_last_sample_alone_and_batch_norm(toy):
    """One sample more than full batches: `short` meets torch's refusal, `join` and `drop` train; the score says so."""
    data = unisono.ArrayDataset(*(array[:25] for array in toy.data.arrays))

    def program(last):
        with toy.run(build=build_batch_norm) as (run, model, _):
            sizes = []
            for batch in run.steps(run.loader(data, batch_size=8, last=last), epochs=2):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                sizes.append(len(batch.indices))
            return sizes, run._progress.score["data"].get("last")

    with pytest.raises(ValueError, match="more than 1 value per channel") as caught:
        program("short")
    assert any(
        note.startswith("in step 4, replica 0 of 4, a micro-batch of 1 sample:") for note in caught.value.__notes__
    )
    assert program("join") == ([8, 8, 9] * 2, "join")
    assert program("drop") == ([8, 8, 8] * 2, "drop")


def test_streams_have_no_last_samples_to_join(toy):
    """Their end is not known before it comes."""
    with (
        toy.run() as (run, _, _),
        pytest.raises(unisono.ConfigError, match=r"shuffle= and last= do not fit it\. Hint"),
    ):
        run.loader(unisono.Stream(range(10)), batch_size=4, last="join")


class Caching(nn.Module):
    """Keeps a mask that it computes in its first forward pass."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.linspace(0, 1, 4)
        return self.linear(x) * self.mask


@pytest.mark.parametrize("inference_mode", [True, False])
def test_models_that_keep_tensors(toy, inference_mode):
    """Evaluated first, such a model cannot train after inference mode: the way out is named, and works."""
    with toy.run(build=Caching) as (run, model, _):
        run.evaluate(toy.data, lambda m: (model(m.x), m.y), {"a": unisono.Accuracy()}, inference_mode=inference_mode)
        batch = next(run.steps(run.loader(toy.data, batch_size=12), epochs=1))
        if inference_mode:
            with pytest.raises(RuntimeError, match="nference tensor") as caught:
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            assert "inference_mode=False" in caught.value.__notes__[1]
        else:
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


def test_another_loader_is_refused(toy):
    """A torch DataLoader instead of run.loader(), and a loader iterated by itself, are told how it is meant."""
    with toy.run() as (run, _, _):
        with pytest.raises(unisono.ConfigError, match=r"run\.loader"):
            run.steps(torch.utils.data.DataLoader(toy.data), epochs=1)
        with pytest.raises(unisono.ConfigError, match=r"for batch in run\.steps"):
            list(run.loader(toy.data, batch_size=12))
        with pytest.raises(unisono.ConfigError, match=r"expected batch_size as a whole number, got the text '12'"):
            run.loader(toy.data, batch_size="12")
