"""Batches and models of transformers in a run: types are kept, the bits are the same on any number of workers."""

import pytest
import torch

import unisono
from ranks import run_threads
from unisono.data.batches import change_tensors, move

pytestmark = pytest.mark.public

META = torch.device("meta")


def test_types_are_kept():
    """A BatchEncoding moves itself; a ModelOutput is a dictionary whose attributes follow."""
    transformers = pytest.importorskip("transformers", reason="make public")
    ids = torch.ones(2, 3).long()
    moved = move(transformers.BatchEncoding({"input_ids": ids, "attention_mask": ids}), META)
    assert type(moved) is transformers.BatchEncoding
    assert moved["input_ids"].device.type == moved.attention_mask.device.type == "meta"
    output = transformers.modeling_outputs.SequenceClassifierOutput(logits=ids)
    for found in (move(output, META), change_tensors(output, lambda tensor: tensor.to(META))):
        assert type(found) is type(output)
        assert found.logits.device.type == found["logits"].device.type == "meta"
        assert output.logits.device.type == "cpu"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_trains_on_them(precision):
    """A BERT on BatchEncodings, with dropout: one fingerprint on 1, 2, 3 workers."""
    transformers = pytest.importorskip("transformers", reason="make public")

    def collate(samples):
        rows = torch.stack([torch.as_tensor(ids) for ids, _ in samples])
        labels = torch.tensor([int(label) for _, label in samples])
        return transformers.BatchEncoding(
            {"input_ids": rows, "attention_mask": torch.ones_like(rows), "labels": labels}
        )

    def play(transport):
        ids = torch.randint(5, 60, (26, 12), generator=torch.Generator().manual_seed(3))
        with unisono.Run(replicas=4, precision=precision, transport=transport) as run:
            config = transformers.BertConfig(
                vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
                max_position_embeddings=16, num_labels=3,
            )  # fmt: skip
            model = transformers.BertForSequenceClassification(config).train()
            model, _ = run.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
            loader = run.loader(unisono.ArrayDataset(ids, ids[:, 0] % 3), batch_size=8, collate=collate)
            losses = [run.step(batch, lambda micro: model(**micro).loss) for batch in run.steps(loader, epochs=2)]
            return [run.fingerprint(), losses]

    first = run_threads(play, 1)[0]
    assert len(first[1]) == 8
    assert [run_threads(play, ranks)[0] for ranks in (2, 3)] == [first, first]
