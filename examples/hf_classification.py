"""A BERT of Hugging Face's transformers that says which package a text belongs to.

    python examples/hf_classification.py
    unisono verify examples/hf_classification.py --workers 1,2,3

Batches are what the tokenizer returns (`BatchEncoding`), the loss is the model's own; weights begin at random. The
texts are docstrings of Python's library. The tokenizer is learned once and kept: learned again from the same texts, it
numbers words differently. So its hash is in the score. Needs `pip install transformers tokenizers`. Expect 80 to 88 %
of held-out texts right (30 % for the largest class) and one fingerprint on any number of workers, in 17 s on 2 cores
(34 CPU seconds).
"""

import ast
import contextlib
import hashlib
import os
import sysconfig
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from torch.optim.lr_scheduler import LinearLR
from transformers import BatchEncoding, BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

import unisono

PACKAGES = ("asyncio", "ctypes", "email", "importlib", "logging", "multiprocessing", "unittest", "xml")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FILE = "runs/pieces.json"


def texts() -> list[tuple[str, int]]:
    """Return (text, class) pairs, in a fixed order."""
    found = []
    for label, package in enumerate(PACKAGES):
        for source in sorted(Path(sysconfig.get_paths()["stdlib"], package).rglob("*.py")):
            nodes = [node for node in ast.walk(ast.parse(source.read_bytes())) if isinstance(node, DOCUMENTED)]
            found += [(text, label) for node in nodes if (text := ast.get_docstring(node) or "") and len(text) >= 30]
    return found


def learn(file: str) -> None:
    """Learn pieces of words from all texts but every fifth; where several processes do, the first one's are kept."""
    pieces, part = BertWordPieceTokenizer(), f"{file}-{os.getpid()}"
    pieces.train_from_iterator([text for i, (text, _) in enumerate(texts()) if i % 5], 2000, show_progress=False)
    pieces.save(part)
    with contextlib.suppress(FileExistsError):
        os.link(part, file)
    Path(part).unlink()


def main(out: str = "runs/hf-classification", epochs: int = 3) -> None:
    pairs = texts()
    train_set, test_set = [pair for i, pair in enumerate(pairs) if i % 5], pairs[::5]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=FILE, pad_token="[PAD]", model_max_length=64)

    def collate(samples: list[tuple[str, int]]) -> BatchEncoding:
        batch = tokenizer([text for text, _ in samples], padding=True, truncation=True, return_tensors="pt")
        return BatchEncoding({**batch, "labels": torch.tensor([label for _, label in samples])})

    settings = {"pieces": hashlib.sha256(Path(FILE).read_bytes()).hexdigest()}
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out=out, checkpoint_every=20, settings=settings)
    config = BertConfig(vocab_size=len(tokenizer), hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=128, max_position_embeddings=64, num_labels=len(PACKAGES))  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = run.loader(train_set, batch_size=32, collate=collate)
    run.prepare(model, optimizer, LinearLR(optimizer, 1, 0.1, epochs * len(loader)))
    for batch in run.steps(loader, epochs=epochs):
        run.step(batch, lambda micro: model(**micro).loss)

    asked = lambda micro: (model(**micro).logits, micro["labels"])  # noqa: E731 - short
    found = run.evaluate(test_set, asked, {"accuracy": unisono.Accuracy()}, collate=collate)
    if run.world.is_leader:
        print(f"{len(train_set)} texts of {len(PACKAGES)} packages: {found['accuracy']:.1%} right\n{run.fingerprint()}")


if __name__ == "__main__":
    Path(FILE).parent.mkdir(exist_ok=True)
    if not Path(FILE).exists():
        learn(FILE)
    unisono.launch(main, workers="auto", replicas=4)
