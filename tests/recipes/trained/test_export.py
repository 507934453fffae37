"""Exports: what other programs read is the same model."""

import json
import sys

import pytest
import torch
from safetensors.torch import load_file

import trained_runs
import unisono
from unisono.data.sets.corpus import load_tokeniser
from unisono.errors import ConfigError
from unisono.recipes import lm_presets
from unisono.recipes.trained import export


@pytest.fixture
def language_model(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers", reason="needs the extra recipes")
    settings = lm_presets.Settings(vocabulary=512, shape=trained_runs.TINY, lr=1e-2, dropout=0.1)
    monkeypatch.setitem(lm_presets.PRESETS, "small", settings)
    return unisono.load(trained_runs.stories(tmp_path).run)


def test_a_folder_for_transformers(language_model, tmp_path):
    """All weights under Llama's names, cut as Llama has them; its tokeniser begins a text as the training did.

    That transformers computes the same with them: tests/public/test_exports.py.
    """
    model = language_model
    export.export_folder(model, tmp_path / "llama")
    there = sorted(path.name for path in (tmp_path / "llama").iterdir())
    assert there == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    weights = load_file(tmp_path / "llama" / "model.safetensors")
    own = dict(model.module.state_dict())
    assert sum(map(torch.numel, weights.values())) == sum(map(torch.numel, own.values()))
    parts = [weights[f"model.layers.1.self_attn.{part}_proj.weight"] for part in "qkv"]
    assert torch.equal(torch.cat(parts), own["blocks.1.qkv.weight"])
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    assert (config["vocab_size"], config["head_dim"]) == (len(own["tokens.weight"]), 16)
    tokeniser = load_tokeniser((tmp_path / "llama" / "tokenizer.json").read_bytes())
    plain = load_tokeniser(model.file.files["tokeniser.json"])
    assert tokeniser.encode("the cat").ids == [0, *plain.encode("the cat").ids]
    with pytest.raises(ConfigError, match="expected a new or empty folder"):
        export.export_folder(model, tmp_path / "llama")
    with pytest.raises(ConfigError, match=r"packs texts .* Hint: FILE\.safetensors"):
        export.export_onnx(model, tmp_path / "model.onnx")


def test_onnx(tmp_path, monkeypatch):
    """The scores of ONNX's own runtime are the model's but for rounding, for any number of images; only for images.

    Where its library is missing, the message says how to get it.
    """
    model = unisono.load(trained_runs.images(tmp_path).run)
    with pytest.raises(ConfigError, match="transformers knows no model like that of recipe 'images'"):
        export.export_folder(model, tmp_path / "folder")
    with pytest.raises(ConfigError, match="there is no"):
        export.export_onnx(model, tmp_path / "none" / "model.onnx")
    with monkeypatch.context() as patch, pytest.raises(ConfigError, match=r"pip install .*'onnxscript"):
        patch.setitem(sys.modules, "onnxscript", None)
        export.export_onnx(model, tmp_path / "model.onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    export.export_onnx(model, tmp_path / "model.onnx")
    runtime = pytest.importorskip("onnxruntime", reason="reads what was written")
    session = runtime.InferenceSession(tmp_path / "model.onnx")
    images = torch.randn(5, 3, 8, 9)
    (scores,) = session.run(None, {"images": images.numpy()})
    assert torch.allclose(torch.from_numpy(scores), model(images), atol=1e-5)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["classes"]) == ["cat", "dog"]
    assert json.loads(facts["inputs"])["mean"] == model.file.inputs["mean"]
