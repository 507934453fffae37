"""Sparse gradients of embeddings: added densely along the tree, sparse again for the optimizer."""

import json
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import unisono
from ranks import run_threads
from unisono.errors import ConfigError
from unisono.strategies.parts import flat
from unisono.strategies.parts.flat import dense_of, sparse_again

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own optimizers

WORDS = torch.randint(0, 60, (30, 4), generator=torch.Generator().manual_seed(1))
DATA = unisono.ArrayDataset(WORDS, WORDS[:, 0] % 3)


def bag():
    return nn.EmbeddingBag(60, 3, mode="mean", sparse=True)


def mixed():
    return nn.Sequential(nn.EmbeddingBag(60, 8, sparse=True), nn.Dropout(0.1), nn.Linear(8, 3))


KINDS = {
    "sparse adam": (bag, lambda model: torch.optim.SparseAdam(list(model.parameters()), lr=0.05), {}),
    "sgd": (mixed, lambda model: torch.optim.SGD(model.parameters(), lr=0.5), {"clip_norm": 0.2}),
    "adagrad": (mixed, lambda model: torch.optim.Adagrad(model.parameters(), lr=0.1), {"precision": "fp16"}),
}


def play(transport, kind, out, max_steps=12):
    build, optimizer_of, settings = KINDS[kind]
    with unisono.Run(replicas=5, out=out, checkpoint_every=2, transport=transport, **settings) as run:
        model = build()
        model, _ = run.prepare(model, optimizer_of(model))
        for batch in run.steps(run.loader(DATA, batch_size=7), epochs=9, max_steps=max_steps):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        return run.fingerprint()


@pytest.mark.parametrize("kind", KINDS)
def test_bits_do_not_depend_on_the_number_of_workers(kind, tmp_path):
    """One ledger on 1, 2, 3 ranks and where the run was resumed, with each optimizer that takes sparse gradients."""
    found = [run_threads(play, ranks, kind, str(tmp_path / str(ranks))) for ranks in (1, 2, 3)]
    run_threads(play, 3, kind, str(tmp_path / "resumed"), 5)
    found.append(run_threads(play, 1, kind, str(tmp_path / "resumed")))
    assert len({fingerprint for ranks in found for fingerprint in ranks}) == 1
    assert len({(tmp_path / name / "ledger.jsonl").read_text() for name in ("1", "2", "3", "resumed")}) == 1


def trained_as_plain_torch() -> bool:
    with unisono.Run(replicas=1) as run:
        ours, theirs = bag(), bag()
        theirs.load_state_dict(ours.state_dict())
        ours, _ = run.prepare(ours, torch.optim.SparseAdam(list(ours.parameters()), lr=0.05))
        plain = torch.optim.SparseAdam(list(theirs.parameters()), lr=0.05)
        for batch in run.steps(run.loader(DATA, batch_size=7), epochs=3):
            run.step(batch, lambda micro: F.cross_entropy(ours(micro.x), micro.y))
            chosen = torch.from_numpy(batch.indices.copy())
            plain.zero_grad()
            F.cross_entropy(theirs(WORDS[chosen]), WORDS[chosen, 0] % 3).backward()
            plain.step()
        return torch.equal(ours.weight, theirs.weight)


def test_it_is_what_plain_torch_computes(monkeypatch):
    """Rows that no sample has touched keep their moments; the control forgets which rows those are."""
    assert trained_as_plain_torch()
    monkeypatch.setattr(flat, "dense_of", lambda grad: grad.to_dense())
    assert not trained_as_plain_torch()


def test_rows_come_back_whatever_they_hold():
    """Zeros of both signs, NaN and rows that cancel are rows; those that nobody has are none."""
    nan = float("nan")
    first = torch.sparse_coo_tensor([[4, 1, 4, 0]], [[1.0, 2.0], [-0.0, 0.0], [0.5, -2.0], [nan, -0.0]], (6, 2))
    other = torch.sparse_coo_tensor([[4, 3]], [[-1.5, 0.0], [-0.0, -0.0]], (6, 2))
    total = sparse_again(dense_of(first) + dense_of(other))
    assert total.is_coalesced()
    assert total.indices().tolist() == [[0, 1, 3, 4]]
    assert torch.equal(total.to_dense().nan_to_num(9), (first + other).to_dense().nan_to_num(9))
    assert sparse_again(torch.full((6, 2), -0.0))._nnz() == 0


@pytest.mark.parametrize(
    "strategy",
    [
        "ddp", "allreduce", "fsdp",
        unisono.strategy("exact", island_steps=2), unisono.strategy("exact", compress="bf16"),
    ],
)  # fmt: skip
def test_where_it_cannot_be_it_is_refused(strategy):
    """Before the first step, with the layer named."""
    said = pytest.raises(ConfigError, match=re.escape("'0.weight' has sparse gradients"))
    with unisono.Run(strategy=strategy, replicas=None if strategy == "ddp" else 2) as run, said:
        model = mixed()
        run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_the_score_says_it_only_where_it_is_set(tmp_path):
    """Sparse and dense gradients give other bits; scores of models without them stay as they were."""

    def score(is_sparse):
        with unisono.Run(out=tmp_path / str(is_sparse)) as run:
            model = nn.EmbeddingBag(60, 3, sparse=is_sparse)
            model, _ = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for batch in run.steps(run.loader(DATA, batch_size=30), epochs=1):
                run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        return json.loads((tmp_path / str(is_sparse) / "score.json").read_text())["model"]

    assert score(is_sparse=True) == {**score(is_sparse=False), "sparse": ["weight"]}
