"""A variational autoencoder: the noise that training draws is keyed by step and replica, so it is exact too.

    python examples/vae.py
    unisono verify examples/vae.py --workers 1,2,3

Two terms in one loss, reconstruction and divergence, each a mean over images. Two digits are drawn in letters at
the end. Expect a bound of 24 to 26 nats on test digits and one fingerprint on any number of workers, in 4 s on 2 cores
(7 CPU seconds).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits

LATENT = 8


class VAE(nn.Module):
    """Images (n, 1, 8, 8) to logits of their points (n, 64), and mean and log variance (n, 8) of what encodes them."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 2 * LATENT))
        self.decode = nn.Sequential(nn.Linear(LATENT, 128), nn.SiLU(), nn.Linear(128, 64))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encode(images).chunk(2, dim=1)
        sampled = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decode(sampled), mean, log_variance


def bound(model: VAE, images: Tensor) -> Tensor:
    """Return the negative evidence lower bound, in nats an image."""
    points, mean, log_variance = model(images)
    reconstruction = F.binary_cross_entropy_with_logits(points, images.flatten(1), reduction="none").sum(1)
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
    return (reconstruction + divergence).mean()


def main(out: str = "runs/vae", epochs: int = 12) -> None:
    data = load_digits()
    run = unisono.Run(seed=0, replicas=4, out=out, checkpoint_every=40)
    model = VAE()
    run.prepare(model, torch.optim.Adam(model.parameters(), lr=3e-3))
    loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
    for batch in run.steps(loader, epochs=epochs):
        run.step(batch, lambda micro: bound(model, micro.x))
    model.eval()
    if run.world.is_leader:
        with torch.no_grad():
            nats = bound(model, torch.as_tensor(data.test_images))
            invented = model.decode(torch.randn(2, LATENT)).sigmoid().view(2, 8, 8)
        for rows in zip(*invented, strict=True):
            print("   ".join("".join(" .:+#"[int(4.99 * point)] * 2 for point in row) for row in rows))
        print(f"bound {nats:.1f} nats\n{run.fingerprint()}")


if __name__ == "__main__":
    unisono.launch(main, workers="auto", replicas=4)
