"""Two losses over the letters of texts, each letter of the batch with the same weight, however long its text is.

    python examples/two_losses_weighted.py
    unisono verify examples/two_losses_weighted.py --workers 1,2,3

From texts without capitals and punctuation, a small GRU says for every letter whether it was a capital, and whether a
mark follows. The texts (docstrings of Python's own library) have 1 to 160 letters, so a mean over each micro-batch's
own letters would count those of short texts more. `weight` says how many letters there are; the run takes the mean over
all letters of the batch, on any number of workers. Capitals and marks are rare: they count five times. Expect about
75 % of the capitals and 50 % of the marks found on held-out texts in 8 s on 2 cores (16 CPU seconds).
"""

import ast
import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono

MODULES = ("argparse", "collections/__init__", "datetime", "_pydecimal", "doctest", "pathlib", "statistics")
LENGTH, WIDTH, RARE = 160, 48, 5.0
MARKS = ".,:;!?()"


def texts() -> list[str]:
    """Return first paragraphs of docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    sources = [Path(sysconfig.get_paths()["stdlib"], f"{name}.py") for name in MODULES]
    nodes = [node for file in sources if file.exists() for node in ast.walk(ast.parse(file.read_bytes()))]
    found = [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]
    return [" ".join(text.split("\n\n")[0].split()) for text in found if text.isascii()]


def encode(chosen: list[str]) -> unisono.ArrayDataset:
    """Return letters (n, length), 0 where there is none, and targets (n, length, 2): capital, mark follows."""
    letters, targets = torch.zeros(len(chosen), LENGTH, dtype=torch.int64), torch.zeros(len(chosen), LENGTH, 2)
    for row, text in enumerate(chosen):
        kept = [(letter, text[i + 1 : i + 2] in MARKS and i + 1 < len(text)) for i, letter in enumerate(text)]
        for place, (letter, is_marked) in enumerate([pair for pair in kept if pair[0] not in MARKS][:LENGTH]):
            letters[row, place] = ord(letter.lower())
            targets[row, place] = torch.tensor([letter.isupper(), is_marked], dtype=torch.float32)
    return unisono.ArrayDataset(letters, targets)


class Writer(nn.Module):
    """From letters (n, length) to two logits for each: (n, length, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.say = nn.Embedding(128, WIDTH), nn.Linear(2 * WIDTH, 2)
        self.read = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.say(self.read(self.letters(x))[0])


def both(output: Tensor, y: Tensor, rare: Tensor) -> Tensor:
    """Return the losses (n, length, 2) of both questions; the second counts half."""
    return F.binary_cross_entropy_with_logits(output, y, pos_weight=rare, reduction="none") * torch.tensor([1.0, 0.5])


def main(out: str = "runs/two-losses", epochs: int = 4) -> None:
    found = texts()
    train_set, test_set = encode([text for i, text in enumerate(found) if i % 10]), encode(found[::10])
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out=out)
    model = Writer()
    model, optimizer = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    rare = torch.tensor([RARE, RARE])
    for batch in run.steps(run.loader(train_set, batch_size=32, last="join"), epochs=epochs):
        run.step(
            batch,
            lambda micro: (both(model(micro.x), micro.y, rare) * (micro.x > 0)[..., None]).sum(),
            weight=lambda micro: (micro.x > 0).sum(),  # letters
            reduction="sum",
        )
    with torch.no_grad():
        x, y = test_set.arrays
        hits = [(y[..., k] == 1) & (model(x)[..., k] > 0) for k in (0, 1)]
    if run.world.is_leader:
        shares = [hits[k].sum().item() / y[..., k].sum().item() for k in (0, 1)]
        print(f"found {shares[0]:.0%} of the capitals, {shares[1]:.0%} of the marks")
        print(run.fingerprint())


if __name__ == "__main__":
    unisono.launch(main, workers="auto", replicas=4)
