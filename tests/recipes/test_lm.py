"""`train lm`: from text files to a perplexity on held-out documents and a fingerprint that no world changes."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from unisono.data.tokens.samples import IGNORED
from unisono.recipes import lm_presets
from unisono.recipes.catalog import Options
from unisono.recipes.execute import execute

pytest.importorskip("tokenizers", reason="needs the extra recipes")

UNISONO = [sys.executable, "-m", "unisono"]
DATA = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def stories(tmp_path):
    """80 short texts of few words, in one file."""
    chance = random.Random(0)
    who, what = ["the cat", "a dog", "the old man", "she"], ["sees the sea", "runs home", "sleeps", "sings a song"]
    told = [
        " ".join(f"{chance.choice(who)} {chance.choice(what)}." for _ in range(chance.randint(2, 9))) for _ in range(80)
    ]
    (tmp_path / "stories.txt").write_text("\n<|endoftext|>\n".join(told))
    return tmp_path / "stories.txt"


def train(tmp_path, data, out, **more):
    options = {"epochs": 2, "batch_size": 6, "replicas": 4, "lr": 1e-2, **more}
    execute(Options(recipe="lm", model="gpt", data=str(data), cache=str(tmp_path / "cache"), out=str(out), **options))
    return json.loads((out / "result.json").read_text())


def test_it_learns_and_writes(tmp_path, stories, monkeypatch, capsys):
    """The perplexity on held-out texts falls far below the vocabulary; samples are shown and kept; counts are told."""
    tiny = {"length": 32, "width": 32, "layers": 1, "heads": 2, "inner": 48}
    settings = lm_presets.Settings(vocabulary=512, shape=tiny, lr=1e-2, dropout=0.1)
    monkeypatch.setitem(lm_presets.PRESETS, "small", settings)
    result = train(tmp_path, stories, tmp_path / "run")
    found = result["metrics"]
    assert 1 < found["test_perplexity"] < 150
    assert found["test_documents"] == 8
    assert found["train_documents"] == 72
    assert result["epochs"] == 2
    kept = sorted((tmp_path / "run" / "samples").iterdir())
    assert [path.name for path in kept] == [f"step-{step:08}.txt" for step in (result["steps"] // 2, result["steps"])]
    assert f"step {result['steps']} writes: " in capsys.readouterr().err
    assert train(tmp_path, stories, tmp_path / "again")["fingerprint"] == result["fingerprint"]
    assert train(tmp_path, stories, tmp_path / "other", seed=1)["fingerprint"] != result["fingerprint"]
    assert (tmp_path / "again" / "samples" / kept[0].name).read_bytes() == kept[0].read_bytes()


def test_the_perplexity_counts_every_token_once():
    """The exponential of the mean over targets that are not ignored, however batches are cut."""
    from unisono.recipes.lm import TokenPerplexity, mean_loss

    losses, targets = torch.rand(6, 8), torch.randint(9, (6, 8))
    targets[2:, 5:] = IGNORED
    losses[targets == IGNORED] = 0
    whole, parts = TokenPerplexity(), TokenPerplexity()
    whole.update(losses, targets)
    for start, stop in ((0, 1), (1, 6)):
        parts.update(losses[start:stop], targets[start:stop])
    assert whole.compute() == parts.compute()
    kept = losses[targets != IGNORED].double()
    assert whole.compute() == pytest.approx(kept.mean().exp().item(), rel=1e-12)
    assert mean_loss(losses, targets).item() == pytest.approx(kept.sum().item() / 48)


@pytest.mark.slow
@pytest.mark.imdb
def test_film_reviews_on_one_two_and_three_workers(tmp_path):
    """`unisono verify lm` on the real reviews: three worlds, one fingerprint."""
    given = os.environ.get("UNISONO_TEST_DATA")
    archive = (Path(given) if given else DATA) / "imdb" / "aclImdb_labelled_50k.tar.gz"
    if not archive.exists():
        pytest.skip(f"no real data at {archive}; set UNISONO_TEST_DATA")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    words = ["verify", "lm", "--data", str(archive), "--limit", "16", "--batch-size", "12", "--workers", "1,2,3"]
    done = subprocess.run(
        [*UNISONO, *words, "--json"], capture_output=True, text=True, timeout=230, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"]
