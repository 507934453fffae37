"""A small GPT on a file of tokens, documents packed into rows, attention kept inside a document.

    python examples/token_file.py
    unisono verify examples/token_file.py --workers 1,2,3

The tokens are the letters of docstrings of Python's own library, written as nanoGPT's `.bin` files are: numbers of 16
bits, an end-of-text number after each document. `packed` puts whole documents together in rows, others in every epoch;
`crops` (random places) and `rows` (each token once) read the same file. Expect a perplexity of 12 to 16 on held-out
documents (128 before training, less with more epochs) in 8 s on 2 cores (15 CPU seconds).
"""

import ast
import math
import os
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono

MODULES = ("argparse", "collections/__init__", "datetime", "_pydecimal", "doctest", "pathlib", "statistics")
END, VOCABULARY = 127, 128  # letters are their ASCII numbers; 127 is none of a text
LENGTH, WIDTH, HEADS, LAYERS = 96, 64, 4, 2


def write_tokens(folder: Path) -> None:
    """Write ``train.bin`` and ``test.bin``; every tenth docstring is held out."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    sources = [Path(sysconfig.get_paths()["stdlib"], f"{name}.py") for name in MODULES]
    nodes = [node for file in sources if file.exists() for node in ast.walk(ast.parse(file.read_bytes()))]
    texts = [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]
    for name, chosen in (("test", texts[::10]), ("train", [text for i, text in enumerate(texts) if i % 10])):
        tokens = [number for text in chosen for number in (*text.encode("ascii", "ignore"), END)]
        part = folder / f"{name}-{os.getpid()}.part"  # where several workers write, each file is whole at any moment
        np.array(tokens, dtype=np.uint16).tofile(part)
        part.replace(folder / f"{name}.bin")


class Block(nn.Module):
    """Attention where the mask allows it, then a perceptron: (n, length, width) -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, rows: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.first(rows)).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        rows = rows + self.join(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))
        return rows + self.think(self.second(rows))


class GPT(nn.Module):
    """From packed tokens to logits: (n, length, vocabulary)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x) -> Tensor:
        rows, mask = self.tokens(x.tokens) + self.positions(x.positions), x.attention_mask()
        for block in self.blocks:
            rows = block(rows, mask)
        return self.last(rows) @ self.tokens.weight.T


def main(folder: str = "runs/tokens", out: str = "runs/token-file", epochs: int = 3) -> None:
    files = {name: unisono.TokenFile(Path(folder, f"{name}.bin"), vocabulary=VOCABULARY) for name in ("train", "test")}
    train_set, test_set = (file.packed(LENGTH, end_of_text=END) for file in files.values())
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out=out)
    model = GPT()
    trainer = unisono.Trainer(
        run, model, torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1),
        loss=lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten()),  # -100: no token
        metrics={"perplexity": unisono.Perplexity(dim=-1)},
    )  # fmt: skip
    result = trainer.fit(train_set, epochs=epochs, batch_size=32, test_set=test_set)
    if run.world.is_leader:
        perplexity = result["metrics"]["test_perplexity"]
        bits = math.log2(perplexity)
        print(f"{files['train']}: perplexity {perplexity:.2f}, {bits:.2f} bits a letter, on held-out documents")
        print(result["fingerprint"])


if __name__ == "__main__":
    Path("runs/tokens").mkdir(parents=True, exist_ok=True)
    if not Path("runs/tokens/test.bin").exists():
        write_tokens(Path("runs/tokens"))
    unisono.launch(main, workers="auto", replicas=4)
