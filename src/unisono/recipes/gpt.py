"""A language model: rotary positions, RMSNorm, SwiGLU, tied embeddings, dropout; attention inside a document.

Sources: Vaswani et al., arXiv 1706.03762; Su et al., RoFormer, arXiv 2104.09864; Zhang and Sennrich, RMSNorm, arXiv
1910.07467; Shazeer, GLU variants, arXiv 2002.05202; initial values as in GPT-2.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unisono.recipes.kernels import drop

IGNORED = -100
_EVALUATED_ROWS = 8
"""Rows of an evaluation whose logits are there at a time: a batch of 256 would need gigabytes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """How large a `GPT` is: tokens of a row, features of a token, blocks, heads of each, inner features."""

    length: int
    width: int
    layers: int
    heads: int
    inner: int


class Micro(NamedTuple):
    """What a `GPT` sees of a micro-batch, int64 (n, length) each: `PackedTokens` and the targets."""

    tokens: Tensor
    segments: Tensor
    positions: Tensor
    targets: Tensor


class Block(nn.Module):
    """Attention, then a gated perceptron, each on normalised rows and added to them: (n, length, width) -> the same."""

    def __init__(self, shape: Shape, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = shape.heads, dropout
        self.first, self.second = nn.RMSNorm(shape.width, eps=1e-6), nn.RMSNorm(shape.width, eps=1e-6)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.join = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(self, rows: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Return the rows with what they have attended to."""
        q, k, v = self.qkv(self.first(rows)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = _turned(q, *turns), _turned(k, *turns)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)
        rows = rows + self._dropped(self.join(seen))
        gate, up = self.gate_up(self.second(rows)).chunk(2, dim=2)
        return rows + self._dropped(self.down(F.silu(gate) * up))

    def _dropped(self, rows: Tensor) -> Tensor:
        return drop(rows, self.dropout, self.training)


def _turned(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn pairs of features by the angle of their place: heads (n, heads, length, d), cos and sin (n, 1, length, d/2).

    Halves of a head are the pairs, as GPT-NeoX and Llama have them.
    """
    first, second = heads.chunk(2, dim=3)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=3).to(heads.dtype)


class GPT(nn.Module):
    """From a micro-batch to the negative log-likelihood of each target: `Micro` -> (n, length), 0 where ignored."""

    cos: Tensor
    sin: Tensor

    def __init__(self, vocabulary: int, shape: Shape, dropout: float = 0.0) -> None:
        super().__init__()
        self.shape, self.dropout = shape, dropout
        self.tokens = nn.Embedding(vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape, dropout) for _ in range(shape.layers))
        self.last = nn.RMSNorm(shape.width, eps=1e-6)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                is_last_of_branch = name.endswith(("join.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * shape.layers) ** 0.5 if is_last_of_branch else 0.02)
        half = shape.width // shape.heads // 2
        angles = torch.outer(torch.arange(shape.length), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, micro: Micro) -> Tensor:
        """Return the negative log-likelihood of each target."""
        if self.training:
            return self._losses(micro)
        parts = zip(*(part.split(_EVALUATED_ROWS) for part in micro), strict=True)
        return torch.cat([self._losses(Micro(*part)) for part in parts])

    def _losses(self, micro: Micro) -> Tensor:
        logits = F.linear(self.read(*micro[:3]), self.tokens.weight).float()
        losses = F.cross_entropy(logits.flatten(0, 1), micro.targets.flatten(), ignore_index=IGNORED, reduction="none")
        return losses.view_as(micro.targets)

    def read(self, tokens: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
        """Return what the model makes of each place: (n, length) each -> (n, length, width)."""
        length = tokens.shape[1]
        is_same = segments[:, None, :, None] == segments[:, None, None, :]
        mask = is_same & torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        turns = self.cos[positions][:, None], self.sin[positions][:, None]
        rows = drop(self.tokens(tokens), self.dropout, self.training)
        for block in self.blocks:
            rows = block(rows, turns, mask)
        found: Tensor = self.last(rows)
        return found

    @torch.no_grad()
    def write(self, start: list[int], count: int, *, end: int, generator: torch.Generator, top: int = 50) -> list[int]:
        """Return tokens that the model adds to `start`, drawn from the `top` likeliest each time.

        Args:
            start: Tokens, at least one.
            count: At most so many more.
            end: The token that ends a text.
            generator: On the CPU; what is drawn is a function of its state.
            top: How many tokens may be drawn.
        """
        written = list(start)
        for _ in range(count):
            tokens = torch.tensor([written[-self.shape.length :]], device=self.cos.device)
            place = torch.arange(tokens.shape[1], device=tokens.device)[None]
            logits = F.linear(self.read(tokens, torch.zeros_like(tokens), place)[0, -1], self.tokens.weight)
            likely, which = logits.float().cpu().topk(min(top, len(logits)))
            drawn = which[torch.multinomial(likely.softmax(0), 1, generator=generator)].item()
            if drawn == end:
                break
            written.append(int(drawn))
        return written[len(start) :]


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the optimizer's groups: matrices, which decay, and the factors of norms, which do not."""
    matrices = [weight for weight in model.parameters() if weight.dim() >= 2]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    return [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
