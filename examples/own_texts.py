"""Your own texts: from a CSV file to a classifier. Without a file: docstrings of Python.

    python examples/own_texts.py          (or with a file of yours: own_texts.py reviews.csv)

A gated convolutional network reads packed texts; batches hold texts of similar length. `unisono train text --data FILE`
does the same without a program. Expect 75 to 85 % of held-out docstrings right, against 30 % for the largest class,
after 15 s on 2 cores (30 CPU seconds).
"""

import ast
import csv
import sys
import sysconfig
from pathlib import Path

import torch
from torch import nn

import unisono
from unisono.data.own_texts import load_texts
from unisono.data.texts import Texts
from unisono.recipes.gated_cnn import GatedCNN

PACKAGES = ("asyncio", "ctypes", "email", "importlib", "logging", "multiprocessing", "unittest", "xml")


def write_docstrings(file: Path) -> None:
    """Write a line (text, label) for every docstring of 30 characters or more."""
    library = Path(sysconfig.get_paths()["stdlib"])
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    with file.open("w", newline="", encoding="utf-8") as target:
        rows = csv.writer(target)
        rows.writerow(["text", "label"])
        for package in PACKAGES:
            for source in sorted((library / package).rglob("*.py")):
                for node in ast.walk(ast.parse(source.read_bytes())):
                    text = ast.get_docstring(node) if isinstance(node, documented) else None
                    if text and len(text) >= 30:
                        rows.writerow([text, package])


def main(file: str, out: str, epochs: int = 6) -> None:
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out=out)
    data = load_texts(Path(file))  # tokenised once per machine, by the first process
    train_set, test_set = (
        Texts(store, max_length=400, length_pool=20, content=data.key) for store in (data.train, data.test)
    )
    model = GatedCNN(len(data.vocabulary), num_classes=len(data.classes), dropout=0.3, word_dropout=0.1, readout="all")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    trainer = unisono.Trainer(run, model, optimizer, loss=nn.CrossEntropyLoss())
    result = trainer.fit(train_set, epochs=epochs, batch_size=64, test_set=test_set)
    if run.world.is_leader:
        print(f"{len(train_set)} texts of {len(data.classes)} classes: {result['metrics']['test_accuracy']:.1%} right")
        print(result["fingerprint"])


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else "docstrings.csv"
    if not Path(given).exists():
        write_docstrings(Path(given))
    unisono.launch(main, given, "runs/own-texts", workers="auto", replicas=4)
