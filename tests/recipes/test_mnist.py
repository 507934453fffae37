"""The MNIST recipe: the small convolutional network of the tutorials."""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from unisono.recipes.catalog import Options
from unisono.recipes.mnist import SimpleCNN, train


@pytest.fixture
def data() -> Path:
    """Where the real files are, or skip."""
    given = os.environ.get("UNISONO_TEST_DATA")
    root = Path(given) if given else Path(__file__).parents[3] / "shared" / "data"
    if not (root / "mnist").is_dir():
        pytest.skip(f"no real data at {root / 'mnist'}; set UNISONO_TEST_DATA to the directory that holds mnist/")
    return root / "mnist"


def test_the_network_has_the_known_size():
    """421,642 parameters, all trained, as in the tutorials it is compared with."""
    assert sum(parameter.numel() for parameter in SimpleCNN().parameters()) == 421_642
    assert all(parameter.requires_grad for parameter in SimpleCNN().parameters())


def test_the_network_returns_log_probabilities():
    """Ten numbers per image whose exponentials add up to one; dropout only in training."""
    torch.manual_seed(0)
    model, images = SimpleCNN(), torch.randn(5, 1, 28, 28)
    assert model(images).shape == (5, 10)
    assert torch.allclose(model(images).exp().sum(dim=1), torch.ones(5))
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))


def test_dropout_drops_single_elements():
    """Dropout after flattening is element-wise, with rates 0.25 and 0.5."""
    rates = [module.p for module in SimpleCNN().modules() if isinstance(module, nn.Dropout)]
    assert rates == [0.25, 0.5]


@pytest.mark.mnist
def test_the_recipe_trains_on_the_real_files(data, tmp_path):
    """A few steps on real images end with a fingerprint, test metrics, and every sample of the limit counted."""
    options = Options(
        recipe="mnist",
        model="cnn",
        epochs=2,
        batch_size=50,
        replicas=2,
        limit=200,
        data=str(data),
        out=str(tmp_path / "run"),
    )
    result = train(options)
    assert (result["steps"], result["epochs"], result["world_size"], result["replicas"]) == (8, 2, 1, 2)
    assert len(result["fingerprint"]) == 64
    assert 0 < result["metrics"]["test_loss"] < 2.4
    assert 0.0 <= result["metrics"]["test_accuracy"] <= 1.0
    assert (tmp_path / "run" / "result.json").exists()
    named = json.loads((tmp_path / "run" / "score.json").read_text())["data"]["fingerprint"]
    assert re.fullmatch(r"[0-9a-f]{16} augment=.*", named), "the score names the data by their content"
