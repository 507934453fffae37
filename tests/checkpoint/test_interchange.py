"""Weights go out to plain files and come back from them, wrappers' prefixes and tied tensors included."""

import pytest
import safetensors.torch
import torch
from torch import nn

import unisono
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
    with pytest.raises(
        ConfigError, match=r"got str as the model and Linear as the path. Hint: unisono\.load_weights\("
    ):
        load_weights("runs/mine", nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match=r"got 'runs/none' \(in '.*'\), where nothing is\. Hint: "):
        load_weights(nn.Linear(1, 1), "runs/none")
    (tmp_path / "model.pt").touch()
    (tmp_path / "model1.py").touch()
    with pytest.raises(
        CheckpointError, match=r"model1\.pt' \(in .*nothing is\. Hint: did you mean '[^']*/model\.pt'\?$"
    ):
        load_weights(nn.Linear(1, 1), tmp_path / "model1.pt")
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


def spoilt(change):
    """Return a state_dict whose third tensor, of seven, is changed; those before and after it have other values."""
    named = {name: tensor + 1 for name, tensor in build(0).state_dict().items()}
    name = list(named)[2]
    named[name] = change(named[name])
    return named, name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensor: tensor.to_sparse(), "the file's tensor is sparse_coo, expected a dense one"),
        (lambda tensor: tensor.to(torch.complex64), "complex64 into torch.float32 would drop the imaginary parts"),
        (lambda tensor: torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8), "is quantized, expected a dense one"),
        (lambda tensor: tensor.to("meta"), "the file's tensor is on the meta device"),
    ],
)
def test_all_or_nothing(tmp_path, change, said):
    """One tensor in the middle that cannot be copied as it is: it is named, and no other has been copied."""
    named, name = spoilt(change)
    torch.save(named, tmp_path / "x.pt")
    other = build(1)
    before = fingerprint(other)
    with pytest.raises(CheckpointError, match=f"x.pt cannot fill Net: .*{said}") as caught:
        load_weights(other, tmp_path / "x.pt")
    assert fingerprint(other) == before
    assert name in str(caught.value) or "tied" in str(caught.value)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: build(1).to("meta"), "the model's tensor is on the meta device"),
        (lambda: frozen_in_inference(build(1)), "cannot be written in place"),
        (lambda: expanded(build(1)), "cannot be written in place"),
    ],
)
def test_a_model_that_cannot_be_filled(tmp_path, make, said):
    """Weights are not dropped into nothing, and a tensor that cannot be written is found before the first is."""
    torch.save(build(0).state_dict(), tmp_path / "x.pt")
    model = make()
    before = None if model.last.weight.is_meta else fingerprint(model)
    with pytest.raises(CheckpointError, match=said):
        load_weights(model, tmp_path / "x.pt")
    assert before is None or fingerprint(model) == before


def frozen_in_inference(model):
    with torch.inference_mode():
        model.norm.running_mean = torch.zeros(3)
    return model


def expanded(model):
    model.norm.running_mean = torch.zeros(1).expand(3)
    return model


def test_fractions_do_not_become_whole_numbers(tmp_path):
    """A count that was averaged is refused, as copying would cut it; a whole one in another dtype fits."""
    named = build(0).state_dict()
    for count, fits in ((3.0, True), (3.5, False)):
        torch.save({**named, "norm.num_batches_tracked": torch.tensor(count)}, tmp_path / "x.pt")
        other = build(1)
        if fits:
            load_weights(other, tmp_path / "x.pt")
            assert other.norm.num_batches_tracked == 3
        else:
            with pytest.raises(
                CheckpointError, match=r"num_batches_tracked: torch\.float32 into torch\.int64 would change"
            ):
                load_weights(other, tmp_path / "x.pt")


def test_a_complex_model_takes_what_it_can(tmp_path):
    """Real and complex weights both fit a complex model, exactly."""
    model = nn.Linear(2, 2, dtype=torch.complex64)
    for value in (torch.ones(2, 2), torch.full((2, 2), 1 + 2j)):
        torch.save({"weight": value, "bias": torch.zeros(2)}, tmp_path / "x.pt")
        load_weights(model, tmp_path / "x.pt")
        assert torch.equal(model.weight, value.to(torch.complex64))


def test_the_best_checkpoint_by_its_metric(tmp_path):
    """`load_weights(best=)` takes the one that the policy has kept, the newest among equals; else what there is."""
    losses = {2: 0.5, 4: 0.2, 6: 0.2, 8: 0.9}
    out, kept = tmp_path / "run", {}
    policy = unisono.CheckpointPolicy(keep=1, best="val_loss", best_mode="min")
    with unisono.Run(seed=1, replicas=1, out=out, checkpoint_every=2, checkpoints=policy) as run:
        model = torch.nn.Linear(4, 2)
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
        data = unisono.ArrayDataset(torch.rand(64, 4), torch.arange(64) % 2)
        for batch in run.steps(run.loader(data, batch_size=8), epochs=1):
            run.step(batch, lambda micro: torch.nn.functional.cross_entropy(model(micro.x), micro.y))
            if batch.step in losses:
                run.record(val_loss=losses[batch.step])
                kept[batch.step] = model.weight.detach().clone()
    found = torch.nn.Linear(4, 2)
    unisono.load_weights(found, out)
    assert torch.equal(found.weight, kept[8])
    unisono.load_weights(found, out, best="val_loss")
    assert torch.equal(found.weight, kept[6])
    unisono.load_weights(found, out, best="val_loss", best_mode="max")
    assert torch.equal(found.weight, kept[8])
    with pytest.raises(
        unisono.CheckpointError, match=r"best as a score of the checkpoints in .* \(val_loss\), got 'val_los'"
    ):
        unisono.load_weights(found, out, best="val_los")
    with pytest.raises(unisono.ConfigError, match=r"best_mode as one of max, min, got 'lowest'"):
        unisono.load_weights(found, out, best="val_loss", best_mode="lowest")
