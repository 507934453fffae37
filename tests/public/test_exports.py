"""transformers opens what ``unisono checkpoint export`` writes, and computes the same with it."""

import pytest
import torch
from torch.nn import functional as F

import trained_runs
import unisono
from unisono.recipes import lm_presets
from unisono.recipes.trained import export

pytestmark = pytest.mark.public


def test_a_language_model_is_a_llama(tmp_path, monkeypatch):
    """The same logits but for rounding, the same continuation, and tokens that begin as in training."""
    transformers = pytest.importorskip("transformers")
    settings = lm_presets.Settings(vocabulary=512, shape=trained_runs.TINY, lr=1e-2, dropout=0.1)
    monkeypatch.setitem(lm_presets.PRESETS, "small", settings)
    model = unisono.load(trained_runs.stories(tmp_path).run)
    export.export_folder(model, tmp_path / "llama")
    llama = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "llama")
    tokeniser = transformers.AutoTokenizer.from_pretrained(tmp_path / "llama")
    ids = tokeniser("the old cat", return_tensors="pt")["input_ids"]
    rows = model.module.read(ids, torch.zeros_like(ids), torch.arange(ids.shape[1])[None])
    own = F.linear(rows, model.module.tokens.weight)
    with torch.no_grad():
        assert torch.allclose(llama(ids).logits, own, atol=1e-5)
        assert not torch.allclose(llama(ids.flip(1)).logits, own, atol=1e-2)  # the control
        added = llama.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert tokeniser.decode(added, skip_special_tokens=True) == model.write("the old cat", tokens=5, top=1)
