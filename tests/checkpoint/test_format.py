"""What a checkpoint holds is enough to go on bit for bit, for every optimizer and schedule."""

import json

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from unisono.checkpoint.format import (
    fingerprint,
    from_json,
    pack,
    parameter_names,
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


def optimizers():
    """Every optimizer of torch that takes dense gradients without a closure, in its variants that the CPU has."""
    optim = torch.optim
    return {
        "Adadelta": optim.Adadelta,
        "Adafactor": optim.Adafactor,
        "Adagrad": lambda p: optim.Adagrad(p, lr=0.1, lr_decay=0.1),
        "Adam": lambda p: optim.Adam(p, foreach=True),
        "Adam single": lambda p: optim.Adam(p, foreach=False, amsgrad=True),
        "Adam fused": lambda p: optim.Adam(p, fused=True),
        "Adam tensor lr": lambda p: optim.Adam(p, lr=torch.tensor(0.01), foreach=False),
        "AdamW amsgrad": lambda p: optim.AdamW(p, amsgrad=True, foreach=True),
        "Adamax": lambda p: optim.Adamax(p, foreach=True),
        "ASGD": lambda p: optim.ASGD(p, t0=2, foreach=True),
        "ASGD single": lambda p: optim.ASGD(p, t0=2, foreach=False),
        "NAdam": lambda p: optim.NAdam(p, foreach=True),
        "NAdam single": lambda p: optim.NAdam(p, foreach=False, decoupled_weight_decay=True, weight_decay=0.1),
        "RAdam": lambda p: optim.RAdam(p, foreach=True),
        "RMSprop": lambda p: optim.RMSprop(p, momentum=0.5, centered=True, foreach=True),
        "Rprop": lambda p: optim.Rprop(p, foreach=True),
        "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    }


def trained(make, dtype, seed, steps):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(12, 2)).to(dtype)
    model.to(memory_format=torch.channels_last)
    optimizer = make(model.parameters())
    step_on(model, optimizer, dtype, range(steps))
    return model, optimizer


def step_on(model, optimizer, dtype, steps):
    for step in steps:
        data = torch.randn(4, 2, 3, 3, generator=torch.Generator().manual_seed(step), dtype=torch.float32).to(dtype)
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()


def all_bits(model, optimizer):
    """Return weights and optimizer state as bytes, with dtype and layout."""
    found = {f"model {name}": tensor for name, tensor in model.named_parameters()}
    for index, state in optimizer.state_dict()["state"].items():
        found |= {f"{index} {key}": value for key, value in state.items()}
    return {
        name: (str(t.dtype), t.stride(), t.detach().reshape(-1).view(torch.uint8).tolist())
        if isinstance(t, torch.Tensor) else t for name, t in found.items()
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", optimizers())
def test_every_optimizer_goes_on_with_the_same_bits(name, dtype):
    """After a round trip, state has its dtype, layout and bits again, and so has the next step."""
    make = optimizers()[name]
    model, optimizer = trained(make, dtype, 0, 3)
    state = through_the_disk(pack(model, optimizer, None, {}))
    resumed = trained(make, dtype, 1, 0)
    unpack(state, *resumed, None)
    assert all_bits(*resumed) == all_bits(model, optimizer)
    for one in ((model, optimizer), resumed):
        step_on(*one, dtype, range(3, 5))
    assert all_bits(*resumed) == all_bits(model, optimizer)


def test_torch_alone_would_change_the_state():
    """The control: ``load_state_dict`` as it is rounds NAdam's scalar to the parameter's dtype."""
    model, optimizer = trained(optimizers()["NAdam"], torch.bfloat16, 0, 3)
    resumed = trained(optimizers()["NAdam"], torch.bfloat16, 1, 0)
    resumed[0].load_state_dict(model.state_dict())
    resumed[1].load_state_dict(optimizer.state_dict())
    assert all_bits(*resumed) != all_bits(model, optimizer)


def test_layers_frozen_by_hand_come_back_frozen():
    """What was frozen or thawed while training is so again after resume; the control: it was not before."""
    model, optimizer, _ = build("adam", "none", 0)
    train(model, optimizer, None, range(2))
    model.last.weight.requires_grad_(False)
    model.frozen.bias.requires_grad_(True)
    state = through_the_disk(pack(model, optimizer, None, {}))
    resumed, other, _ = build("adam", "none", 1)
    assert resumed.last.weight.requires_grad
    unpack(state, resumed, other, None)
    told = {name: parameter.requires_grad for name, parameter in resumed.named_parameters()}
    assert told == {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    assert not told["last.weight"]
    assert told["frozen.bias"]


class Mean:
    """Something a user registers: tensors and plain values, nested."""

    def __init__(self):
        self.state = {"ema": {"w": torch.zeros(3), "steps": [0]}, "name": "ema"}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_registered_objects_come_back():
    """Objects given by name get their nested state back, tensors included; other names are refused before a change."""
    model, optimizer, _ = build("sgd", "none", 0)
    mean = Mean()
    mean.state["ema"] |= {"w": torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), "steps": [4, (5, None)]}
    state = through_the_disk(pack(model, optimizer, None, {}, {"mean": mean}))
    resumed, other, _ = build("sgd", "none", 1)
    before = fingerprint(resumed)
    for wrong in ({}, {"meen": Mean()}, {"mean": Mean(), "more": Mean()}):
        with pytest.raises(CheckpointError, match="registered objects mean, this run has"):
            unpack(state, resumed, other, None, wrong)
    assert fingerprint(resumed) == before
    found = Mean()
    unpack(state, resumed, other, None, {"mean": found})
    assert found.state["ema"]["w"].dtype == torch.float64
    assert found.state["ema"]["w"].tolist() == [1, 2, 3]
    assert found.state["ema"]["steps"] == [4, (5, None)]
    assert found.state["name"] == "ema"


class Counting(nn.Linear):
    """Keeps extra state, with a tensor in it."""

    def __init__(self):
        super().__init__(2, 2)
        self.extra = {"seen": 0, "last": torch.zeros(2)}

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def test_extra_state_of_modules_comes_back():
    """What a module keeps through ``get_extra_state`` is saved and restored."""
    model = Counting()
    model.extra = {"seen": 7, "last": torch.ones(2)}
    state = through_the_disk(pack(model, torch.optim.SGD(model.parameters()), None, {}))
    resumed = Counting()
    unpack(state, resumed, torch.optim.SGD(resumed.parameters()), None)
    assert resumed.extra["seen"] == 7
    assert resumed.extra["last"].tolist() == [1, 1]


@pytest.mark.parametrize("where", ["optimizer", "model_extra", "objects", "frozen"])
@pytest.mark.parametrize("value", [None, 5, [], "x", {"a": 1}], ids=repr)
def test_strange_values_are_refused_before_a_change(where, value):
    """A state that verifies but is not what a run writes is a checkpoint error, or harmless; never another error."""
    model, optimizer, _ = build("adam", "none", 0)
    state = through_the_disk(pack(model, optimizer, None, {}))
    state.values[where] = value
    before = fingerprint(model)
    try:
        unpack(state, model, optimizer, None)
    except CheckpointError:
        assert fingerprint(model) == before


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
