"""The two jobs as the article (IMDB) and the tutorial (MNIST) wrote them: models, data sets, hyper-parameters.

Read by all baselines, so that they differ in nothing but what drives them. Only the reading of the files is unisono's.
"""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from unisono.data.sets.imdb import read_reviews
from unisono.data.sets.mnist import MEAN, STD, load_mnist
from unisono.data.sets.text import basic_english
from unisono.recipes.execute import spread

Vocabulary = dict[str, int]


read_once = functools.cache(read_reviews)


class Reviews(Dataset):
    """Pairs (label, text), as torchtext's IMDB gives them; label 1 is negative, 2 positive."""

    def __init__(self, data: Path, split: str, limit: int | None) -> None:
        found = [review for review in read_once(data) if review.split == split]
        self.items: list[tuple[int, Any]] = [
            (found[index].label + 1, found[index].text) for index in spread(len(found), limit)
        ]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[int, Any]:
        return self.items[index]


def build_vocabulary(texts: list[str], *, min_freq: int = 20, max_size: int = 15000) -> Vocabulary:
    """Words by frequency, ``<unk>`` first: torchtext's build_vocab_from_iterator as the article calls it."""
    counts: dict[str, int] = {}
    for text in texts:
        for token in basic_english(text):
            counts[token] = counts.get(token, 0) + 1
    kept = sorted((word for word in counts if counts[word] >= min_freq), key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(["<unk>", *kept][:max_size])}


class Collate:
    """The article's collate_fn: tokenise, number, pad with 0 to the longest text of the batch.

    `tokenised` takes texts that are numbers already: a stronger baseline than the article's.
    """

    def __init__(self, vocabulary: Vocabulary, *, tokenised: bool = False) -> None:
        self.vocabulary, self.tokenised = vocabulary, tokenised

    def numbers(self, text: str) -> list[int]:
        return [self.vocabulary.get(token, 0) for token in basic_english(text)]

    def __call__(self, batch: list[tuple[int, Any]]) -> tuple[Tensor, Tensor]:
        target = torch.tensor([0 if label == 2 else 1 for label, _ in batch])
        texts = [text if self.tokenised else self.numbers(text) for _, text in batch]
        longest = max(113, *map(len, texts))  # 113: what the network needs
        padded = np.zeros((len(texts), longest), dtype=np.int32)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        return target, torch.from_numpy(padded)


class GCNN(nn.Module):
    """The article's gated CNN (1,214,594 parameters)."""

    def __init__(self, vocab_size: int = 15000, embedding_dim: int = 64, num_class: int = 2) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(vocab_size, embedding_dim)
        nn.init.xavier_uniform_(self.embedding_table.weight)
        self.conv_A_1 = nn.Conv1d(embedding_dim, 64, 15, stride=7)
        self.conv_B_1 = nn.Conv1d(embedding_dim, 64, 15, stride=7)
        self.conv_A_2 = nn.Conv1d(64, 64, 15, stride=7)
        self.conv_B_2 = nn.Conv1d(64, 64, 15, stride=7)
        self.output_linear1 = nn.Linear(64, 128)
        self.output_linear2 = nn.Linear(128, num_class)

    def forward(self, word_index: Tensor) -> Tensor:
        x = self.embedding_table(word_index).transpose(1, 2)
        x = self.conv_A_1(x) * torch.sigmoid(self.conv_B_1(x))
        x = self.conv_A_2(x) * torch.sigmoid(self.conv_B_2(x))
        return self.output_linear2(self.output_linear1(torch.mean(x, dim=2)))


def text_loss(scores: Tensor, target: Tensor) -> Tensor:
    """Two independent sigmoids, as in the article."""
    return F.binary_cross_entropy(torch.sigmoid(scores), F.one_hot(target, num_classes=2).float())


class SimpleCNN(nn.Module):
    """The tutorial's CNN (421,642 parameters)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, stride=1, padding=1)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, stride=1, padding=1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(64 * 7 * 7, 128), nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        x = self.dropout1(x.view(-1, 64 * 7 * 7))
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class Digits(Dataset):
    """MNIST with the tutorial's transform, applied to each sample when it is fetched.

    The tutorial goes through Pillow (torchvision); here the image is a tensor from the start, which is faster.
    """

    def __init__(self, images: np.ndarray, labels: np.ndarray, limit: int | None) -> None:
        chosen = spread(len(images), limit)
        self.images, self.labels = torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return (self.images[index].unsqueeze(0).float().div_(255) - MEAN) / STD, self.labels[index]


@dataclass
class Job:
    """All a baseline needs; `per_rank` is the batch of one of two processes."""

    model: nn.Module
    train_set: Dataset
    test_set: Dataset
    collate: Any
    loss: Any
    optimizer: Any
    per_rank: int
    clip: float | None
    swap: bool  # whether a batch is (target, input)


def job(name: str, data: Path, *, limit: int | None = None, tokenised: bool = False, seed: int = 1234) -> Job:
    """Return job ``imdb`` or ``mnist``; weights are drawn from one seed on every rank."""
    torch.manual_seed(seed)
    if name == "mnist":
        splits = load_mnist(data)
        return Job(
            model=SimpleCNN(), collate=None, loss=F.nll_loss, per_rank=64, clip=None, swap=False,
            train_set=Digits(splits.train_images, splits.train_labels, limit),
            test_set=Digits(splits.test_images, splits.test_labels, limit),
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.5),
        )  # fmt: skip
    train_set, test_set = (Reviews(data, split, limit) for split in ("train", "test"))
    collate = Collate(build_vocabulary([text for _, text in Reviews(data, "train", None).items]), tokenised=tokenised)
    if tokenised:
        for part in (train_set, test_set):
            part.items = [(label, collate.numbers(text)) for label, text in part.items]
    return Job(
        model=GCNN(), train_set=train_set, test_set=test_set, collate=collate, loss=text_loss, per_rank=128, clip=0.1,
        swap=True, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )  # fmt: skip
