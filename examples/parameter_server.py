"""A parameter server, synchronous and asynchronous: one process serves, two work.

    python examples/parameter_server.py

The synchronous one adds the workers' gradients along the tree, the same each time. The asynchronous one applies each
push at once, with a bound on staleness: no worker waits for a slow one, and no two runs are equal. Expect 94 to 98 %
right from both, in 22 s on 2 cores (44 CPU seconds).
"""

import torch
from torch import nn

import unisono
from unisono.data.digits import load_digits


def main(name: str, options: dict[str, int]) -> None:
    run = unisono.Run(seed=0, strategy=unisono.strategy(name, **options))
    data = load_digits()
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    trainer = unisono.Trainer(run, model, torch.optim.Adam(model.parameters(), lr=5e-3), loss=nn.CrossEntropyLoss())
    result = trainer.fit(
        unisono.ArrayDataset(data.train_images, data.train_labels),
        epochs=6,
        batch_size=64,
        test_set=unisono.ArrayDataset(data.test_images, data.test_labels),
        show_progress=False,
    )
    if run.world.is_leader:
        print(f"{name}: {result['metrics']['test_accuracy']:.1%} right, {result['fingerprint']}")


if __name__ == "__main__":
    for name, options in (("ps", {}), ("ps_async", {"max_staleness": 4})):
        unisono.launch(main, name, options, workers=3)
