"""The jobs of past_steps.py: small models of several kinds, with a poisoned sample on request.

unisono run -n N benchmarks/past_job.py JOB --out DIR [--poison KIND --victim INDEX]
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.sets.digits import load_digits

WORDS, LENGTH = 64, 24


class Transformer(nn.Module):
    """Words to classes, or to the next words."""

    def __init__(self, outputs: int, dropout: float) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(WORDS, 32), nn.Parameter(torch.randn(LENGTH, 32) * 0.1)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout, batch_first=True)
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(32, outputs)

    def forward(self, words, *, is_causal=False):
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1]) if is_causal else None
        return self.head(self.layers(self.embedding(words) + self.places[: words.shape[1]], mask))


def sentences(count: int) -> torch.Tensor:
    """Return rows of words, each of which mostly says which one follows."""
    draws = torch.Generator().manual_seed(7)
    follower = torch.randperm(WORDS, generator=draws)
    rows = [torch.randint(0, WORDS, (count,), generator=draws)]
    for _ in range(LENGTH - 1):
        other = torch.randint(0, WORDS, (count,), generator=draws)
        is_other = torch.rand(count, generator=draws) < 0.1
        rows.append(torch.where(is_other, other, follower[rows[-1]]))
    return torch.stack(rows, 1)


def make(job: str):
    """Return model, data and loss function."""
    if job == "transformer":
        words, model = sentences(320), Transformer(4, 0.1)
        return model, [words, words[:, 0] % 4], lambda micro: F.cross_entropy(model(micro.x).mean(1), micro.y)
    if job == "language":
        words, model = sentences(1280), Transformer(WORDS, 0.0)
        return (
            model,
            [words, words[:, 0]],
            lambda micro: F.cross_entropy(
                model(micro.x[:, :-1], is_causal=True).flatten(0, 1), micro.x[:, 1:].flatten()
            ),
        )
    data, norm = load_digits(), nn.BatchNorm2d(16) if job == "cnn" else nn.Identity()
    count = 640 if job == "cnn" else None
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), norm, nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10)
    )
    images = torch.as_tensor(data.train_images)[:count].clone()
    labels = torch.as_tensor(data.train_labels)[:count].clone()
    return model, [images, labels], lambda micro: F.cross_entropy(model(micro.x), micro.y)


def poison(kind: str, data: list[torch.Tensor], victim: int) -> None:
    """Spoil one sample."""
    draws = torch.Generator().manual_seed(victim)
    if kind == "label":
        data[1][victim] = (data[1][victim] + 1 + int(torch.randint(9, (), generator=draws))) % 10
    elif kind == "tenfold":
        data[0][victim] *= 10
    elif kind == "tokens":
        data[0][victim] = torch.randint(0, WORDS, (LENGTH,), generator=draws)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=("transformer", "cnn", "digits", "language"))
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--poison", default="none")
    parser.add_argument("--victim", type=int, default=0)
    given = parser.parse_args()
    policy = unisono.CheckpointPolicy(keep_sparse=10)
    run = unisono.Run(seed=given.seed, replicas=8, out=given.out, checkpoints=policy)
    model, data, loss = make(given.job)
    poison(given.poison, data, given.victim)
    model, _ = run.prepare(model, torch.optim.Adam(model.parameters(), lr=given.lr))
    loader = run.loader(unisono.ArrayDataset(*data), batch_size=32)
    for batch in run.steps(loader, epochs=given.epochs):
        run.step(batch, loss)
    run.close()


if __name__ == "__main__":
    main()
