"""Saving beside the training: the step's end is what is saved, errors surface, ranks share, nothing is called saved.

The threads here are held by events, never by time.
"""

import ctypes
import errno
import json
import threading
import warnings

import pytest
import torch
from torch.nn import functional as F

from unisono.checkpoint import saver, staging, store
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.collectives.loopback import LoopbackTransport, run_ranks
from unisono.determinism.switches import address_of, checksum
from unisono.errors import CheckpointError, UnisonoError
from unisono.system.directory import Directory
from unisono.train.run_directory.checkpoints import Checkpoints

RUN = "r" * 32


def state_of(step, size=1000):
    tensors = {
        "model": {f"w{i}": torch.full((size + i,), float(step)) for i in range(5)},
        "optimizer": {"w0/m": torch.full((size,), float(-step), dtype=torch.float64)},
    }
    return State(tensors=tensors, values={"step": step})


def same(left, right):
    return left.values == right.values and all(
        torch.equal(tensor, right.tensors[stem][name]) for stem, part in left.tensors.items()
        for name, tensor in part.items()
    )  # fmt: skip


def nothing():
    pass


def alone(path, **policy):
    found = Checkpoints(path, LoopbackTransport(), CheckpointPolicy(**policy))
    found.facts = Facts(run=RUN)
    return found


def steps_in(path):
    return [step for step, _ in store.list_steps(path)]


class Held:
    """Holds the writing thread before it writes, until it is let go."""

    def __init__(self):
        self.may_go, self.has_come = threading.Event(), threading.Event()

    def __call__(self):
        self.has_come.set()
        assert self.may_go.wait(60)


def test_the_copy_is_of_the_steps_end(tmp_path):
    """`save` returns before anything is written; what changes afterwards is not in the checkpoint."""
    checkpoints, held, state = alone(tmp_path), Held(), state_of(1)
    checkpoints.before_write = held
    checkpoints.save(1, lambda: state)
    assert held.has_come.wait(60)
    assert steps_in(tmp_path) == []  # not there, and not called saved
    for part in state.tensors.values():
        for tensor in part.values():
            tensor.fill_(7)
    state.values["step"] = 7
    held.may_go.set()
    checkpoints.settle()
    manifest, found = store.read(store.list_steps(tmp_path)[0][1], RUN)
    assert manifest.step == 1
    assert all(torch.equal(found.tensors["model"][n], t) for n, t in state_of(1).tensors["model"].items())
    checkpoints.close()


def test_without_a_background_it_is_there_at_once(tmp_path, monkeypatch):
    """With ``in_background=False``, or where memory is short, `save` returns when the checkpoint is committed."""
    checkpoints = alone(tmp_path, in_background=False)
    checkpoints.save(1, lambda: state_of(1))
    assert steps_in(tmp_path) == [1]
    monkeypatch.setattr("unisono.train.run_directory.checkpoints.is_roomy", lambda needed: False)
    checkpoints = alone(tmp_path)
    checkpoints.save(2, lambda: state_of(2))
    assert steps_in(tmp_path) == [2, 1]


def test_one_in_flight(tmp_path):
    """A save waits for the one before, or is left out where the policy says so; the last one never is."""
    for when_busy, expected in (("wait", [2, 1]), ("skip", [1])):
        directory, held = tmp_path / when_busy, Held()
        checkpoints = alone(directory, when_busy=when_busy)
        checkpoints.before_write = held
        assert checkpoints.save(1, lambda: state_of(1))
        assert held.has_come.wait(60)
        if when_busy == "wait":
            held.may_go.set()
        begun = checkpoints.save(2, lambda: state_of(2), may_skip=True)
        assert begun == (when_busy == "wait")
        held.may_go.set()
        checkpoints.settle()
        assert steps_in(directory) == expected
        assert checkpoints.save(3, lambda: state_of(3))
        checkpoints.settle()
        assert steps_in(directory)[0] == 3


def test_an_error_surfaces_at_the_next_step(tmp_path):
    """A save that fails in its thread is raised by the next `check`, once, and there is no such checkpoint."""

    def fail():
        raise OSError(28, "No space left on device")

    checkpoints = alone(tmp_path)
    checkpoints.save(1, lambda: state_of(1))
    checkpoints.settle()
    checkpoints.before_write = fail
    checkpoints.save(2, lambda: state_of(2))
    checkpoints._saver._thread.join()
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoints.check()
    checkpoints.check()
    checkpoints.settle()
    assert steps_in(tmp_path) == [1]
    assert not list(tmp_path.glob(".*"))
    checkpoints.before_write = nothing
    checkpoints.save(3, lambda: state_of(3))  # and the next one works
    checkpoints.settle()
    assert steps_in(tmp_path) == [3, 1]


def test_an_error_surfaces_at_the_end(tmp_path):
    """What fails after the last step is raised by `close`, or only said where another error is on its way."""

    def fail():
        raise OSError(5, "Input/output error")

    checkpoints = alone(tmp_path)
    checkpoints.before_write = fail
    checkpoints.save(1, lambda: state_of(1))
    with pytest.raises(CheckpointError, match="Input/output error"):
        checkpoints.close()
    checkpoints.before_write = fail
    checkpoints.save(1, lambda: state_of(1))
    with pytest.raises(KeyError, match="mine"), pytest.warns(UserWarning, match="Input/output error"):
        try:
            raise KeyError("mine")
        finally:
            checkpoints.close()
    assert steps_in(tmp_path) == []


def test_a_guard_stops_the_commit(tmp_path):
    """A launch that has been replaced writes nothing that anybody would find."""

    def refuse():
        raise CheckpointError("another launch has taken over")

    checkpoints = alone(tmp_path)
    checkpoints.guard = refuse
    checkpoints.save(1, lambda: state_of(1))
    with pytest.raises(CheckpointError, match="taken over"):
        checkpoints.settle()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_share_the_writing(tmp_path, world_size):
    """A large state is written by all ranks, each its share, and read at any world size."""

    def save(transport):
        checkpoints = Checkpoints(tmp_path, transport, CheckpointPolicy(share_from_bytes=1))
        checkpoints.facts = Facts(run=RUN, fencing_token=4)
        for step in (1, 2, 3):
            checkpoints.save(step, lambda step=step: state_of(step), epoch=step, metrics={"a": step})
        checkpoints.settle()
        checkpoints.close()

    run_ranks(save, world_size)
    assert steps_in(tmp_path) == [3, 2]
    path = store.list_steps(tmp_path)[0][1]
    shards = sorted(file.name for file in path.glob("*.safetensors"))
    assert len([name for name in shards if name.startswith("model")]) == world_size
    assert not list(path.glob("receipt*"))
    manifest, found = store.read(path, RUN)
    assert same(state_of(3), found)
    assert (manifest.facts.epoch, manifest.facts.parent_step, manifest.facts.fencing_token) == (3, 2, 4)
    assert manifest.facts.metrics == {"a": 3}

    def load(transport):
        step, state = Checkpoints(tmp_path, transport, CheckpointPolicy()).load(RUN, path.name, manifest.sha256)
        return step == 3 and same(state_of(3), state)

    assert run_ranks(load, 4) == [True] * 4


def test_a_rank_that_cannot_write_its_share(tmp_path):
    """Where one rank fails, nobody calls it saved: the leader tells all, and the older checkpoint stays."""
    heard = []

    def save(transport):
        checkpoints = Checkpoints(tmp_path, transport, CheckpointPolicy(share_from_bytes=1))
        checkpoints.facts = Facts(run=RUN)
        checkpoints.save(1, lambda: state_of(1))
        checkpoints.settle()
        state = state_of(2)
        if transport.rank == 1:  # after the plan is made, this rank's tensors cannot be written
            checkpoints._staging.put = lambda tensor, _: tensor.to_sparse()
        checkpoints.save(2, lambda: state)
        try:
            checkpoints.settle()
        except UnisonoError as error:
            heard.append(str(error))

    run_ranks(save, 3)
    assert len(heard) == 3
    assert all("has no place in a safetensors file" in text for text in heard)
    assert steps_in(tmp_path) == [1]
    assert not list(tmp_path.glob(".step*"))


@pytest.mark.parametrize(("code", "is_final"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_the_leader_hears_whether_a_restart_may_help(tmp_path, monkeypatch, code, is_final):
    """Another rank's full disk is as final for the leader as for that rank."""

    def fails(*_):
        raise OSError(code, "has failed")

    monkeypatch.setattr(saver, "write_share", fails)
    with Directory.open(tmp_path) as home:
        draft = store.begin(home, 2, 0)
        with pytest.raises(OSError, match="has failed"):
            saver.leave_receipt(draft, 1, {})
        with pytest.raises(CheckpointError, match=r"rank 1 could not write its share of step 2: .*has failed") as heard:
            saver.collect_receipts(draft, range(1, 2), lambda: False)
    assert heard.value.is_final is is_final


def test_a_rank_that_is_gone_is_not_waited_for(tmp_path, monkeypatch):
    """Closing a run whose other ranks have left does not wait for their shares for ever; nothing is committed."""
    monkeypatch.setattr("unisono.checkpoint.saver._GRACE_S", 0.1)
    said = []

    def save(transport):
        checkpoints = Checkpoints(tmp_path, transport, CheckpointPolicy(share_from_bytes=1))
        checkpoints.facts = Facts(run=RUN)
        if transport.rank:
            monkeypatch.setattr(checkpoints._saver, "start", lambda act: None)
        checkpoints.save(1, lambda: state_of(1))
        if not transport.rank:
            with pytest.raises(CheckpointError, match=r"ranks \[1\] have not written their share") as caught:
                checkpoints.close()
            said.append(str(caught.value))

    run_ranks(save, 2)
    assert len(said) == 1
    assert steps_in(tmp_path) == []


def test_alone(tmp_path):
    """The leader saves without the others, all of it, also where they usually share; other ranks write nothing.

    What is dropped is not there.
    """

    def save(transport):
        checkpoints = Checkpoints(tmp_path, transport, CheckpointPolicy(share_from_bytes=1))
        checkpoints.facts = Facts(run=RUN)
        if transport.rank == 0:
            end = checkpoints.save_alone(1, lambda: state_of(1))
            assert steps_in(tmp_path) == []
            end(True)
            checkpoints.save_alone(2, lambda: state_of(2))(False)
        else:
            checkpoints.save_alone(2, lambda: pytest.fail("packed for nobody"))(True)

    run_ranks(save, 3)
    assert steps_in(tmp_path) == [1]
    assert same(state_of(1), store.read(store.list_steps(tmp_path)[0][1])[1])


def large_state(step):
    live = {"w": torch.full((1 << 17,), float(step)), "v": torch.full((1 << 17,), 1.0 + step), "b": torch.ones(3)}
    return live, lambda: State(
        tensors={"model": {name: tensor.detach() for name, tensor in live.items()}}, values={"step": step}
    )


def test_a_copy_that_the_ledger_contradicts_is_dropped(tmp_path):
    """Weights written to by their address beside the copy: it goes, with a warning, and the next is copied at once."""
    checkpoints, (live, state) = alone(tmp_path), large_state(1)
    checkpoints.save(1, state)
    checkpoints.settle()
    held = checkpoints.before_write = Held()
    live, state = large_state(2)
    checkpoints.save(2, state, recorded=lambda: [*live.values()])
    assert held.has_come.wait(60)
    ctypes.memset(address_of(live["v"]), 1, 400)
    checkpoints.begin_step(checksum(live.values()))
    checkpoints.release()
    held.may_go.set()
    with pytest.warns(UserWarning, match="the checkpoint of step 2 is dropped"):
        checkpoints.settle()
    assert steps_in(tmp_path) == [1]
    assert not list(tmp_path.glob(".step*"))
    live, state = large_state(3)
    checkpoints.save(3, state, recorded=lambda: [*live.values()])
    assert not torch._C._is_cow_tensor(live["w"])
    checkpoints.settle()
    manifest, _ = store.read(store.list_steps(tmp_path)[0][1], RUN)
    assert (manifest.step, manifest.facts.parent_step) == (3, 1)


@pytest.mark.parametrize("off", [0, 1])
def test_the_ledgers_word_on_shared_writing(tmp_path, off):
    """Where ranks share the writing, what the ledger says is compared with the sum over their shares."""

    def save(transport):
        checkpoints = Checkpoints(tmp_path, transport, CheckpointPolicy(share_from_bytes=1))
        checkpoints.facts, checkpoints.before_write = Facts(run=RUN), Held()
        live, state = large_state(1)
        checkpoints.save(1, state, recorded=lambda: [*live.values()])
        assert torch._C._is_cow_tensor(live["w"])
        checkpoints.begin_step(checksum(live.values()) + off)
        checkpoints.release()
        checkpoints.before_write.may_go.set()
        checkpoints.settle()
        checkpoints.close()

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        run_ranks(save, 3)
    assert steps_in(tmp_path) == [1][off:]
    assert len([each for each in told if "is dropped" in str(each.message)]) == off


def test_the_best_is_kept(tmp_path):
    """Beside the newest, the one with the best metric stays."""
    checkpoints = alone(tmp_path, keep=1, best="loss", best_mode="min", in_background=False)
    for step, loss in enumerate([5.0, 2.0, 3.0, float("nan"), 4.0], 1):
        checkpoints.save(step, lambda step=step: state_of(step), metrics={"loss": loss})
    assert steps_in(tmp_path) == [5, 2]


def test_another_checkpoint_than_the_leaders(tmp_path):
    """A rank that finds other bytes under the name the leader gave refuses them."""
    checkpoints = alone(tmp_path, in_background=False)
    checkpoints.save(1, lambda: state_of(1))
    with pytest.raises(CheckpointError, match="finds another checkpoint"):
        checkpoints.load(RUN, store.list_steps(tmp_path)[0][1].name, "0" * 64)


def test_memory_is_reserved_beside_the_training(tmp_path, monkeypatch):
    """`reserve` gets the buffer in a thread, and the save uses it; nothing is reserved for a small state."""
    checkpoints = alone(tmp_path)
    checkpoints.reserve(lambda: state_of(1))
    assert checkpoints._saver.is_idle
    monkeypatch.setattr("unisono.train.run_directory.checkpoints._RESERVE_FROM_BYTES", 1)
    checkpoints.reserve(lambda: state_of(1))
    checkpoints.save(1, lambda: state_of(1))
    held = checkpoints._staging.num_bytes
    assert held == staging.bytes_of(state_of(1).tensors)
    checkpoints.close()


def test_a_commit_is_told_at_once(toy, tmp_path):
    """The launcher knows of a checkpoint that is committed within a step, although a kill may come in that step."""
    with toy.run(out=tmp_path, checkpoint_every=2) as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), max_steps=3):
            if batch.step == 3:
                run._record.checkpoints._saver.wait()
                assert run._link._saved == 2
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


def test_the_latest_is_named(tmp_path):
    """LATEST names the newest, for people."""
    checkpoints = alone(tmp_path, in_background=False)
    checkpoints.save(8, lambda: state_of(8))
    assert (tmp_path / "LATEST").read_text().strip() == store.list_steps(tmp_path)[0][1].name
    assert json.loads((tmp_path / (tmp_path / "LATEST").read_text().strip() / "manifest.json").read_text())["step"] == 8


@pytest.mark.parametrize("place", ["prepare", "commit"])
def test_a_loop_left_early_that_cannot_save(toy, tmp_path, monkeypatch, capfd, place):
    """Where the last steps cannot be saved, it is said and raised at the end: no false success."""

    def fail(*_, **__):
        raise CheckpointError("the disk is full")

    with pytest.raises(CheckpointError, match="the disk is full"), toy.run(out=tmp_path / "run") as (run, model, _):
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
            monkeypatch.setattr(f"unisono.checkpoint.store.{place}", fail)
            break
    assert "has lost what came after step 0: the disk is full" in capfd.readouterr().err
    run.close()  # said once
