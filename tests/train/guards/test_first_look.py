"""What is hardly meant is said once, before it costs a training; what may be meant is left alone."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from train.conftest import build_batch_norm, build_mlp
from unisono.train.guards.first_look import FirstLook, Unseeded


class Everything(nn.Module):
    """A layer of each kind whose initialisation is known, and some whose is not."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(5, 6), nn.LayerNorm(6)
        self.conv, self.up = nn.Conv1d(6, 8, 3, groups=2), nn.ConvTranspose1d(8, 6, 3)
        self.rnn, self.out = nn.GRU(6, 4, batch_first=True), nn.Linear(4, 4)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.fixture
def fresh(monkeypatch):
    """A process whose generator nobody has seeded, and in which no run was made."""
    monkeypatch.setattr(Unseeded, "_has_looked", False)
    torch.seed()


def told(model, prepare=True):
    """Return the warnings of a run that begins now and gets `model`, or what `model` makes of it."""
    with warnings.catch_warnings(record=True) as caught, unisono.Run(seed=0, replicas=2) as run:
        warnings.simplefilter("always")
        made = model if isinstance(model, nn.Module) else model()
        run.prepare(made, optimizer_of(made))
    return [str(each.message) for each in caught]


@pytest.mark.parametrize("build", [build_mlp, build_batch_norm, Everything, lambda: nn.Linear(1, 1)])
def test_a_model_from_before_the_run_is_told(fresh, build):
    """Weights that torch drew unseeded are something else at every start: the run says so, with a name."""
    model = build()
    torch.rand(3)
    said = told(model)
    assert len(said) == 1
    assert said[0].startswith("the model was built before Run(seed=0), and its weights (")
    assert any(name in said[0] for name in ("(0.weight, ...)", "(conv.weight, ...)", "(weight)"))


@pytest.mark.parametrize("build", [build_mlp, Everything])
def test_every_drawn_layer_is_known(fresh, build):
    """All weights of linear, convolution and recurrent layers are found, in double precision and elsewhere too."""
    model = build().double()
    names = Unseeded().initial(model)
    expected = {"0.weight", "2.weight"} if build is build_mlp else {"conv.weight", "up.weight", "out.weight"}
    assert expected <= set(names)
    assert not any("norm" in name or "embed" in name for name in names)


def loaded(state):
    model = build_mlp()
    model.load_state_dict(state)
    return model


def trained():
    """Return weights after some steps: near those of the start, as a pretrained model's may be."""
    model = build_mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
    return model


def from_file(folder):
    torch.save(build_mlp().state_dict(), folder / "x.pt")
    model = build_mlp()
    unisono.load_weights(model, folder / "x.pt")
    return model


def filled_without_init():
    """Return a model whose memory was never drawn into, as loaders of pretrained models make it."""
    model = nn.utils.skip_init(nn.Linear, 32, 32)
    with torch.no_grad():
        model.weight.copy_(torch.randn(32, 32) * 0.1)
        model.bias.copy_(torch.zeros(32))
    return model


def initialised_by_hand():
    model = build_mlp()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: loaded(build_mlp().state_dict()),
        lambda folder: copy.deepcopy(trained()),
        lambda folder: trained(),
        from_file,
        lambda folder: filled_without_init(),
        lambda folder: initialised_by_hand(),
    ],
    ids=["load_state_dict", "copy", "trained", "load_weights", "skip_init", "own-init"],
)
def test_weights_from_elsewhere_are_no_mistake(fresh, tmp_path, make):
    """Pretrained, trained and hand-made weights may be as old as they like."""
    assert told(make(tmp_path)) == []


def test_the_right_order_is_no_mistake(fresh):
    """Built after the run, or drawn anew after it; nothing is even searched where nothing had been drawn."""
    assert told(build_mlp) == []
    Unseeded._has_looked = False
    torch.seed()
    model = build_mlp()

    def drawn_anew():
        for layer in (model[0], model[2]):
            layer.reset_parameters()
        return model

    assert told(drawn_anew) == []


def test_a_seeded_program_is_no_mistake(fresh):
    """Whoever calls torch.manual_seed has seeded the weights; a process's second run is as seeded as the first."""
    torch.manual_seed(3)
    assert told(build_mlp()) == []
    assert told(build_mlp()) == []
    torch.seed()
    assert told(build_mlp()) == []


def train(toy, run, model, *, steps=2, **more):
    optimizer = more.pop("optimizer", None) or optimizer_of(model)
    run.prepare(model, optimizer)
    for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=steps):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        for each in more.get("after", ()):
            each()


@pytest.mark.parametrize(
    ("layer", "is_told"),
    [
        (lambda: nn.Dropout(0.1), True),
        (lambda: nn.BatchNorm1d(8), True),
        (lambda: nn.Dropout(0.0), False),
        (lambda: nn.BatchNorm1d(8, track_running_stats=False), False),
        (lambda: nn.LayerNorm(8), False),
        (lambda: Noisy(), True),
        (lambda: Silent(), False),
    ],
)
def test_training_in_evaluation_mode(toy, layer, is_told):
    """It is told where a layer works otherwise then, with its name; where it makes no difference, nothing is said."""
    with warnings.catch_warnings(record=True) as caught, unisono.Run(replicas=2) as run:
        warnings.simplefilter("always")
        model = nn.Sequential(nn.Linear(6, 8), layer(), nn.Linear(8, 4))
        model.eval()
        train(toy, run, model)
    said = [str(each.message) for each in caught]
    assert [each.filename for each in caught] == [__file__] * is_told
    assert all("in evaluation mode" in each and ": 1 (" in each for each in said)


class Noisy(nn.Module):
    """A layer of a program's own that looks at its mode."""

    def forward(self, x):
        return F.dropout(x, 0.5, training=self.training)


class Silent(nn.Module):
    """One that does not."""

    def forward(self, x):
        return x * 2


def test_a_part_in_evaluation_mode_is_meant(toy):
    """Frozen statistics are a way of fine-tuning; and a mode forgotten after an evaluation is told at the next step."""
    with unisono.Run(replicas=2) as run:
        model = build_batch_norm()
        model[1].eval()
        train(toy, run, model)
        model.eval()
        with pytest.warns(UserWarning, match="in evaluation mode"):
            for batch in run.steps(run.loader(toy.data, batch_size=12), epochs=1, max_steps=3):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))


def schedules(toy, out, make, *, register=False, step=True, hold=lambda schedule: schedule):
    """Train with a schedule that `make` makes, and return what is said."""
    with warnings.catch_warnings(record=True) as caught, unisono.Run(replicas=2, out=out, checkpoint_every=1) as run:
        warnings.simplefilter("always")
        model = build_mlp()
        optimizer = optimizer_of(model)
        schedule = make(optimizer)
        if register:
            run.register("schedule", hold(schedule))
        after = [lambda: schedule.step(*([1.0] if isinstance(schedule, Plateau) else []))] if step else []
        train(toy, run, model, optimizer=optimizer, after=after, steps=5)
    assert {each.filename for each in caught} <= {__file__}
    return [str(each.message) for each in caught]


Plateau = torch.optim.lr_scheduler.ReduceLROnPlateau


def step_lr(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1)


def plateau(optimizer):
    return Plateau(optimizer, patience=0)


def chained(optimizer):
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer), step_lr(optimizer)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[2])


class Held:
    """A state of a program's own, with a schedule in it."""

    def __init__(self, schedule):
        self.parts = {"schedule": schedule}

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("make", [step_lr, plateau, chained])
def test_a_schedule_that_no_checkpoint_holds(toy, tmp_path, make):
    """One that is stepped by hand and not registered is told once, with its kind; registered it is not."""
    said = schedules(toy, tmp_path / "a", make)
    assert len(said) == 1
    assert "that no checkpoint holds" in said[0]
    assert "run.register('schedule', scheduler)" in said[0]
    assert schedules(toy, tmp_path / "b", make, register=True) == []
    assert schedules(toy, tmp_path / "c", make, register=True, hold=Held) == []
    assert schedules(toy, None, make) == []  # nothing is kept, so nothing is lost


def test_a_rate_that_is_set_by_hand_is_no_schedule(toy, tmp_path):
    """A rate that follows from the step needs no state."""
    with unisono.Run(replicas=2, out=tmp_path, checkpoint_every=1) as run:
        model = build_mlp()
        optimizer = optimizer_of(model)
        train(toy, run, model, optimizer=optimizer, after=[lambda: optimizer.param_groups[0].update(lr=0.01)])


@pytest.mark.parametrize(("scale", "is_told"), [(1.0, True), (1 / 255, False), (0.5, False), (2.0, False)], ids=str)
def test_images_of_bytes_are_told(scale, is_told):
    """Floating-point inputs from 0 to 255 without decimals, in the first step alone; others may be meant."""
    images = torch.arange(4 * 64).view(4, 1, 8, 8) * scale
    data = unisono.ArrayDataset(images, torch.zeros(4, dtype=torch.int64))
    with warnings.catch_warnings(record=True) as caught, unisono.Run(seed=0, replicas=2) as run:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model, _ = run.prepare(net := nn.Sequential(nn.Flatten(), nn.Linear(64, 2)), optimizer_of(net))
        for batch in run.steps(run.loader(data, batch_size=4), epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
    told = [str(each.message) for each in caught if "bytes" in str(each.message)]
    assert len(told) == is_told
    assert all("whole numbers from 0 to 2" in each and "images / 255" in each for each in told)


def test_a_batch_larger_than_the_data_set_is_told_by_the_leader_alone(toy):
    """Each epoch is one step then, whatever was meant; a batch that is all samples is no mistake."""
    num_samples = len(toy.data)
    with unisono.Run() as run:
        loader = run.loader(toy.data, batch_size=num_samples)
        with pytest.warns(
            UserWarning, match=rf"^batch_size=1000000 is more than the data set's {num_samples} samples: "
        ):
            run.loader(toy.data, batch_size=10**6)
    FirstLook(is_leader=False).at_sizes(10**6, 1, loader.sampler)  # a warning would be an error here


def test_idle_replicas_are_told_by_the_leader_alone(toy):
    """Fewer samples a step than replicas: said once for all ranks; as many are enough."""

    def program(transport):
        with warnings.catch_warnings(record=True) as caught, unisono.Run(replicas=4, transport=transport) as run:
            warnings.simplefilter("always")
            run.loader(toy.data, batch_size=4)
            run.loader(toy.data, batch_size=3)
            return run.world.rank, [str(each.message) for each in caught]

    FirstLook(is_leader=False).at_sizes(3, 4)  # a warning would be an error here
    told = dict(run_threads(program, 1))
    assert "batch_size=3 is fewer samples than this run's 4 replicas: 1 of them never has one" in told[0][0]
    assert len(told[0]) == 1


def test_a_best_that_was_never_measured(toy, tmp_path):
    """A metric that nobody records keeps no checkpoint: a name that is nearly right is told with the first record."""
    steps = []

    def record(run, step, names):
        steps.append(step)
        run.record(dict.fromkeys(names, 0.5))

    def play(best, out, *names):
        policy = unisono.CheckpointPolicy(best=best)
        with unisono.Run(replicas=2, out=out, checkpoints=policy) as run:
            model = build_mlp()
            train(toy, run, model, after=[lambda: record(run, len(steps) + 1, names)])

    play("accuracy", tmp_path / "a", "accuracy", "test_accuracy")
    told = r"keeps no best .*given accuracy so far\. Hint: did you mean best='accuracy'"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match=told):
            play("accurracy", tmp_path / "b", "accuracy")
        steps.clear()
        with pytest.raises(UserWarning, match="did you mean best='test_accuracy'"):
            play("accuracy", tmp_path / "c", "test_accuracy")
        assert steps == [1]
    with pytest.warns(UserWarning, match=r"best='val_loss'\) kept no best .*given train_loss\."):
        play("val_loss", tmp_path / "d", "train_loss")
    with pytest.warns(UserWarning, match=r"given nothing in the loop's body\. Hint: evaluate there: if batch\.step %"):
        play("val_loss", tmp_path / "e")


class Counting(torch.optim.SGD):
    """Counts its steps in an attribute, and halves its updates by it."""

    def __init__(self, parameters, attribute="calls"):
        super().__init__(parameters, lr=0.1)
        self.attribute, self.factor = attribute, 0.5
        setattr(self, attribute, torch.zeros(()) if attribute == "sum" else 0)

    def step(self, closure=None):
        made = getattr(self, self.attribute)
        setattr(self, self.attribute, made.add_(1) if self.attribute == "sum" else made + 1)
        return super().step(closure)


class Keeping(Counting):
    """The same, with a state of its own."""

    def state_dict(self):
        return super().state_dict() | {"calls": self.calls}

    def load_state_dict(self, state_dict):
        self.calls = state_dict["calls"]
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "calls"})


@pytest.mark.parametrize(
    ("make", "is_told"),
    [
        (Counting, True),
        (lambda parameters: Counting(parameters, "sum"), True),
        (lambda parameters: Counting(parameters, "_private"), False),
        (Keeping, False),
        (lambda parameters: torch.optim.Adam(parameters), False),
        (lambda parameters: torch.optim.LBFGS(parameters, max_iter=2), False),
    ],
    ids=["number", "tensor", "private", "own state_dict", "Adam", "LBFGS"],
)
def test_what_an_optimizer_counts_outside_of_its_state(toy, tmp_path, make, is_told):
    """It is told once, with its name, where there are checkpoints that lack it."""
    for out, count in ((None, 0), (tmp_path, is_told)):
        with (
            warnings.catch_warnings(record=True) as caught,
            unisono.Run(replicas=2, out=out, checkpoint_every=1) as run,
        ):
            warnings.simplefilter("always")
            model = build_mlp()
            train(toy, run, model, steps=3, optimizer=make(model.parameters()))
        said = [str(each.message) for each in caught]
        assert [each.split(" changes its attribute ")[0] for each in said] == ["Counting"] * count
