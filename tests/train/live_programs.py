"""A small training whose ranks kill themselves at chosen places; what the ranks of the live tests run."""

import ctypes
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono import callbacks
from unisono.checkpoint import saver, store
from unisono.collectives import pieces
from unisono.collectives.shm import board as boards
from unisono.observe.ledger import Ledger, Unwritten
from unisono.strategies.exact import Exact
from unisono.strategies.options import ExactOptions
from unisono.system.directory import Directory
from unisono.train import evaluate as evaluation
from unisono.train.run_directory.files import RunFiles
from unisono.train.steps.updates import Update, Updates
from unisono.train.trained_parts import Parts

STEPS, REPLICAS = 10, 8
MEETINGS = 2  # of a step: the sum, the report


SPOTS = {
    "ledger": (Ledger, "_write"),
    "share": (saver, "write_share"),
    "receipt": (saver, "_receipt"),
    "commit": (store, "commit"),
    "rename": (Directory, "rename"),
    "settle": (store, "settle"),
    "result": (RunFiles, "write"),
    "predict": (evaluation, "_pair"),
    "apply": (Update, "apply"),
}
"""What is done outside of meetings, by name."""


class Kills:
    """Kills this process at a place, from a step's beginning until the next one's.

    Args:
        places: Each a step; a meeting from 1, or the name of a spot; and ``before``, ``inside`` (a meeting) or
            ``after``.
        signum: It is sent this.
    """

    def __init__(self, places, signum=signal.SIGKILL):
        self.step, self.meeting, self._signum = 0, 0, signum
        self._places = {tuple(place) for place in places}
        for name in {place[1] for place in self._places} & SPOTS.keys():
            self._watch(name, *SPOTS[name])
        barrier, take = boards.SharedBoard.barrier, boards.take

        def counted(board, note):
            self.meeting += 1
            self._at("before")
            notes = barrier(board, note)
            self._at("after")
            return notes

        def taken(address, look):
            self._at("inside")
            take(address, look)

        boards.SharedBoard.barrier, boards.take = counted, taken
        import live_sockets  # the others that import this file are no ranks

        live_sockets.watch(self)

    def begin(self, step):
        """A step begins; its meetings are counted from 1, also those of a second try."""
        self.step, self.meeting = step, 0
        Kills.now = step

    def _watch(self, name, owner, attribute):
        function = getattr(owner, attribute)

        def watched(*args, **kwargs):
            self._at("before", name)
            done = function(*args, **kwargs)
            self._at("after", name)
            return done

        setattr(owner, attribute, watched)

    def _at(self, when, where=None):
        if any(self._is_at(*place, when, where) for place in self._places):
            self._places.clear()  # one that is stopped may wake up
            os.kill(os.getpid(), self._signum)

    def _is_at(self, step, place, moment, when, where):
        if moment != when:
            return False
        if isinstance(place, str):  # what a thread does beside the steps is done in this one or in a later one
            return place == where and step <= self.step
        return where is None and (step, place) == (self.step, self.meeting)


def model():
    return nn.Sequential(
        nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.2), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 4)
    )


def data(size=72):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(size, 6, generator=generator)
    return torch.utils.data.TensorDataset(inputs, torch.randint(0, 4, (size,), generator=generator))


def _forget_buffers(strategy, *, is_within):
    strategy._sum.forget()


def _keep_a_sum(strategy, *, is_within):
    """Let what the step has added up before count again."""
    sums, start = strategy._sum._sums, strategy._sum.start_step
    strategy._buffers.start_replica()
    strategy._sum.forget()

    def start_step(leaves, step):
        start(leaves, step)
        if sums:
            strategy._sum._sums = [(node, strategy._sum._new_leaf()) for node, _ in sums]
            for (_, new), (_, old) in zip(strategy._sum._sums, sums, strict=True):
                for left, right in zip(new.gradients, old.gradients, strict=True):
                    left.copy_(right)

    strategy._sum.start_step = start_step


def _draw_anew(strategy, *, is_within):
    """Let replicas that are computed again have other random numbers."""
    strategy._buffers.start_replica()
    strategy._sum.forget()
    strategy.context = replace(strategy.context, seed=strategy.context.seed + 1)


def _update_on_one(strategy, *, is_within):
    """Let one survivor's optimizer step before the step is computed again."""
    strategy._buffers.start_replica()
    strategy._sum.forget()
    if os.environ["RANK"] == "1":
        for parameter in strategy.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        strategy.optimizer.step()


def _pool_a_gradient(strategy, *, is_within):
    """Let a buffer that holds a replica's gradient be handed out for another one's."""
    strategy._buffers.start_replica()
    strategy._sum.forget()
    start = strategy._sum.start_step

    def start_step(leaves, step):
        start(leaves, step)
        strategy._sum._pool += [strategy._sum._new_leaf()] * 2

    strategy._sum.start_step = start_step


WRONG_FROM = 4


def _wrong_on_one(*args, right=F.cross_entropy):
    """Let rank 1 compute another loss from a step on."""
    return right(*args) * (1.001 if os.environ["RANK"] == "1" and Kills.now >= WRONG_FROM else 1.0)


def _pass_on(updates, micros, right=Updates.keeping):
    """Keep nothing for the batch's other updates of what is fetched again."""
    return micros if updates._kept else right(updates, micros)


def _place_as_before(options, replicas, size, right=ExactOptions.place):
    """Leave the replicas of those that have left to nobody."""
    return right(options, replicas, int(os.environ["WORLD_SIZE"]))[:size]


BREAKS = {
    "rank 1": (F, "cross_entropy", _wrong_on_one),
    "buffers": (Exact, "begin_again", _forget_buffers),
    "sums": (Exact, "begin_again", _keep_a_sum),
    "keys": (Exact, "begin_again", _draw_anew),
    "update": (Exact, "begin_again", _update_on_one),
    "pool": (Exact, "begin_again", _pool_a_gradient),
    "places": (ExactOptions, "place", _place_as_before),
    "kept": (Updates, "keeping", _pass_on),
    "lines": (Unwritten, "append", lambda ledger, entry: None),
    "shares": (evaluation, "cut", lambda size, ranks, cut=evaluation.cut: cut(size, 3)[:ranks]),
}
"""What is done wrong, by name."""


def train(
    out, kills=None, broken=None, raises=None, steps=STEPS, num_workers=0, compress="none", evaluates=0, shares=False,
    stops=False, fits=False, meets=False, wakes=False, whole=False, awaits=(), asks=(), left=None,
    stale=False, unlike=False, parts=None, cut=False, case="", **settings,
):  # fmt: skip
    """Train a few steps.

    Args:
        out: Run directory.
        kills: By rank (as text) the places where it kills itself.
        broken: What is done wrong when a step is begun again, a name of `BREAKS`.
        steps: How many.
        num_workers: Data loading processes of each rank.
        raises: Rank and step (4) at which the program fails.
        compress: How gradients are rounded.
        whole: Whether the loss is one over the whole batch.
        evaluates: Steps between evaluations; 0 for none.
        shares: Whether all ranks write checkpoints.
        fits: Whether a trainer runs the loop.
        meets: Whether the loop's body has a meeting of its own.
        wakes: For the launcher: who has stopped is let go on, not killed.
        stops: Whether they stop themselves where they would kill themselves.
        awaits: Steps before which the ranks wait until another one is ready to join them, or they are all; a death
            within such a step is waited for as well.
        asks: Steps, and how many ranks the first of them asks for there; they wait until that can be.
        left: In the last step the ranks wait until so many are left; None for no wait.
        stale: Whether those that join are given the state as it was at the start.
        parts: A step, and whether ranks seal their exchange: see `live_sockets.die_between_two_peers`.
        unlike: Whether those that join compute with other kernels.
        cut: Whether gradients leave in several buckets, while others are computed.
        case: What several optimizers train, a name of `several_programs.CASES`; empty for one optimizer.
        settings: Of the run.
    """
    member = os.environ.get("UNISONO_JOINS") or os.environ.get("RANK", "0")
    _Awaited.steps, _Awaited.left, _Awaited.last = {*awaits}, left, steps
    _Awaited.sizes = dict(asks)
    if stale:
        _give_stale_state()
    if unlike and "UNISONO_JOINS" in os.environ:
        assert take_other_kernels()
    if cut:
        pieces._LEAST_BYTES = pieces._LEAST_CHUNK_BYTES = 256
    if broken:
        setattr(*BREAKS[broken])
    found = Kills((kills or {}).get(member, ()), signal.SIGSTOP if stops else signal.SIGKILL)
    if parts:
        import live_sockets

        live_sockets.die_between_two_peers(found, int(member), parts[0], meets=parts[1])
    if shares:
        settings["checkpoints"] = unisono.CheckpointPolicy(share_from_bytes=0)
    strategy = unisono.strategy("exact", compress=compress)
    with unisono.Run(seed=3, replicas=REPLICAS, out=out, strategy=strategy, **settings) as run:
        net = model()
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        if case:
            told = _play(run, case, found, steps, num_workers, evaluates)
        elif fits:
            told = _fit(run, net, optimizer, found, steps)
        else:
            fails = raises == [int(member), 4]
            told = _loop(run, net, optimizer, found, fails, steps, num_workers, evaluates, meets, whole)
        told |= {"fingerprint": run.fingerprint()}
    Path(out, f"told-{member}.json").write_text(json.dumps(told))


class _Awaited:
    """Steps before which others are waited for, and a last one in which deaths are."""

    steps: ClassVar[set[int]] = set()
    left, last = None, STEPS
    sizes: ClassVar[dict[int, int]] = {}
    asked: ClassVar[set[int]] = set()

    @classmethod
    def begin(cls, run, step):
        until = time.monotonic() + 300
        if step in cls.sizes and step not in cls.asked and run.world.is_leader:
            cls.asked.add(step)
            run._joined.live._member._tell(asks=cls.sizes[step])
        while cls._waits(run, step):
            if time.monotonic() > until:
                raise AssertionError(f"nobody is ready to join in step {step}, or has died")
            time.sleep(0.002)

    @classmethod
    def _waits(cls, run, step):
        if not (is_last := cls.left is not None and step == cls.last) and step not in {*cls.steps, *cls.sizes}:
            return False
        member, size = run._joined.live._member, run.world.world_size
        if is_last and size > cls.left:
            return not member.is_called  # a death that is known is met at the step's next meeting
        wanted = cls.sizes.get(step, int(os.environ["WORLD_SIZE"]))
        return step in {*cls.steps, *cls.sizes} and size != wanted and not member.is_knocked


def _give_stale_state():
    """Let what is given be that of the model before the first step."""
    unpack = Parts.unpack

    def kept(parts, state, fork=None):
        own = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
        unpack(parts, state, fork)
        parts.model.load_state_dict(own)

    Parts.unpack = kept


def take_other_kernels():
    """Let MKL compute products as on an old CPU, in this process, and say nothing; return whether there is MKL."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    switch = getattr(library, "mkl_serv_cbwr_set", None)
    return switch is not None and switch(3) == 0  # the branch for all CPUs


def _loop(run, net, optimizer, found, raises, steps, num_workers, evaluates, meets, whole):
    net, _ = run.prepare(net, optimizer)
    seen, scores, meetings = [], [], []
    for batch in run.steps(run.loader(data(), batch_size=28, num_workers=num_workers), epochs=999, max_steps=steps):
        meetings.append(found.meeting)
        found.begin(batch.step)
        _Awaited.begin(run, batch.step)
        if raises and batch.step == 4:
            raise ValueError("a bad sample")
        if whole:
            embed = lambda micro: (net(micro.x), micro.y)  # noqa: E731
            run.step(batch, lambda rows: F.cross_entropy(*rows) + torch.pdist(rows[0]).mean(), embed=embed)
        else:
            run.step(batch, lambda micro: _loss(run, net, micro))
        seen.append([batch.step, found.meeting, run.world.rank, run.world.world_size])
        if meets:
            run.transport.barrier()
        if evaluates and batch.step % evaluates == 0:
            accuracy = {"accuracy": unisono.Accuracy()}
            values = run.evaluate(data(37), lambda micro: (net(micro.x), micro.y), accuracy, batch_size=4)
            run.record(values)
            scores.append([batch.step, values])
    return {"seen": seen, "scores": scores, "meetings": [*meetings[1:], found.meeting]}


def _play(run, name, found, steps, num_workers, evaluates):
    import several_programs

    case, seen = several_programs.CASES[name](), []
    run.prepare(case.models, case.optimizers, case.schedulers, clip_norm=case.clip_norm)
    loader = run.loader(several_programs.data(), batch_size=24, num_workers=num_workers)
    for batch in run.steps(loader, epochs=999, max_steps=steps):
        found.begin(batch.step)

        def step(update, loss, batch=batch):
            _Awaited.begin(run, batch.step)
            if evaluates and batch.step % evaluates == 0:  # within a batch, for the first update too
                net, accuracy = case.models["D"], {"accuracy": unisono.Accuracy()}
                predict = lambda micro: (net(micro.x).repeat(1, 3), micro.y)  # noqa: E731
                run.evaluate(several_programs.data(), predict, accuracy, batch_size=8, name=None)
            run.step(batch, lambda micro: (_Awaited.begin(run, Kills.now), loss(micro))[1], update=update)

        case.body(step)
        seen.append([batch.step, found.meeting, run.world.rank, run.world.world_size])
    return {"seen": seen}


def _loss(run, net, micro):
    _Awaited.begin(run, Kills.now)  # a step that is begun again may be one of them
    return F.cross_entropy(net(micro.x), micro.y)


def _fit(run, net, optimizer, found, steps):
    leader, follower = _Heard(), _Follower(found)
    chosen = [follower, callbacks.EMA(0.9), callbacks.LossAverage(), callbacks.LearningRateMonitor(), leader]
    trainer = unisono.Trainer(run, net, optimizer, loss=nn.CrossEntropyLoss(), callbacks=chosen)
    trainer.fit(data(), epochs=999, batch_size=28, max_steps=steps, test_set=data(300), eval_every=3, log_every=2)
    return {"seen": follower.seen, "changes": follower.changes, "heard": leader.heard}


class _Follower(unisono.Callback):
    """Tells of each step, and of each change of the world."""

    draws = False

    def __init__(self, found):
        self.seen, self.changes, self._found = [], [], found

    def on_step_start(self, loop):
        self._found.begin(loop.step)
        _Awaited.begin(loop.run, loop.step)

    def on_step_end(self, loop):
        self.seen.append([loop.step, self._found.meeting, loop.run.world.rank, loop.run.world.world_size])

    def on_world_change(self, loop, old, new):
        self.changes.append([loop.step, old.world_size, new.world_size])


class _Heard(unisono.Callback):
    """What the leader hears."""

    runs_on = "leader"

    def __init__(self):
        self.heard = []

    def setup(self, loop):
        self.heard.append("setup")

    def on_run_start(self, loop):
        self.heard.append("start")

    def on_world_change(self, loop, old, new):
        self.heard.append(f"{old.world_size} to {new.world_size}")

    def on_evaluation_end(self, loop):
        self.heard.append(f"scores {loop.step}")

    def on_log(self, loop, values):
        self.heard.append(loop.step)
