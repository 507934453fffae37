"""What a loss reads and the loop changes beside the run: told in the second step, and no worker joins without it."""

import copy
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import unisono
from unisono.errors import ConfigError
from unisono.train.guards.done_loops import DoneLoops
from unisono.train.run_directory.newcomers import Newcomers
from unisono.train.steps import stepper

TOLD = r"step 2: 'teacher.0.weight', ..., which the loss function can reach, is changed by the loop, and no checkpoint"


def lerp(teacher, model):
    for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
        mine.lerp_(theirs, 0.1)


def by_data(teacher, model):
    """In no tensor's version."""
    for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
        mine.data = mine.data * 0.9 + theirs.data * 0.1


def late(teacher, model):
    """In step 3 for the first time."""
    late.calls += 1
    if late.calls == 3:
        lerp(teacher, model)


class Held:
    """An object of the program's own that has a teacher."""

    def __init__(self, teacher):
        self.teacher = teacher

    def state_dict(self):
        return self.teacher.state_dict()

    def load_state_dict(self, state):
        self.teacher.load_state_dict(state)


@pytest.fixture(autouse=True)
def live(monkeypatch):
    """Let runs that keep nothing be as those that a worker may join."""
    monkeypatch.setattr(stepper, "DoneLoops", lambda *given, live, **more: DoneLoops(*given, live=True, **more))


def train(toy, change, *, register=None, last=5, **settings):
    """Distill from a teacher that the loop changes; return the run."""
    late.calls = 0
    with toy.run(**settings) as (run, model, _):
        teacher = copy.deepcopy(model)
        if register is not None:
            run.register("teacher", register(teacher))

        def loss(micro):
            out = model(micro.x)
            return F.cross_entropy(out, micro.y) + F.mse_loss(out, teacher(micro.x).detach())

        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2, max_steps=last):
            run.step(batch, loss)
            with torch.no_grad():
                change(teacher, model)
        return run


@pytest.mark.parametrize("change", [lerp, by_data])
def test_a_teacher_is_told_once(toy, change):
    with pytest.warns(UserWarning, match=TOLD) as told:
        train(toy, change, last=9)
    assert len(told) == 1
    assert told[0].filename == __file__
    assert "run.register('teacher', teacher)" in str(told[0].message)


def test_a_resumed_run_tells_it_in_its_second_step(toy, tmp_path):
    """And not as late as step 16: a worker that joins before would not be kept out."""
    with pytest.warns(UserWarning, match=TOLD):
        train(toy, lerp, last=5, out=tmp_path)
    with pytest.warns(UserWarning, match="step 7: 'teacher.0.weight'") as told:
        train(toy, lerp, last=10, out=tmp_path)
    assert len([each for each in told if "step 7" in str(each.message)]) == 1


def test_nothing_is_told_where_nothing_is_kept_and_nobody_joins(toy, monkeypatch, tmp_path):
    """Neither of tensors nor of numbers; the control keeps checkpoints."""
    monkeypatch.setattr(stepper, "DoneLoops", DoneLoops)
    for out, count in ((None, 0), (tmp_path, 1)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            train(toy, lerp, out=out)
            assert len([each for each in told if "the loop" in str(each.message)]) == count
            assert len(weigh(toy, lambda tracker: tracker.ema, after=Tracker.update, out=out and out / "n")[0]) == count


def test_one_that_is_changed_later(toy):
    with pytest.warns(UserWarning, match="step 4: 'teacher"):
        train(toy, late)


def test_of_several_updates_one_reads_it(toy):
    """The loss of another update, which does not, comes between."""
    with unisono.Run(seed=0, replicas=4) as run:
        models = {name: torch.nn.Linear(6, 4) for name in "AB"}
        teacher = copy.deepcopy(models["A"])
        run.prepare(models, {name: torch.optim.SGD(model.parameters(), lr=0.1) for name, model in models.items()})
        losses = {
            "A": lambda micro: F.mse_loss(models["A"](micro.x), teacher(micro.x).detach()),
            "B": lambda micro: F.cross_entropy(models["B"](micro.x), micro.y),
        }
        with pytest.warns(UserWarning, match="step 2: 'teacher.weight'"):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=2):
                for name, loss in losses.items():
                    run.step(batch, loss, update=name)
                with torch.no_grad():
                    lerp(teacher, models["A"])


@pytest.mark.parametrize("register", [lambda teacher: teacher, Held], ids=["module", "object"])
def test_one_that_is_registered_is_not_told(toy, register):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(toy, lerp, register=register)


def test_what_stays_is_not_told(toy):
    """A teacher that nobody changes, tensors that each step makes anew, and those of kinds that cannot be read."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with toy.run() as (run, model, _):
            teacher = copy.deepcopy(model).requires_grad_(False)
            teacher.others = [torch.eye(2).to_sparse(), torch.ones(2, dtype=torch.complex64).conj(), torch.empty(0),
                              torch.empty(2, device="meta"), nn.UninitializedParameter(),
                              torch.ones(2, 3, dtype=torch.bfloat16).T, torch.tensor(True)]  # fmt: skip
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
                weight = torch.full((4,), float(batch.step))
                run.step(
                    batch,
                    lambda micro: F.cross_entropy(model(micro.x), micro.y, weight=weight) + teacher(micro.x).mean() * 0,  # noqa: B023
                )


def test_it_is_not_handed_to_a_worker_that_joins(toy, tmp_path):
    """Which would train with the first values; the others go on without it."""
    with pytest.warns(UserWarning, match=TOLD):
        run = train(toy, lerp, out=tmp_path / "teacher")
    with pytest.raises(ConfigError, match=r"'teacher.0.weight', ..., which the loss function can reach"):
        Newcomers(run._progress, run._joined.record).given()
    run = train(toy, lerp, register=lambda teacher: teacher, out=tmp_path / "kept")
    Newcomers(run._progress, run._joined.record).given()


def go_through(toy, head, *, after=lambda: None, **settings):
    """Train through a module beside the prepared model; return what was told."""
    with warnings.catch_warnings(record=True) as told, toy.run(**settings) as (run, model, _):
        warnings.simplefilter("always")
        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            run.step(batch, lambda micro: F.cross_entropy(head(model(micro.x)), micro.y))
            after()
    return [str(each.message) for each in told]


@pytest.mark.parametrize("strategy", ["exact", "ddp"])
def test_parameters_that_learn_and_that_nothing_trains(toy, strategy):
    """An optimizer for them, made after run.prepare(), does nothing."""
    head = nn.Linear(4, 4)
    torch.optim.SGD(head.parameters(), lr=0.1)
    [told] = go_through(toy, head, strategy=strategy)
    place = "head.weight (4, 4)" if strategy == "exact" else "(4, 4)"
    assert told.startswith("step 1: the loss sends gradients to trainable parameters that are in no prepared model")
    assert f"stay as they are: {place}, .... Hint: make them part of the model" in told


def test_parameters_beside_the_model_that_are_not_told(toy):
    """Frozen ones, those that the loop trains by gradients of its own, and tensors that are no parameters."""
    assert go_through(toy, nn.Linear(4, 4).requires_grad_(False)) == []
    head = nn.Linear(4, 4)

    def train():
        head.zero_grad()
        for each in head.parameters():
            each.data = each.data.clone()
            each.requires_grad_(False).add_(0.1).requires_grad_(True)

    assert all("sends gradients" not in each for each in go_through(toy, head, after=train))
    ones = torch.ones(4, requires_grad=True)
    assert go_through(toy, lambda out: out * ones) == []


@pytest.mark.parametrize("is_registered", [False, True])
def test_an_average_that_is_only_evaluated(toy, tmp_path, is_registered):
    """The loss does not reach it: it is looked for where checkpoints are saved."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with toy.run(out=tmp_path, checkpoint_every=2) as (run, model, _):
            average = AveragedModel(model)
            if is_registered:
                run.register("average", average)
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=2):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                average.update_parameters(model)
    found = [str(each.message) for each in told]
    assert len(found) == (not is_registered)
    assert is_registered or "an AveragedModel is updated that no checkpoint holds" in found[0]


class Tracker:
    """Numbers of the program's own."""

    def __init__(self):
        self.ema, self.calls, self.history, self.table, self.seen = 0.0, 0, [], {"newest": 0.0}, 0

    def update(self, value):
        self.ema = 0.9 * self.ema + 0.1 * value
        self.history.append(value)
        self.table["newest"] = value

    @property
    def scale(self):
        return 1 + self.ema

    def last(self):
        return sum(self.history[-1:])

    def state_dict(self):
        return {"ema": self.ema}

    def load_state_dict(self, state):
        self.ema = state["ema"]


class Counter(Tracker):
    """One that counts by itself."""

    def tick(self):
        self.calls += 1
        self.ema = self.calls / 10


class Plan(SimpleNamespace):
    """One that is told the step's number."""

    def at(self, step):
        self.ema = step / 10


class Layer(nn.Module):
    """A module with a number, as layers remember for how long a text their tables are."""

    def __init__(self):
        super().__init__()
        self.ema, self.table = 0.0, {"ema": 0.0}


class Growing(nn.Module):
    """A layer that remembers the longest batch, which evaluations see too: a cache."""

    def __init__(self):
        super().__init__()
        self.longest = 0

    def forward(self, x):
        self.longest = max(self.longest, len(x))
        return x[: self.longest]


def setattr_ema(tracker, value):
    tracker.ema = value


def set_ema(tracker, value):
    tracker["ema"] = value


def log(tracker):
    """What a loss writes for others to read."""
    tracker.seen += 1
    return 0


def weigh(toy, read, *, before=lambda *_: None, after=lambda *_: None, tracker=None, is_registered=False, **settings):
    """Weigh the loss by what `read` finds in a tracker, which the loop changes; return what was told, and the run."""
    tracker = tracker or Tracker()
    with warnings.catch_warnings(record=True) as told, toy.run(**settings) as (run, model, _):
        warnings.simplefilter("always")
        if is_registered:
            run.register("tracker", tracker)

        def loss(micro):
            return F.cross_entropy(model(micro.x), micro.y) * (1 + read(tracker))

        for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1):
            before(tracker, batch.step)
            after(tracker, run.step(batch, loss))
    return [str(each.message) for each in told], run


@pytest.mark.parametrize(
    ("name", "read", "loop"),
    [
        ("tracker.ema", lambda tracker: tracker.ema, {"after": Tracker.update}),
        ("tracker.ema", lambda tracker: tracker.scale, {"after": Tracker.update}),
        ("tracker.history", lambda tracker: tracker.last(), {"after": Tracker.update}),
        ("tracker.table['newest']", lambda tracker: tracker.table["newest"], {"after": Tracker.update}),
        (
            "tracker.ema",
            lambda tracker: tracker.ema,
            {"before": lambda tracker, _: tracker.tick(), "tracker": Counter()},
        ),
        ("tracker.ema", lambda tracker: tracker.ema, {"after": setattr_ema, "tracker": SimpleNamespace(ema=0.0)}),
        ("tracker['ema']", lambda tracker: tracker["ema"], {"after": set_ema, "tracker": {"ema": 0.0}}),
    ],
    ids=["method", "property", "list", "table", "before", "namespace", "dictionary"],
)
def test_a_number_that_the_loop_changes(toy, name, read, loop):
    told, _ = weigh(toy, read, **loop)
    assert len(told) == 1
    assert told[0].startswith(f"step 2: {name!r}, which the loss function can reach, is changed by the loop, and no")
    assert (
        "run.register('tracker', tracker), before the loop, saves and restores a dictionary, or an object with"
        in told[0]
    )


@pytest.mark.parametrize(
    ("read", "loop"),
    [
        (lambda tracker: tracker.ema, {"after": Tracker.update, "is_registered": True}),
        (lambda tracker: tracker["ema"], {"after": set_ema, "tracker": {"ema": 0.0}, "is_registered": True}),
        (lambda tracker: tracker.ema, {"before": Plan.at, "tracker": Plan()}),
        (lambda tracker: tracker.seen, {"after": Tracker.update}),
        (lambda tracker: log(tracker), {"after": lambda tracker, _: vars(tracker).update(seen=0)}),
        (
            lambda tracker: tracker.table["ema"],
            {"after": lambda layer, _: layer.table.update(ema=1), "tracker": Layer()},
        ),
    ],
    ids=[
        "registered",
        "a registered dictionary",
        "of the step",
        "not read",
        "the loss's own",
        "held by a module",
    ],
)
def test_numbers_that_are_not_told(toy, read, loop):
    assert weigh(toy, read, **loop)[0] == []


BUFFER = "register_buffer('beta', torch.tensor(1.0)); or compute it from batch.step"


@pytest.mark.parametrize(
    ("name", "tracker", "read", "after"),
    [
        ("tracker.ema", Layer(), lambda tracker: tracker.ema, setattr_ema),
        (
            "tracker.p",
            nn.Dropout(0.5),
            lambda tracker: tracker(torch.zeros(1)).item(),
            lambda it, _: vars(it).update(p=0),
        ),
    ],
)
def test_a_modules_number_that_the_loop_changes(toy, name, tracker, read, after):
    """Also of one of torch's, whose code is not looked at."""
    told, _ = weigh(toy, read, after=after, tracker=tracker)
    assert len(told) == 1
    assert told[0].startswith(f"step 2: {name!r}, which the loss function can reach, is changed by the loop, and no")
    assert BUFFER in told[0]


def test_what_an_evaluation_lets_a_module_remember_is_left_alone(toy):
    told, _ = weigh(
        toy,
        lambda layer: layer(torch.zeros(2)).sum().item(),
        after=lambda layer, _: layer(torch.zeros(9)),
        tracker=Growing(),
    )
    assert told == []


def test_a_number_keeps_a_worker_from_joining(toy, tmp_path):
    _, run = weigh(toy, lambda tracker: tracker.ema, after=Tracker.update, out=tmp_path)
    with pytest.raises(ConfigError, match=r"'tracker.ema', which the loss function can reach"):
        Newcomers(run._progress, run._joined.record).given()


def test_what_happens_between_two_loops_is_done_again_by_a_resumed_run(toy):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with toy.run() as (run, model, _):
            tracker, loader = Counter(), run.loader(toy.data, batch_size=56)
            for epoch in range(4):
                for batch in run.steps(loader, epochs=epoch + 1):
                    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y) * tracker.scale)
                tracker.tick()
