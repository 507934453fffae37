"""A vision transformer on digits: patches, a class token, dropout, warm-up and cosine, smoothed labels.

    python examples/vit.py
    unisono verify examples/vit.py --workers 1,2,3

Expect 86 to 91 % of test digits right and one fingerprint on any number of workers, in 7 s on 2 cores (14 CPU
seconds).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits

WIDTH, PATCH, WARM_UP = 64, 2, 20


class ViT(nn.Module):
    """Images (n, 1, 8, 8) to logits (n, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, WIDTH, PATCH, stride=PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (8 // PATCH) ** 2, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, 0.05, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = self.patches(images).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(len(rows), -1, -1), rows], 1) + self.places
        return self.head(self.encoder(rows)[:, 0])


def main(out: str = "runs/vit", epochs: int = 8) -> None:
    data = load_digits()
    run = unisono.Run(seed=0, replicas=4, clip_norm=1.0, out=out, checkpoint_every=20)
    model = ViT()
    decayed = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    groups = [{"params": decayed, "weight_decay": 0.05}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3)
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    total = epochs * len(loader)

    def schedule(step: int) -> float:
        return min(1, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / total)) / 2

    run.prepare(model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, schedule))
    for batch in run.steps(loader, epochs=epochs):
        run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y, label_smoothing=0.1))

    test_set = unisono.ArrayDataset(data.test_images, data.test_labels)
    found = run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), {"accuracy": unisono.Accuracy()})
    if run.world.is_leader:
        print(f"{found['accuracy']:.1%} right\n{run.fingerprint()}")


if __name__ == "__main__":
    unisono.launch(main, workers="auto", replicas=4)
