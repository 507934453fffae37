"""A Llama of Hugging Face's transformers learns to write, with activations computed again in the backward pass.

    python examples/hf_causal_lm.py
    unisono verify examples/hf_causal_lm.py --workers 1,2,3

Texts (docstrings of Python's library, a token for each letter) are of unequal length: the model's loss is a sum over
tokens, and `weight` says over how many, so each token of the batch counts the same. Weights begin at random; with
`from_pretrained` nothing else changes. Needs `pip install transformers`. Expect a perplexity of 12 to 16 on held-out
texts (128 before training) and one fingerprint on any number of workers, in 15 s on 2 cores (30 CPU seconds).
"""

import ast
import sysconfig
from pathlib import Path

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import unisono

MODULES = ("argparse", "collections/__init__", "datetime", "_pydecimal", "doctest", "pathlib", "statistics")
BEGIN, END, LENGTH = 1, 2, 96


def texts() -> list[list[int]]:
    """Return docstrings as numbers of letters."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    sources = [Path(sysconfig.get_paths()["stdlib"], f"{name}.py") for name in MODULES]
    nodes = [node for file in sources if file.exists() for node in ast.walk(ast.parse(file.read_bytes()))]
    found = [text for node in nodes if isinstance(node, documented) and (text := ast.get_docstring(node))]
    return [[BEGIN, *" ".join(text.split()).encode("ascii", "ignore"), END][:LENGTH] for text in found]


def collate(chosen: list[list[int]]) -> dict[str, torch.Tensor]:
    """Return what transformers' collators do: -100 where a label is padding."""
    rows = [torch.tensor(text) for text in chosen]
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": labels.clamp(min=0), "attention_mask": (labels >= 0).long(), "labels": labels}


def main(out: str = "runs/hf-causal-lm", epochs: int = 5) -> None:
    found = texts()
    train_set, test_set = [text for i, text in enumerate(found) if i % 10], found[::10]
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out=out, checkpoint_every=20)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, intermediate_size=172, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, bos_token_id=BEGIN, eos_token_id=END, pad_token_id=0, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    loader = run.loader(train_set, batch_size=32, collate=collate, last="join")
    run.prepare(model, optimizer, get_cosine_schedule_with_warmup(optimizer, 10, epochs * len(loader)))
    for batch in run.steps(loader, epochs=epochs):
        run.step(
            batch,
            lambda micro: model(**micro, num_items_in_batch=1).loss,  # a sum
            weight=lambda micro: (micro["labels"][:, 1:] != -100).sum(),
            reduction="sum",
        )

    asked = lambda micro: (model(**micro).logits[:, :-1], micro["labels"][:, 1:])  # noqa: E731 - short
    told = run.evaluate(test_set, asked, {"perplexity": unisono.Perplexity(dim=-1)}, collate=collate)
    if run.world.is_leader:
        print(f"perplexity {told['perplexity']:.2f} on held-out texts\n{run.fingerprint()}")


if __name__ == "__main__":
    unisono.launch(main, workers="auto", replicas=4)
