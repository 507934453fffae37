"""What a checkpoint holds is enough to go on bit for bit, for every optimizer and schedule."""

import json
from collections import Counter, OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler

from unisono.checkpoint.format import (
    fingerprint,
    from_json,
    pack,
    parameter_names,
    to_json,
    unique_tensors,
    unpack,
)
from unisono.errors import CheckpointError


class Net(nn.Module):
    """Batch normalisation for buffers, a tied weight, a frozen one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.last = nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.frozen(torch.relu(self.tied(self.norm(self.first(x))))))


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, betas=(0.8, 0.95)),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
}


def decay(epoch):
    return 0.9**epoch


def sequential(optimizer):
    parts = [lr_scheduler.LinearLR(optimizer, total_iters=2), lr_scheduler.StepLR(optimizer, 2, gamma=0.5)]
    return lr_scheduler.SequentialLR(optimizer, parts, milestones=[3])


SCHEDULERS = {
    "none": lambda optimizer: None,
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=7),
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, max_lr=0.3, total_steps=9),
    "steps": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, milestones=[2, 5, 5], gamma=0.3),
    "sequential": sequential,
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, decay),
}


def build(optimizer, scheduler, seed):
    torch.manual_seed(seed)
    model = Net()
    built = OPTIMIZERS[optimizer](model.parameters())
    return model, built, SCHEDULERS[scheduler](built)


def train(model, optimizer, scheduler, steps):
    rates = []
    for step in steps:
        data = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        rates.append([group["lr"] for group in optimizer.param_groups])
    return rates


def through_the_disk(state):
    """Return the state as a reader would get it: JSON read back, tensors copied."""
    tensors = {stem: {name: t.clone() for name, t in part.items()} for stem, part in state.tensors.items()}
    return type(state)(tensors=tensors, values=json.loads(json.dumps(state.values)))


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [(optimizer, "none") for optimizer in OPTIMIZERS]
    + [("momentum", scheduler) for scheduler in SCHEDULERS if scheduler != "none"]
    + [("adamw", "one cycle"), ("adam", "sequential")],
)
def test_a_restored_run_goes_on_bit_for_bit(optimizer, scheduler):
    """After pack, JSON and unpack into other weights, weights, rates and moments continue as if never interrupted."""
    whole = build(optimizer, scheduler, 0)
    train(*whole, range(4))
    state = through_the_disk(pack(*whole, {"note": (1, 2)}))
    rates = train(*whole, range(4, 8))
    resumed = build(optimizer, scheduler, 1)
    assert fingerprint(resumed[0]) != fingerprint(whole[0])  # the control
    unpack(state, *resumed)
    assert train(*resumed, range(4, 8)) == rates
    assert fingerprint(resumed[0]) == fingerprint(whole[0])
    left, right = pack(*whole, {}), pack(*resumed, {})
    assert left.values == right.values
    assert left.tensors["optimizer"].keys() == right.tensors["optimizer"].keys()
    assert all(torch.equal(left.tensors["optimizer"][k], t) for k, t in right.tensors["optimizer"].items())
    assert from_json(state.values)["note"] == (1, 2)


def test_forgetting_the_optimizer_would_be_noticed():
    """The control: with the model's weights alone the continuation differs."""
    whole = build("momentum", "cosine", 0)
    train(*whole, range(4))
    resumed = build("momentum", "cosine", 1)
    resumed[0].load_state_dict(whole[0].state_dict())
    train(*whole, range(4, 6))
    train(*resumed, range(4, 6))
    assert fingerprint(resumed[0]) != fingerprint(whole[0])


def test_tied_weights_are_saved_once():
    """A shared tensor appears under its first name only, and stays shared after unpack."""
    model, optimizer, _ = build("adam", "none", 0)
    names = list(unique_tensors(model))
    assert names == sorted(names)
    assert "first.weight" in names
    assert "tied.weight" not in names
    assert {"norm.running_mean", "norm.num_batches_tracked", "frozen.weight"} <= set(names)
    unpack(through_the_disk(pack(model, optimizer, None, {})), *build("adam", "none", 1))
    assert model.tied.weight is model.first.weight


def grouped(order, seed=0):
    torch.manual_seed(seed)
    model = Net()
    groups = {
        "slow": {"params": [*model.first.parameters(), *model.norm.parameters()], "lr": 0.001},
        "fast": {"params": list(model.last.parameters()), "lr": 0.5, "momentum": 0.9},
    }
    return model, torch.optim.SGD([groups[name] for name in order], lr=0.1), None


def test_several_groups_keep_their_settings():
    """Each group's own settings and moments come back to its own parameters."""
    whole = grouped(["slow", "fast"])
    train(*whole, range(3))
    whole[1].param_groups[1]["lr"] = 0.25
    state = through_the_disk(pack(*whole, {}))
    resumed = grouped(["slow", "fast"], seed=1)
    unpack(state, *resumed)
    assert [group["lr"] for group in resumed[1].param_groups] == [0.001, 0.25]
    train(*whole, range(3, 5))
    train(*resumed, range(3, 5))
    assert fingerprint(resumed[0]) == fingerprint(whole[0])


def test_a_checkpoint_does_not_depend_on_the_order_of_the_groups():
    """Groups listed in another order get back their own settings, or are refused; never each other's."""
    whole = grouped(["slow", "fast"])
    train(*whole, range(3))
    state = through_the_disk(pack(*whole, {}))
    resumed = grouped(["fast", "slow"], seed=1)
    try:
        unpack(state, *resumed)
    except CheckpointError:
        return
    rates = {id(parameter): group["lr"] for group in resumed[1].param_groups for parameter in group["params"]}
    assert rates[id(resumed[0].last.weight)] == 0.5
    assert rates[id(resumed[0].first.weight)] == 0.001


def test_another_number_of_groups_is_refused():
    """The same parameters in one group instead of two are another optimizer, said as a checkpoint error."""
    state = through_the_disk(pack(*grouped(["slow", "fast"]), {}))
    model = grouped(["slow", "fast"])[0]
    parameters = [*model.first.parameters(), *model.norm.parameters(), *model.last.parameters()]
    with pytest.raises(CheckpointError):
        unpack(state, model, torch.optim.SGD(parameters, lr=0.1), None)


def test_the_optimizer_of_another_model_is_refused():
    """Parameters that the model does not have are counted, with the fix."""
    model, optimizer, _ = build("adam", "none", 0)
    with pytest.raises(CheckpointError, match=r"holds 8 of 8 parameters.*Hint: create the optimizer"):
        pack(Net(), optimizer, None, {})
    assert list(parameter_names(model, optimizer).values())[:2] == ["first.weight", "norm.weight"]


class Wider(Net):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)


class Deeper(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(2, 2)


@pytest.mark.parametrize(("other", "words"), [(Wider, r"last\.weight: \(2, 4\) -> \(3, 4\)"), (Deeper, r"extra")])
def test_another_model_is_refused_and_left_alone(other, words):
    """Names or shapes that differ are listed, and nothing has been changed by then."""
    state = pack(*build("adam", "none", 0), {})
    model = other()
    optimizer = torch.optim.Adam(model.parameters())
    before = fingerprint(model)
    with pytest.raises(CheckpointError, match=words):
        unpack(state, model, optimizer, None)
    assert fingerprint(model) == before
    assert optimizer.state_dict()["state"] == {}


def test_an_optimizer_of_other_parameters_is_refused_and_the_model_left_alone():
    """An optimizer that trains only a part of the model cannot take over the state of one that trained all."""
    state = pack(*build("adam", "none", 0), {})
    model = build("adam", "none", 1)[0]
    before = fingerprint(model)
    with pytest.raises(CheckpointError, match="other parameters"):
        unpack(state, model, torch.optim.Adam(model.last.parameters()), None)
    assert fingerprint(model) == before


class Odd:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": {"b": [1, {2, 3}]}}, r"state\.scheduler\.a\.b\[1\]"),
        ({"f": decay}, r"state\.scheduler\.f"),
        ({"t": (1, b"x")}, r"state\.scheduler\.t\[1\]"),
        ({"c": {5: object()}}, r"state\.scheduler\.c\[5\]"),
        ({"x": torch.ones(1)}, r"state\.scheduler\.x"),
    ],
)
def test_what_would_need_pickle_is_named(value, place):
    """A value that is no plain one is refused with the place where it stands and its type."""
    model, optimizer, _ = build("sgd", "none", 0)
    with pytest.raises(CheckpointError, match=f"cannot save {place}: expected"):
        pack(model, optimizer, Odd(value), {})


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = (
    st.text() | st.integers() | st.tuples(st.integers(), st.text()) | st.sampled_from(["$tuple", "$dict", "$counter"])
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.integers(), st.integers(), max_size=4).map(Counter)
    ),
    max_leaves=15,
)


def same(left, right):
    """Whether two values are equal, types included all the way down."""
    if type(left) is not type(right):
        return False
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return left == right and repr(left) == repr(right)


@given(values)
def test_json_round_trip(value):
    """Tuples, counters, integer keys, signed zeros and keys that look like our own marks come back as they were."""
    assert same(from_json(json.loads(json.dumps(to_json(value, "x")))), value)


def test_json_round_trip_of_what_is_nearly_a_dictionary():
    """NaN and infinity survive; an ordered dictionary comes back with the same items in the same order."""
    value = {"nan": float("nan"), "inf": -float("inf"), "o": OrderedDict([("b", 1), ("a", 2)])}
    back = from_json(json.loads(json.dumps(to_json(value, "x"))))
    assert back["nan"] != back["nan"]
    assert back["inf"] == -float("inf")
    assert list(back["o"].items()) == [("b", 1), ("a", 2)]
    assert not same((1,), [1])  # the control of `same`
    assert not same(Counter(a=1), {"a": 1})


class Holder(nn.Module):
    def __init__(self, tensor, name="w", *, is_buffer=False):
        super().__init__()
        if is_buffer:
            self.register_buffer(name, tensor)
        else:
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


def test_fingerprint_sees_every_bit():
    """One flipped bit anywhere, also the sign of a zero, in parameters and in buffers, gives another fingerprint."""
    base = torch.arange(6, dtype=torch.float32)
    seen = {fingerprint(Holder(base.clone()))}
    for place in range(6):
        for bit in (0, 22, 31):
            changed = base.clone()
            changed.view(torch.int32)[place] ^= -(2**31) if bit == 31 else 1 << bit
            seen.add(fingerprint(Holder(changed)))
    assert len(seen) == 1 + 6 * 3
    norm = nn.BatchNorm1d(2)
    before = fingerprint(norm)
    norm.running_var[1] = 1.5
    assert fingerprint(norm) != before


def test_fingerprint_sees_name_dtype_and_shape():
    """The same bytes under another name, dtype or shape are another model."""
    zeros = torch.zeros(6)
    models = [
        Holder(zeros),
        Holder(zeros, "v"),
        Holder(torch.zeros(6, dtype=torch.int32)),
        Holder(zeros.view(2, 3)),
        Holder(zeros.view(3, 2)),
    ]
    assert len({fingerprint(model) for model in models}) == len(models)


def test_fingerprint_is_of_values_not_of_memory():
    """Memory format, gradients, mode and scalar or empty tensors do not disturb it; tied weights count once."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3))
    before = fingerprint(model)
    model.to(memory_format=torch.channels_last)
    model.eval()
    model(torch.ones(1, 2, 5, 5)).sum().backward()
    assert fingerprint(model) == before
    assert len(fingerprint(Holder(torch.tensor(1.0)))) == len(fingerprint(Holder(torch.empty(0)))) == 64


def test_fingerprint_golden():
    """This value never changes: results stay comparable between versions."""
    assert fingerprint(Holder(torch.arange(4, dtype=torch.float32))) == (
        "f0807e3841f49689fb4d494caa1488deabe6defbe80e733627bbaa5fe1b9829d"
    )
