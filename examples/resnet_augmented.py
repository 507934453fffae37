"""A ResNet with BatchNorm, random crops and turns, MixUp, SGD with momentum and one cycle of the learning rate.

    python examples/resnet_augmented.py
    unisono verify examples/resnet_augmented.py --workers 1,2,3

What a crop draws is keyed by (seed, epoch, sample), what MixUp draws by (seed, step, replica): neither depends on
workers. MixUp stays within a micro-batch. Expect 96 to 99 % of test digits right and one fingerprint on any number of
workers, in 6 s on 2 cores (12 CPU seconds).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.convolve = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.around = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.convolve(x) + self.around(x))


def augment(sample: tuple) -> tuple[Tensor, int]:
    """Turn by up to 12 degrees and shift by up to a pixel."""
    image, label = torch.as_tensor(sample[0]), sample[1]
    turn, size = (torch.rand(()) - 0.5) * 0.42, image.shape[-1]
    shift = (torch.rand(2, 1) - 0.5) * 4 / size
    matrix = torch.cat([torch.stack([turn.cos(), -turn.sin(), turn.sin(), turn.cos()]).view(2, 2), shift], 1)
    grid = F.affine_grid(matrix[None], [1, *image.shape], align_corners=False)
    return F.grid_sample(image[None], grid, align_corners=False)[0], label


def mixed(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of images that are mixed by pairs (MixUp, arXiv 1710.09412)."""
    share = torch.distributions.Beta(0.2, 0.2).sample()  # each image with the one at its place from the end
    logits = model(share * x + (1 - share) * x.flip(0))
    return share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y.flip(0))


def main(out: str = "runs/resnet", epochs: int = 6) -> None:
    data = load_digits()
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=20)
    stem = [nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), Block(16, 16, 1), Block(16, 32, 2)]
    model = nn.Sequential(*stem, Block(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4)
    train_set = unisono.ArrayDataset(data.train_images, data.train_labels)
    test_set = unisono.ArrayDataset(data.test_images, data.test_labels)
    loader = run.loader(train_set, batch_size=64, transform=augment, last="drop")
    run.prepare(model, optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, epochs * len(loader)))
    for batch in run.steps(loader, epochs=epochs):
        run.step(batch, lambda micro: mixed(model, micro.x, micro.y))

    found = run.evaluate(test_set, lambda micro: (model(micro.x), micro.y), {"accuracy": unisono.Accuracy()})
    if run.world.is_leader:
        print(f"{found['accuracy']:.1%} right\n{run.fingerprint()}")


if __name__ == "__main__":
    unisono.launch(main, workers="auto", replicas=4)
