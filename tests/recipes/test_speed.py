"""Options for speed: each keeps parameters and shapes, gives close numbers, and says by its bits that it was there."""

import importlib
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from unisono.data.sets.texts import pack
from unisono.recipes.catalog import Options
from unisono.recipes.gated_cnn import GatedCNN
from unisono.recipes.images import ImageCNN
from unisono.recipes.mnist import SimpleCNN
from unisono.recipes.speed import channels_last, one_cycle, tune
from unisono.recipes.text_training import PRESETS, build


def options(**more) -> Options:
    return Options(recipe="imdb", model="gcnn", epochs=1, batch_size=8, replicas=1, **more)


TEXTS = pack([(torch.arange(length) % 40 + 1).int().numpy() for length in (5, 150, 400)])
LABELS = torch.tensor([0, 1, 0])


def trained(model: nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
    scores = model(TEXTS)
    F.cross_entropy(scores, LABELS).backward()
    return scores.detach(), [parameter.grad for parameter in model.parameters()]


def gated() -> GatedCNN:
    torch.manual_seed(0)
    return GatedCNN(50)


@pytest.mark.slow
@pytest.mark.timeout(900)  # the compiler, on a loaded machine
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own compiler
def test_an_option_gives_close_numbers():
    """Scores and gradients near the plain ones; names of parameters stay."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    plain, fast = gated(), tune(gated(), options(compile=True))
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in plain.named_parameters()]
    (expected, gradients), (found, others) = trained(plain), trained(fast)
    assert torch.allclose(found, expected, atol=2e-3)
    for ours, theirs in zip(others, gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=0.02 * float(theirs.abs().max()) + 1e-7)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's own compiler
def test_the_compiler_gets_the_recipes_models(monkeypatch):
    """The compiler is called for each; the control: of a class of torch's own, `compile` makes nothing."""
    graphs: list[torch.fx.GraphModule] = []
    # In place of what writes code for a graph, which takes minutes.
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    monkeypatch.setattr(compile_fx, "compile_fx", lambda graph, *_, **__: graphs.append(graph) or graph.forward)
    images = torch.randn(4, 1, 28, 28)
    for model, data in ((SimpleCNN(), images), (ImageCNN(1, 5), images), (build("bag", 50, 2, {}), TEXTS)):
        graphs.clear()
        tune(model, options(compile=True))(data).sum().backward()
        assert graphs, type(model).__name__
    graphs.clear()
    tune(nn.Sequential(nn.Linear(4, 2)), options(compile=True))(torch.randn(3, 4))
    assert not graphs


def test_without_options_nothing_changes():
    """The control: plain and tuned models agree to the bit."""
    assert torch.equal(trained(gated())[0], trained(tune(gated(), options()))[0])


def test_channels_last_keeps_values():
    """Another layout of the same weights."""
    torch.manual_seed(0)
    model = SimpleCNN()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    channels_last(model)
    assert model.conv2.weight.is_contiguous(memory_format=torch.channels_last)
    assert not model.conv2.weight.is_contiguous()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_one_cycle_rises_and_falls():
    """From little to each group's own rate to nothing, over all steps; one step is enough."""
    first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 5.0}], lr=0.5)
    schedule, rates = one_cycle(optimizer, steps=100), []
    for _ in range(100):
        rates.append(optimizer.param_groups[0]["lr"])
        assert optimizer.param_groups[1]["lr"] == pytest.approx(10 * rates[-1])
        optimizer.step()
        if len(rates) < 100:
            schedule.step()
    assert max(rates) == pytest.approx(0.5)
    assert rates.index(max(rates)) == 29
    assert rates[-1] < 1e-4
    one_cycle(optimizer, steps=1)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_both_models(name):
    """The bag takes what it can of the regularisation."""
    for kind in ("gcnn", "bag"):
        assert build(kind, 50, 3, PRESETS[name].regularise or {})(TEXTS).shape == (3, 3)
