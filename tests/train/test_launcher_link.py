"""A run tells what it does, and stops between two steps when it is asked to."""

import os
import signal
import sys

import pytest
import torch
from torch.nn import functional as F

import unisono
from unisono.collectives.loopback import run_ranks
from unisono.errors import RunStopped
from unisono.observe import phases
from unisono.report.comparison.run_diff import compare_runs
from unisono.system.heartbeat import JOINED, LEFT_LOOP, QUIET, STOPPED, HeartbeatPage
from unisono.system.machine import usable_cores
from unisono.train.launcher_link import LauncherLink
from unisono.world import World


class Clock:
    """Moves when it is told to."""

    now = 1_000

    def spend(self, nanoseconds):
        self.now += nanoseconds

    def perf_counter_ns(self):
        return self.now

    def time_ns(self):
        return self.now


def play(toy, run, model, at, act):
    """Train and call `act` in the midst of step `at`; returns the last step done."""

    def loss(micro):
        if run._progress.done + 1 == at:
            act()
        return F.cross_entropy(model(micro.x), micro.y)

    for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
        run.step(batch, loss)
    return run._progress.done


USUAL = {
    "term": (signal.SIGTERM, signal.SIG_DFL),
    "int": (signal.SIGINT, signal.default_int_handler),
    "usr1": (signal.SIGUSR1, signal.SIG_DFL),
    "usr1-ignored": (signal.SIGUSR1, signal.SIG_IGN),  # as `unisono join` leaves it
}


@pytest.mark.parametrize(("signum", "handler"), USUAL.values(), ids=USUAL)
def test_a_signal_stops_after_the_step(toy, tmp_path, signum, handler, capfd):
    """The step in progress is finished and saved, the program ends with code 75, and the same call goes on."""
    whole, _ = toy.train(out=tmp_path / "whole")
    before = signal.getsignal(signum)
    signal.signal(signum, handler)
    try:
        usual = signal.getsignal(signum)
        with toy.run(out=tmp_path / "run") as (run, model, _), pytest.raises(RunStopped) as stopped:
            play(toy, run, model, 3, lambda: [os.kill(os.getpid(), signum) for _ in "x" if not run._link._signalled])
        assert signal.getsignal(signum) == usual
    finally:
        signal.signal(signum, before)
    assert (stopped.value.step, stopped.value.code) == (3, 75)
    told = capfd.readouterr().err
    assert "stopping after the step in progress" in told
    assert "stopped after step 3, and saved" in told
    fingerprint, done = toy.train(out=tmp_path / "run")
    assert (fingerprint, done) == (whole, list(range(4, 11)))


@pytest.mark.parametrize(
    ("every", "resumed", "said"),
    [
        (2, 0, "step 2 is saved. The same command goes on."),
        (9, 0, "nothing is saved. The same command begins"),
        (9, 3, "step 3 is saved. The same command goes on."),
    ],
)
def test_a_second_ctrl_c_stops_at_once(toy, tmp_path, every, resumed, said, capfd):
    """Within the step; what is kept is told, that of an earlier launch too, and where the same call goes on."""
    if resumed:
        with toy.run(out=tmp_path, checkpoint_every=every) as (run, model, _), pytest.raises(RunStopped):
            play(toy, run, model, resumed, lambda: setattr(run._link, "_signalled", True))

    def press(micro):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    before, hook = signal.signal(signal.SIGINT, signal.default_int_handler), sys.excepthook
    try:
        with toy.run(out=tmp_path, checkpoint_every=every) as (run, model, _), pytest.raises(KeyboardInterrupt):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                if batch.step == 4 and not resumed:
                    run._progress._checkpoints.settle()  # the save of step 2 has begun, and is known when it is done
                    run._progress._tell_saved()
                run.step(batch, press if batch.step == 4 else lambda micro: F.cross_entropy(model(micro.x), micro.y))
        assert signal.getsignal(signal.SIGINT) == signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
        sys.excepthook = hook
    assert f"unisono: stopped at once; {said}" in capfd.readouterr().err
    fingerprint, done = toy.train(out=tmp_path, checkpoint_every=every)
    assert (fingerprint, done[-1]) == (toy.train()[0], 10)


def test_without_a_directory_signals_act_as_always(toy):
    """Where nothing can be saved, Ctrl-C is Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with toy.run() as (run, model, _), pytest.raises(KeyboardInterrupt):
            play(toy, run, model, 3, lambda: os.kill(os.getpid(), signal.SIGINT))
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_programs_own_handlers_stay(toy, tmp_path):
    """A program that handles SIGTERM itself goes on doing so."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("own"))
    try:
        with toy.run(out=tmp_path) as (run, model, _):
            assert play(toy, run, model, 3, lambda: os.kill(os.getpid(), signal.SIGTERM)) == 10
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "own" in heard


def test_all_ranks_stop_at_one_step(toy, tmp_path):
    """One rank that is asked stops all, at the same step, whoever asks it and whenever in the step."""

    def program(transport):
        with toy.run(out=tmp_path, transport=transport) as (run, model, _):
            try:
                act = (lambda: setattr(run._link, "_signalled", True)) if transport.rank == 2 else lambda: None
                return play(toy, run, model, 4, act)
            except RunStopped as stopped:
                return stopped.step, unisono.World.current().world_size

    steps = run_ranks(program, 4)
    assert steps[0][0] == 4
    assert set(steps) == {steps[0]}


def test_the_last_step_is_no_stop(toy, tmp_path):
    """A run that is asked to stop in its last step simply ends."""
    with toy.run(out=tmp_path) as (run, model, _):
        assert play(toy, run, model, 10, lambda: setattr(run._link, "_signalled", True)) == 10
        assert run.result()["finished"]


def test_what_a_run_tells(toy, tmp_path, monkeypatch):
    """Steps, phases, replica, samples and checkpoints stand on the heartbeat page."""
    page = HeartbeatPage.create(tmp_path / "heartbeat-0")
    monkeypatch.setattr(World, "current", classmethod(lambda cls: cls(heartbeat=str(tmp_path / "heartbeat-0"))))
    seen = []
    with toy.run(out=tmp_path / "run", checkpoint_every=2) as (run, model, _):
        assert page.read().is_joined
        play(toy, run, model, 4, lambda: seen.append(page.read()))
        last = page.read()
    first = seen[0]
    assert (first.step, first.done, first.phase, first.replica, len(first.samples)) == (4, 3, "compute", 0, 3)
    assert [reading.replica for reading in seen] == [0, 1, 2, 3]
    assert sorted(index for reading in seen for index in reading.samples) == sorted(
        run.loader(toy.data, batch_size=12).sampler.batch(4).tolist()
    )
    assert (last.done, last.saved, last.state, last.phase) == (10, 10, JOINED, LEFT_LOOP)
    assert page.read().state == QUIET


def test_a_stopped_run_is_remembered_as_such(tmp_path):
    """The launcher must be able to tell a stop on request from a program that exits with the same code."""
    HeartbeatPage.create(tmp_path / "b")
    watch = LauncherLink(World(rank=1, world_size=2, heartbeat=str(tmp_path / "b")), is_process=True)
    watch.stopped(3)
    watch.close()
    watch.close()
    assert HeartbeatPage(tmp_path / "b").read().state == STOPPED


@pytest.mark.filterwarnings("ignore:`clock.now`")
def test_time_goes_to_the_phase_it_was_spent_in(toy, tmp_path, monkeypatch):
    """User code of every phase takes a time of its own, by a clock that only it moves: each is found in its place."""
    clock = Clock()
    monkeypatch.setattr(phases, "time", clock)

    def collate(samples):
        clock.now += 1_000
        return tuple(torch.stack(column) for column in zip(*samples, strict=True))

    def loss(micro):
        clock.now += 20_000
        found = F.cross_entropy(model(micro.x), micro.y)
        found.register_hook(lambda _: clock.spend(300_000))
        return found

    def predict(micro):
        clock.now += 7_000_000_000
        return model(micro.x), micro.y

    class Saved:
        def state_dict(self):
            clock.now += 50_000_000
            return {}

        def load_state_dict(self, state):
            pass

    with toy.run(out=tmp_path, checkpoint_every=2) as (run, model, optimizer):
        run.register("slow", Saved())
        optimizer.register_step_pre_hook(lambda *_: clock.spend(4_000_000))
        loader = run.loader(toy.data, batch_size=12, collate=collate)
        for batch in run.steps(loader, epochs=1, max_steps=3):
            run.step(batch, loss)
            clock.now += 600_000_000
            if batch.step == 3:
                run.evaluate(toy.data, predict, {}, batch_size=56)
    usual = {"data": 4_000, "forward": 80_000, "backward": 1_200_000, "reduce": 0, "update": 4_000_000}
    told = [record.ns for record in phases.read_phases(tmp_path)]
    assert [{name: step[name] for name in usual} for step in told] == [usual] * 3
    assert [step["other"] for step in told] == [600_000_000] * 3
    assert [step["evaluate"] for step in told] == [0, 0, 7_000_000_000]
    assert [step["checkpoint"] // 50_000_000 for step in told] == [1, 1, 1]  # memory for it, then two of them
    assert run.result()["phases_s"]["update"] == [0.012]


def test_every_rank_writes_its_phases_and_the_ledger_knows_no_time(toy, tmp_path):
    """Runs of one score, launched differently, have equal ledgers; there is a record per step, rank and launch."""
    for out in ("a", "b", "b"):
        run_ranks(lambda transport, out=out: toy.train(out=tmp_path / out, transport=transport, epochs=1), 2)
    run_ranks(lambda transport: toy.train(out=tmp_path / "b", transport=transport, epochs=2), 1)
    run_ranks(lambda transport: toy.train(out=tmp_path / "a", transport=transport, epochs=2), 2)
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == (tmp_path / "b" / "ledger.jsonl").read_bytes()
    assert compare_runs(tmp_path / "a", tmp_path / "b").equal
    records = phases.read_phases(tmp_path / "b")
    told = [(record.launch, record.rank, record.step) for record in records]
    first = {(1, rank, step) for rank in (0, 1) for step in range(1, 6)}
    assert set(told) == first | {(3, 0, step) for step in range(6, 11)}
    assert len(told) == 15
    assert {(record.world_size, record.replicas) for record in records} == {(2, 2), (1, 4)}
    place = {(record.local_workers, record.cores, record.reached) for record in records}
    assert place == {(2, usable_cores(), 0), (1, usable_cores(), 5)}
