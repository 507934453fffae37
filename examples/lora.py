"""LoRA with Hugging Face's peft: a ViT that reads upright digits learns turned ones, with 6 % of its weights trained.

    python examples/lora.py
    unisono verify examples/lora.py --workers 1,2,3

The base is trained by a plain loop first, in 5 s, as if it had been downloaded; it is frozen, and part of the score.
Adapters and the new head alone have gradients and travel between workers. Needs `pip install transformers peft`.
Expect 83 to 88 % of turned test digits right and one fingerprint on any number of workers, in 17 s on 2 cores (34 CPU
seconds).
"""

import os
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import ViTConfig, ViTForImageClassification

import unisono
from unisono.data.digits import load_digits

BASE = "runs/lora-base.safetensors"


def vit() -> ViTForImageClassification:
    body = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
    return ViTForImageClassification(ViTConfig(image_size=8, patch_size=2, num_channels=1, num_labels=10, **body))


def pretrain(file: str, epochs: int = 12) -> None:
    """Train the base on upright digits, and write its weights."""
    torch.manual_seed(0)
    model, data = vit(), load_digits()
    images, labels = torch.as_tensor(data.train_images), torch.as_tensor(data.train_labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for chosen in torch.randperm(len(labels)).split(64):
            optimizer.zero_grad()
            model(pixel_values=images[chosen], labels=labels[chosen]).loss.backward()
            optimizer.step()
    part = Path(f"{file}-{os.getpid()}")  # where several workers write, the file is whole at any moment
    save_file(model.state_dict(), part)
    part.replace(file)


def main(out: str = "runs/lora", epochs: int = 8) -> None:
    data = load_digits()
    turned = [torch.as_tensor(images).rot90(1, (2, 3)) for images in (data.train_images, data.test_images)]
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=20)
    base = vit()
    unisono.load_weights(base, BASE)
    adapted = {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["classifier"]}
    model = get_peft_model(base, LoraConfig(r=8, lora_alpha=32, lora_dropout=0.05, **adapted))
    run.prepare(model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2))
    loader = run.loader(unisono.ArrayDataset(turned[0], data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=epochs):
        run.step(batch, lambda micro: F.cross_entropy(model(pixel_values=micro.x).logits, micro.y))

    test_set, metrics = unisono.ArrayDataset(turned[1], data.test_labels), {"accuracy": unisono.Accuracy()}
    found = run.evaluate(test_set, lambda micro: (model(pixel_values=micro.x).logits, micro.y), metrics)
    if run.world.is_leader:
        trained, whole = model.get_nb_trainable_parameters()
        print(f"{trained} of {whole} weights trained: {found['accuracy']:.1%} right\n{run.fingerprint()}")


if __name__ == "__main__":
    Path(BASE).parent.mkdir(exist_ok=True)
    if not Path(BASE).exists():
        pretrain(BASE)
    unisono.launch(main, workers="auto", replicas=4)
