"""A gated CNN on texts, on one process and several, stopped in the middle of an epoch: common mistakes, corrected.

    python examples/tour/text_on_many.py

The texts are docstrings of Python's library: which of two packages are they from? All ranks run inside this process.
Expect equal fingerprints, and 95 to 99 % of held-out texts right, after some 15 s on 2 cores.
"""

import ast
import csv
import json
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import unisono
from unisono import callbacks
from unisono.data.own_texts import TextData, load_texts
from unisono.data.texts import Texts, pack
from unisono.recipes.gated_cnn import GatedCNN

LOG_EVERY, EVAL_EVERY, SAVE_EVERY = 1, 15, 25  # steps; a twentieth of the article's 20, 300, 500: there are 39


def write_docstrings(file: Path) -> None:
    """Write the docstrings of two packages as a CSV file."""
    library = Path(sysconfig.get_paths()["stdlib"])
    with file.open("w", newline="", encoding="utf-8") as target:
        rows = csv.writer(target)
        rows.writerow(["text", "label"])
        for package in ("asyncio", "unittest"):
            for source in sorted((library / package).glob("*.py")):
                for node in ast.walk(ast.parse(source.read_bytes())):
                    if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                        rows.writerow([text, package])


def train(transport: Any, data: TextData, out: Path, stop_after: int | None = None) -> dict[str, Any]:
    """Train to the end, or stop after a step; the batch is 32 texts on any number of workers."""
    run = unisono.Run(
        seed=0, replicas=4, clip_norm=0.1, out=out, transport=transport, checkpoint_every=SAVE_EVERY
    )  # fmt: skip
    train_set, test_set = (Texts(store, max_length=300, content=data.key) for store in (data.train, data.test))
    model = GatedCNN(len(data.vocabulary), num_classes=2, readout="all")
    trainer = unisono.Trainer(
        run, model, torch.optim.Adam(model.parameters(), lr=3e-3), loss=nn.CrossEntropyLoss(),
        callbacks=[callbacks.LossAverage(0.9)],  # an average of numbers: it keeps no graph alive
    )  # fmt: skip
    result = trainer.fit(
        train_set, epochs=3, batch_size=32, test_set=test_set, log_every=LOG_EVERY, eval_every=EVAL_EVERY,
        max_steps=stop_after, show_progress=False,
    )  # fmt: skip
    run.close()
    return {"fingerprint": result["fingerprint"], "accuracy": result["metrics"].get("test_accuracy")}


def main(folder: Path) -> None:
    write_docstrings(folder / "texts.csv")
    data = load_texts(folder / "texts.csv", min_freq=3, cache=folder)
    assert data.vocabulary.words[:2] == ("<pad>", "<unk>")  # a pad is no word, and enters no mean

    model = GatedCNN(len(data.vocabulary)).eval()
    print("a text of four words gets scores:", tuple(model(pack([data.train[0][0][:4]])).shape))

    alone = train("auto", data, folder / "alone")
    (three, *_) = unisono.run_ranks(lambda transport: train(transport, data, folder / "three"), 3)
    # Stopped in the middle of the second epoch by two ranks, ended by one.
    unisono.run_ranks(lambda transport: train(transport, data, folder / "again", stop_after=20), 2)
    again = train("auto", data, folder / "again")
    for name, result in (("alone", alone), ("three ranks", three), ("stopped and resumed", again)):
        print(f"{name}: {result['accuracy']:.1%} right, {result['fingerprint'][:16]}")
    assert alone == three == again

    lines = [json.loads(line) for line in (folder / "again" / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line["step"] for line in lines if "test_accuracy" in line["values"]]
    saved = sorted(int(path.name[5:].partition(".")[0]) for path in (folder / "again" / "checkpoints").glob("step-*"))
    print(f"{len(lines)} lines of metrics; evaluated after {evaluated}; checkpoints kept of {saved}")
    print("averaged loss:", *(f"{line['values']['train/loss_ema']:.3f}" for line in lines[::6]))
    assert {15, 30} < set(evaluated) and 25 in saved  # and the last step, which is always evaluated and saved:
    assert evaluated[-1] == saved[-1] == lines[-1]["step"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        main(Path(scratch))
