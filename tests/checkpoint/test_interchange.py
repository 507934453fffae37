"""Weights go out to plain files and come back from them, wrappers' prefixes and tied tensors included."""

import pytest
import safetensors.torch
import torch
from torch import nn

from unisono.checkpoint.format import fingerprint, pack
from unisono.checkpoint.interchange import export_weights, load_weights, state_dict_of
from unisono.checkpoint.store import read, write
from unisono.errors import CheckpointError, ConfigError


class Net(nn.Module):
    def __init__(self, out=2):
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.first.weight
        self.last = nn.Linear(3, out)


def build(seed, out=2):
    torch.manual_seed(seed)
    return Net(out)


@pytest.fixture
def saved(tmp_path):
    """A model and the directory of its checkpoint, in a run directory."""
    model = build(0)
    state = pack(model, torch.optim.Adam(model.parameters()), None, {})
    return model, write(tmp_path / "run" / "checkpoints", 4, state)


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".bin", ".safetensors"])
def test_exported_weights_come_back(saved, tmp_path, suffix):
    """Each format gives the same bits, to torch's own loader and to ours."""
    model, path = saved
    file = tmp_path / f"weights{suffix}"
    assert export_weights(read(path)[1], file) == []
    plain = safetensors.torch.load_file(file) if suffix == ".safetensors" else torch.load(file, weights_only=True)
    assert plain.keys() == model.state_dict().keys()
    other = build(1)
    assert fingerprint(other) != fingerprint(model)
    other.load_state_dict(plain)
    assert fingerprint(other) == fingerprint(model)
    other = build(2)
    found = load_weights(other, file)
    assert (found.missing, found.unexpected, found.prefix) == ((), (), "")
    assert fingerprint(other) == fingerprint(model)
    assert other.tied.weight is other.first.weight


@pytest.mark.parametrize("where", ["run", "checkpoints", "step"])
def test_from_a_run(saved, tmp_path, where):
    """A run directory, its checkpoints, or one of them can be named instead of a file."""
    model, path = saved
    other = build(1)
    load_weights(other, {"run": tmp_path / "run", "checkpoints": path.parent, "step": path}[where])
    assert fingerprint(other) == fingerprint(model)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_what_wrappers_leave_is_understood(tmp_path, prefix, wrapper):
    """Names that DDP or torch.compile have prefixed, and state_dicts inside a dictionary, fit all the same."""
    model, other = build(0), build(1)
    named = {prefix + name: tensor for name, tensor in model.state_dict().items()}
    torch.save(named if wrapper is None else {wrapper: named, "epoch": 3}, tmp_path / "x.pt")
    assert load_weights(other, tmp_path / "x.pt").prefix == prefix
    assert fingerprint(other) == fingerprint(model)


def test_a_models_own_prefix_stays(tmp_path):
    """Where the model's own names begin with ``module.``, nothing is cut off."""
    model, other = nn.ModuleDict({"module": build(0)}), nn.ModuleDict({"module": build(1)})
    torch.save(model.state_dict(), tmp_path / "x.pt")
    assert load_weights(other, tmp_path / "x.pt").prefix == ""
    assert fingerprint(other) == fingerprint(model)


def test_names_that_do_not_fit(tmp_path):
    """Missing and unexpected names are an error that lists them, or are returned; the model is changed last."""
    model, other = build(0), build(1)
    named = dict(model.state_dict())
    del named["last.bias"]
    named["more"] = torch.ones(1)
    torch.save(named, tmp_path / "x.pt")
    before = fingerprint(other)
    with pytest.raises(CheckpointError, match=r"missing last\.bias, unexpected more.*Hint: strict=False"):
        load_weights(other, tmp_path / "x.pt")
    assert fingerprint(other) == before
    bias = other.last.bias.clone()
    found = load_weights(other, tmp_path / "x.pt", strict=False)
    assert (found.missing, found.unexpected) == (("last.bias",), ("more",))
    assert torch.equal(other.last.weight, model.last.weight)
    assert torch.equal(other.last.bias, bias)


def test_shapes_that_do_not_fit(tmp_path):
    """Another shape is refused, strict or not, and nothing has been changed."""
    torch.save(build(0, out=5).state_dict(), tmp_path / "x.pt")
    other = build(1)
    before = fingerprint(other)
    with pytest.raises(CheckpointError, match=r"last\.weight: \(5, 3\) -> \(2, 3\)"):
        load_weights(other, tmp_path / "x.pt", strict=False)
    assert fingerprint(other) == before


def test_the_models_dtype_stays(tmp_path):
    """Weights in half precision fill a model in single precision, which stays so."""
    model, other = build(0), build(1)
    torch.save({name: t.to(torch.float16) if t.is_floating_point() else t for name, t in model.state_dict().items()},
               tmp_path / "x.pt")  # fmt: skip
    load_weights(other, tmp_path / "x.pt")
    assert other.last.weight.dtype == torch.float32
    assert torch.equal(other.last.weight, model.last.weight.half().float())


def test_extra_state_is_exported_where_it_can_be(tmp_path):
    """A ``.pt`` file holds extra state too; a ``.safetensors`` file cannot, and that is said."""

    class Counting(nn.Linear):
        def get_extra_state(self):
            return {"seen": 3}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    model = Counting(1, 1)
    _, state = read(write(tmp_path / "c", 1, pack(model, torch.optim.SGD(model.parameters()), None, {})))
    assert state_dict_of(state)["_extra_state"] == {"seen": 3}
    assert export_weights(state, tmp_path / "x.safetensors") == ["_extra_state"]
    assert export_weights(state, tmp_path / "x.pt") == []
    model.load_state_dict(torch.load(tmp_path / "x.pt", weights_only=True))
    assert model.seen == 3


def test_files_of_another_kind(saved, tmp_path):
    """An unknown suffix, a missing directory, a missing file and an empty run are refused by name."""
    _, state = read(saved[1])
    with pytest.raises(ConfigError, match=r"ends in \.pt.*got 'x\.npz'"):
        export_weights(state, tmp_path / "x.npz")
    with pytest.raises(ConfigError, match="there is no"):
        export_weights(state, tmp_path / "none" / "x.pt")
    with pytest.raises(CheckpointError, match=r"x\.pt"):
        load_weights(build(0), tmp_path / "x.pt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        load_weights(build(0), tmp_path / "empty")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="holds list, expected a state_dict"):
        load_weights(build(0), tmp_path / "list.pt")
