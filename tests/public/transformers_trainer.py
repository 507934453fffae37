"""transformers: ``Trainer`` on a tiny random model, two ranks: training, evaluation, prediction."""

import sys
import warnings

import torch
from recorded import leave, record
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed
from transformers.utils import logging


def samples(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences with labels, always the same."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(5, 60, (count, 12), generator=draw)
    return [{"input_ids": row, "attention_mask": torch.ones(12).long(), "labels": row[0] % 3} for row in ids]


def main(folder: str) -> None:
    """Train three steps, evaluate, predict."""
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    set_seed(1)
    config = BertConfig(
        vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, num_labels=3,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir=folder, use_cpu=True, per_device_train_batch_size=4, per_device_eval_batch_size=4, max_steps=3,
        learning_rate=1e-3, logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, seed=1,
        gradient_accumulation_steps=2, dataloader_num_workers=0,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=arguments, train_dataset=samples(48), eval_dataset=samples(11),
        compute_metrics=lambda found: {"right": float((found.predictions.argmax(-1) == found.label_ids).sum())},
    )  # fmt: skip
    trainer.train()
    measured = {name: value for name, value in trainer.evaluate().items() if name in ("eval_loss", "eval_right")}
    logs = [[line["loss"], line["grad_norm"]] for line in trainer.state.log_history if "loss" in line]
    predicted = trainer.predict(samples(7)).predictions
    record(folder, model, measured, logs, predicted.tolist(), arguments.world_size, str(arguments.parallel_mode))


if __name__ == "__main__":
    main(sys.argv[1])
    leave()
