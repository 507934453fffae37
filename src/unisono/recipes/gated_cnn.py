"""Models for packed texts: a gated convolutional network, and a bag of words.

Texts come packed (`unisono.data.sets.texts.pack`): token numbers of all texts one after another, each filled up with 34
pads or more to a multiple of 49, at least 147. Every word of a text is seen by a window that counts; the last such
window may lie partly on pads, which the network sees as zeros. A window that touches two texts counts for neither, nor
does one of pads alone: a text's scores do not depend on its neighbours.
"""

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unisono.data.sets.texts import PAD, PackedTexts
from unisono.recipes.kernels import block_windows, drop, embed_rows

WIDTH, STRIDE, CHANNELS = 15, 7, 64
RECEPTIVE_FIELD = 113  # tokens: two convolutions of width 15 and stride 7
ALIGN = STRIDE * STRIDE
"""Tokens: texts start at multiples of it, so that both convolutions start with them."""
LEAST = 3 * ALIGN
"""Tokens: the shortest place a text takes, enough for one window of the second convolution."""
BEHIND = LEAST - RECEPTIVE_FIELD
"""Tokens: pads behind each text, at least, so that the second convolution's last window of it ends in its place."""


class GatedConv(nn.Module):
    """``conv(x) * sigmoid(gate(x))`` over rows: (rows, 64) -> (rows / 7, 64), the last two rows zeros.

    Convolution and gate are one matrix: row ``offset * channels + channel`` belongs to one place of the window, the
    left half of the columns to the convolution, the right half to the gate.
    """

    def __init__(self, channels: int = CHANNELS) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH * channels, 2 * channels))
        self.bias = nn.Parameter(torch.empty(2 * channels))
        bound = 1 / math.sqrt(WIDTH * channels)  # torch's default for a convolution
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the gated features of the window that starts at each seventh row."""
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if torch.is_autocast_enabled(rows.device.type):
            rows, weight, bias = (x.to(torch.get_autocast_dtype(rows.device.type)) for x in (rows, weight, bias))
        windows = block_windows(rows.view(len(rows) // STRIDE, -1), weight, bias, rows.shape[1])
        return F.pad(F.glu(windows), (0, 0, 0, 2))


class GatedCNN(nn.Module):
    """Embedding, two gated convolutions, mean over time, two linear layers: packed texts -> scores (n, classes).

    Args:
        vocabulary_size: Rows of the embedding; row `PAD` stays zero.
        num_classes: Scores per text.
        word_dropout: Share of the words that are taken for nothing in training.
        dropout: Rate on word and text features in training.
        feature_dropout: Rate on what the convolutions give in training.
        shift: Training texts begin up to so many tokens late, all of a micro-batch alike: what stands in a window
            differs from epoch to epoch. 0: never.
        readout: What is read: the mean of the ``last`` convolution; or of ``all`` three levels, words and both
            convolutions, and the first one's largest features (24,576 parameters more).
    """

    def __init__(
        self,
        vocabulary_size: int,
        *,
        num_classes: int = 2,
        word_dropout: float = 0.0,
        dropout: float = 0.0,
        feature_dropout: float = 0.0,
        shift: int = 0,
        readout: Literal["last", "all"] = "last",
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, CHANNELS, padding_idx=PAD)
        nn.init.xavier_uniform_(self.embedding.weight)
        with torch.no_grad():
            self.embedding.weight[PAD].zero_()
        self.conv1, self.conv2 = GatedConv(), GatedConv()
        read = CHANNELS * {"last": 1, "all": 4}[readout]
        self.classify = nn.Sequential(nn.Linear(read, 128), nn.Linear(128, num_classes))
        self.word_dropout, self.dropout, self.feature_dropout = word_dropout, dropout, feature_dropout
        self.shift, self.readout = shift, readout

    def forward(self, texts: PackedTexts) -> Tensor:
        """Return class scores."""
        tokens, lengths = texts
        if self.training:
            tokens, lengths = self._disturb(tokens, lengths)
        x = drop(embed_rows(tokens, self.embedding.weight, PAD), self.dropout, self.training)  # (tokens, 64)
        low = drop(self.conv1(x), self.feature_dropout, self.training)
        high = drop(self.conv2(low), self.feature_dropout, self.training)
        levels = [(2, high)] if self.readout == "last" else [(0, x), (1, low), (2, high)]
        read = [means(rows, lengths, texts.lengths, level) for level, rows in levels]
        if self.readout == "all":
            read.append(peaks(low, lengths, texts.lengths))
        scores: Tensor = self.classify(drop(torch.cat(read, dim=1), self.dropout, self.training))
        return scores

    def _disturb(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if self.shift:
            start = torch.randint(self.shift, (), device=lengths.device)
            # Every text moves to the left by as much; what falls into the gap before it is wiped out.
            places, at = places_of(lengths), torch.arange(len(tokens), device=tokens.device)
            inside = at - torch.repeat_interleave(places.cumsum(0) - places, places, output_size=len(tokens))
            lengths = (lengths - start).clamp(min=1)
            is_text = inside < torch.repeat_interleave(lengths, places, output_size=len(tokens))
            tokens = tokens[(at + start) % len(tokens)].where(is_text, PAD)
        if self.word_dropout:
            tokens = tokens.masked_fill(torch.rand(tokens.shape, device=tokens.device) < self.word_dropout, PAD)
        return tokens, lengths


def means(rows: Tensor, lengths: Tensor, placed: Tensor, level: int) -> Tensor:
    """Return the mean of each text's rows, (n, features).

    Args:
        rows: (num_rows, features): the words' features, zeros for pads, or a convolution's.
        lengths: int64 (n,): tokens that count.
        placed: int64 (n,): tokens that decided the texts' places.
        level: 0: rows are words; 1 or 2: windows of the first or second convolution.
    """
    counts = counts_of(lengths, level)
    if level == 0:  # first in blocks that belong to one text each
        rows = rows.view(-1, ALIGN, rows.shape[1]).sum(dim=1)
    places = places_of(placed) // (ALIGN if level == 0 else STRIDE**level)  # rows per text
    starts = places.cumsum(0) - places
    row = torch.arange(len(rows), device=rows.device)
    is_own = (row >= starts[:, None]) & (row < (starts + (places if level == 0 else counts))[:, None])
    mean: Tensor = is_own.to(rows.dtype) @ rows / counts[:, None]
    return mean


def peaks(rows: Tensor, lengths: Tensor, placed: Tensor) -> Tensor:
    """Return the largest of each text's rows (num_rows, features) of the first convolution: (n, features)."""
    parts = rows.split((places_of(placed) // STRIDE).tolist())
    return torch.stack([part[:n].amax(dim=0) for part, n in zip(parts, counts_of(lengths, 1).tolist(), strict=True)])


def counts_of(lengths: Tensor, level: int) -> Tensor:
    """Return how many rows of a level see every word of the text (and pads, where it ends), int64 (n,)."""
    if level == 0:
        return lengths.clamp(min=1)
    stride, reach = STRIDE**level, (WIDTH, RECEPTIVE_FIELD)[level - 1]
    counts: Tensor = ((lengths - reach).clamp(min=0) + stride - 1) // stride + 1
    return counts


def places_of(lengths: Tensor) -> Tensor:
    """Return the tokens from each text's start to the next one's, as `pack` has laid them out."""
    return ((lengths + BEHIND + ALIGN - 1) // ALIGN * ALIGN).clamp(min=LEAST)


class BagOfWords(nn.Module):
    """Mean of word embeddings, one linear layer: packed texts -> scores (n, classes)."""

    def __init__(self, vocabulary_size: int, *, num_classes: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocabulary_size, CHANNELS, mode="mean", padding_idx=PAD)
        self.classify = nn.Linear(CHANNELS, num_classes)
        self.dropout = dropout

    def forward(self, texts: PackedTexts) -> Tensor:
        """Return class scores."""
        places = places_of(texts.lengths)
        mean = self.embedding(texts.tokens, places.cumsum(0) - places)
        scores: Tensor = self.classify(drop(mean, self.dropout, self.training))
        return scores
