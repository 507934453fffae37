"""The score: what defines a result, and what a resume would change."""

import json
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import random_split

import unisono
from unisono.collectives.loopback import run_ranks
from unisono.data import same_samples
from unisono.data.datasets import ArrayDataset
from unisono.data.sampler import ExactSampler
from unisono.errors import RankDivergence, ScoreMismatch
from unisono.observe.compare import diff
from unisono.train import score
from unisono.train.score import describe_data, describe_model, describe_modules, describe_optimizer


def model(width=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


def test_equal_models_are_equal():
    """The same class, structure and weights have one description, which is JSON-able."""
    assert describe_model(model()) == describe_model(model())
    assert json.loads(json.dumps(describe_model(model()))) == describe_model(model())
    assert describe_model(model())["num_parameters"] == 15


def test_what_changes_a_model():
    """Width, frozen parts, dtype change the structure; a seed or a buffer only the initial weights."""
    before = describe_model(model())

    def changed(other):
        found = describe_model(other)
        return {name for name in before if before[name] != found[name]}

    assert changed(model(width=4)) == {"num_parameters", "structure", "initial_weights"}
    assert changed(model().double()) == {"structure", "initial_weights"}
    frozen = model()
    frozen[0].bias.requires_grad_(False)
    assert changed(frozen) == {"structure"}
    assert changed(model(seed=1)) == {"initial_weights"}
    counted = model()
    counted[1].num_batches_tracked.add_(1)
    assert changed(counted) == {"initial_weights"}


def layers(activation=nn.ReLU, p=0.2, *more):
    """Return a model of which only parameters stand in its structure."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), activation(), nn.Dropout(p), nn.Linear(8, 4), *more)


def test_modules_without_parameters_count():
    """Another activation, another ``p``, one more module: nothing else tells of them, and each is named."""
    before = describe_modules(layers())
    told = [layers(nn.GELU), layers(p=0.5), layers(nn.ReLU, 0.2, nn.Identity())]
    assert [describe_model(each) == describe_model(layers()) for each in told] == [True] * 3
    assert [diff({"modules": before}, {"modules": describe_modules(each)}) for each in told] == [
        ["modules.1: ReLU() -> GELU(approximate='none')"],
        ["modules.2: Dropout(p=0.2, inplace=False) -> Dropout(p=0.5, inplace=False)"],
        ["modules.4: none -> Identity()"],
    ]
    assert diff({"modules": before}, {}) == diff({}, {"modules": before}) == []  # a run of before has none
    both = [{"modules": describe_modules(nn.ModuleList([kind() for _ in range(3)]))} for kind in (nn.ReLU, nn.Tanh)]
    assert diff(*both) == ["modules.0 and 2 more: ReLU() -> Tanh()"]


class Scaled(nn.Module):
    """Tells of itself what is another in each process, on each device, at each moment; and its rate."""

    def __init__(self, rate=0.1, device="cpu", kinds=()):
        super().__init__()
        self.rate, self.act, self.device, self.kinds = rate, lambda x: x * rate, device, kinds

    def extra_repr(self):
        """Return settings in the style of torch."""
        what = f", kinds={self.kinds}" * bool(self.kinds)
        return f"rate={self.rate}, act={self.act}, device={self.device!r}, training={self.training}{what}"

    def forward(self, x):
        """Return the input times the rate."""
        return self.act(x)


def test_what_passes_is_left_out_of_modules():
    """Addresses, devices, the mode; a text with a set, which has another order in each process."""
    one, other = nn.Sequential(Scaled()), nn.Sequential(Scaled(device="cuda:1")).eval()
    (told,) = describe_modules(one).values()
    assert describe_modules(other) == {"0": told} != describe_modules(nn.Sequential(Scaled(0.3)))
    assert told.startswith("Scaled(rate=0.1, act=<function ") and told.endswith("<lambda>>, device='',)")
    assert describe_modules(nn.Sequential(Scaled(kinds={"a", "b"}))) == {"0": "Scaled()"}
    assert describe_modules(Scaled())[""] == told
    assert describe_modules(nn.Sequential()) == {}  # its class is told beside it


def test_a_compiled_or_parametrized_model_is_told_alike():
    """Before and after its first pass, and by another process's copy; compiling in place changes nothing."""

    def parametrized():
        made = layers()
        nn.utils.parametrizations.weight_norm(made[0])
        return made

    for make in (lambda: torch.compile(layers(), backend="eager"), parametrized):
        made = make()
        before = describe_modules(made)
        made(torch.zeros(2, 6)).sum().backward()
        assert describe_modules(made) == before == describe_modules(make())
    in_place = layers()
    in_place.compile(backend="eager")
    in_place(torch.zeros(2, 6))
    assert describe_modules(in_place) == describe_modules(layers())


def of_layers(*what):
    """Return what builds such a model, with a module of the program's own."""
    return lambda: layers(*what).append(Scaled())


def test_a_run_goes_on_with_its_own_modules_only(toy, tmp_path):
    """Begun on two ranks and gone on with on one; others are refused by name, or told where drift is allowed."""
    whole, _ = toy.train(build=of_layers())
    run_ranks(lambda one: toy.train(build=of_layers(), epochs=1, out=tmp_path, transport=one), 2)
    with pytest.raises(ScoreMismatch, match=r"\n  module 1: ReLU\(\) then, Tanh\(\) now\nHint: build"):
        toy.train(build=of_layers(nn.Tanh), out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert toy.train(build=of_layers(), out=tmp_path) == (whole, [6, 7, 8, 9, 10])
    with pytest.warns(UserWarning, match=r"goes on with other modules, .*: module 1: ReLU\(\) then, Tanh"):
        toy.train(build=of_layers(nn.Tanh), epochs=3, out=tmp_path, allow_drift=True)


def test_modules_that_differ_by_rank_are_refused(toy):
    """Their weights are equal, so nothing else could tell."""
    kinds = nn.ReLU, nn.Tanh
    with pytest.raises(RankDivergence, match=r"modules\.1: (ReLU|Tanh)\(\) -> (ReLU|Tanh)\(\)"):
        run_ranks(lambda one: toy.train(build=of_layers(kinds[one.rank]), transport=one), 2)


def test_a_run_without_modules_goes_on_and_learns_them(toy, tmp_path, monkeypatch):
    """One of an earlier version: nothing is said; its next checkpoint has them, and other ones are refused."""
    with monkeypatch.context() as before:
        before.setattr("unisono.train.trained_parts.describe_modules", lambda model: None)
        whole, _ = toy.train(build=of_layers())
        toy.train(build=of_layers(), epochs=1, out=tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert toy.train(build=of_layers(), out=tmp_path) == (whole, [6, 7, 8, 9, 10])
    with pytest.raises(ScoreMismatch, match=r"step-.*\n  module 1: ReLU\(\) then, Tanh\(\) now\nHint: build"):
        toy.train(build=of_layers(nn.Tanh), epochs=3, out=tmp_path)


def test_what_changes_an_optimizer():
    """Class, any group setting, the grouping and the scheduler count; not the state."""

    def describe(make, schedule=None):
        optimizer = make(model())
        return describe_optimizer(optimizer, schedule and schedule(optimizer))

    def adam(made, **settings):
        return torch.optim.Adam(made.parameters(), **settings)

    base = describe(adam)
    assert json.loads(json.dumps(base)) == base
    assert base == describe(adam)
    assert diff(base, describe(lambda made: torch.optim.AdamW(made.parameters())))[0] == "class: 'Adam' -> 'AdamW'"
    for settings in ({"lr": 0.5}, {"betas": (0.5, 0.9)}, {"eps": 1e-5}, {"weight_decay": 0.1}, {"amsgrad": True}):
        assert len(diff(base, describe(lambda made, settings=settings: adam(made, **settings)))) == 1
    split = describe(lambda made: torch.optim.Adam([{"params": layer.parameters()} for layer in made]))
    assert len(diff(base, split)) == 1
    cosine = describe(adam, lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5))
    other = describe(adam, lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6))
    assert "scheduler: None -> 'CosineAnnealingLR'" in diff(base, cosine)
    assert diff(cosine, other) == ["scheduler_state.T_max: 5 -> 6"]


def test_data():
    """Class, length, order and the data set's own fingerprint count."""
    data = ArrayDataset(torch.zeros(9))
    described = describe_data(data, ExactSampler(9, 4))
    assert described == {"class": "ArrayDataset", "num_samples": 9, "shuffle": True, "fingerprint": data.fingerprint}
    assert describe_data([1], ExactSampler(1, 4))["fingerprint"] is None
    data.fingerprint = "abc"
    assert describe_data(data, ExactSampler(9, 4, shuffle=False)) == {
        "class": "ArrayDataset", "num_samples": 9, "shuffle": False, "fingerprint": "abc",
    }  # fmt: skip


def test_diff():
    """One line per differing field with path, old and new, in order; nested, missing and new ones too."""
    old = {"a": 1, "b": {"c": [1, 2], "d": None}, "gone": "x", "same": {"y": 0}}
    new = {"b": {"c": [1, 3], "d": {"e": 1}}, "a": 1.5, "same": {"y": 0}, "more": False}
    assert diff(old, new) == [
        "a: 1 -> 1.5",
        "b.c: [1, 2] -> [1, 3]",
        "b.d: None -> {'e': 1}",
        "gone: 'x' -> None",
        "more: None -> False",
    ]
    assert diff(old, old) == []


@pytest.mark.parametrize("schedule", [None, torch.optim.lr_scheduler.ExponentialLR])
def test_a_tensor_as_learning_rate_is_a_number(schedule, tmp_path):
    """A learning rate given as a tensor stands in the score as its number; another number is another score."""

    def train(lr, epochs):
        with unisono.Run(seed=0, replicas=2, out=tmp_path / "run") as run:
            model = nn.Linear(4, 2)
            optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(lr))
            model, optimizer = run.prepare(model, optimizer, schedule and schedule(optimizer, 0.5))
            loader = run.loader(ArrayDataset(torch.eye(4), torch.tensor([0, 1, 0, 1])), batch_size=2)
            for batch in run.steps(loader, epochs=epochs):
                run.step(batch, lambda micro: nn.functional.cross_entropy(model(micro.x), micro.y))
            return json.loads((tmp_path / "run" / "score.json").read_text())["optimizer"]["groups"][0]["lr"]

    assert train(0.25, 1) == train(0.25, 2) == 0.25
    with pytest.raises(ScoreMismatch, match=r"lr: 0\.25 -> 0\.5"):
        train(0.5, 3)


class Own:
    """Samples of its own, which a test may change; named by nothing but class and length."""

    def __init__(self, toy):
        self.x, self.y = toy.x.clone(), toy.y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


def train_on(toy, data, *, epochs=1, **settings):
    with toy.run(**settings) as (run, model, _):
        for batch in run.steps(run.loader(data, batch_size=12), epochs=epochs):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        return run.fingerprint()


DATA = {
    "made with the rank": lambda toy, rank: ArrayDataset(toy.x + rank, toy.y),
    "own class": lambda toy, rank: [(toy.x[index] + rank, toy.y[index]) for index in range(56)],
    "unseeded split": lambda toy, rank: random_split(toy.data, [40, 16], torch.Generator().manual_seed(rank))[0],
    "shorter": lambda toy, rank: [(toy.x[0], toy.y[0])] * (40 + rank),
}


@pytest.mark.parametrize("name", DATA)
def test_data_that_differs_by_rank(toy, monkeypatch, name):
    """It is refused on all ranks before the first step; the control: unseen, another result would come of it."""
    of_rank = DATA[name]

    def play(transport):
        return train_on(toy, of_rank(toy, transport.rank), transport=transport)

    with pytest.raises(RankDivergence, match=r"rank \d and rank \d have different data: (hash of sample \d+|data\.)"):
        run_ranks(play, 2)
    assert train_on(toy, of_rank(toy, 0)) == run_ranks(lambda one: train_on(toy, of_rank(toy, 0), transport=one), 2)[1]
    if name in ("own class", "unseeded split"):
        monkeypatch.setattr(score, "first_samples", lambda loader: {})
        monkeypatch.setattr("unisono.strategies.witness.first_loss.FirstLoss.compare", lambda *_: None)
        assert run_ranks(play, 2)[0] != train_on(toy, of_rank(toy, 0))


def test_a_run_goes_on_with_its_own_data_only(toy, tmp_path, monkeypatch):
    """Other samples of the same class and number are another score; a run of before knows none, and goes on."""
    data, other = Own(toy), Own(toy)
    other.x += 0.5
    monkeypatch.setattr(same_samples, "_ENOUGH_S", 60)  # a loaded machine looks at as many
    alone = train_on(toy, data, epochs=3)
    train_on(toy, data, out=tmp_path / "run")
    recorded = json.loads((tmp_path / "run" / "score.json").read_text())["sample_hashes"]
    assert len(recorded) == 4
    with pytest.raises(ScoreMismatch, match=r"hash of sample \d+: '\w+' -> '\w+'\n.*\nHint: the data, its"):
        train_on(toy, other, epochs=3, out=tmp_path / "run")
    assert train_on(toy, data, epochs=3, out=tmp_path / "run") == alone
    assert train_on(toy, other, epochs=4, out=tmp_path / "run", allow_drift=True) != train_on(toy, data, epochs=4)
    monkeypatch.setattr(score, "first_samples", lambda loader: {})
    train_on(toy, data, out=tmp_path / "old")
    monkeypatch.undo()
    assert train_on(toy, data, epochs=3, out=tmp_path / "old") == alone
    assert "sample_hashes" not in json.loads((tmp_path / "old" / "score.json").read_text())


def test_drift_is_not_allowed_between_ranks(toy):
    """Even where a run may go on with other data, all ranks do so alike."""
    with pytest.raises(RankDivergence, match="have different data"):
        run_ranks(lambda one: train_on(toy, DATA["own class"](toy, one.rank), transport=one, allow_drift=True), 2)


def test_data_may_change_between_loops(toy):
    """By the program, alike on all ranks: only the first loop's samples are looked at."""

    def play(transport=None):
        data = Own(toy)
        with toy.run(**({"transport": transport} if transport else {})) as (run, model, _):
            for epoch in range(2):
                for batch in run.steps(run.loader(data, batch_size=12), epochs=epoch + 1):
                    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
                data.x += 1
            return run.fingerprint()

    assert run_ranks(play, 2) == [play()] * 2


def test_of_samples_what_both_know_counts():
    """An older run has no hashes, and of samples that took long there are fewer."""
    assert diff({"sample_hashes": {"a": "1", "b": "2"}}, {"sample_hashes": {"b": "3", "c": "4"}}) == [
        "sample_hashes.b: '2' -> '3'"
    ]
    assert diff({}, {"sample_hashes": {"a": "1"}}) == diff({"sample_hashes": {"a": "1"}}, {}) == []
