"""Several machines: the same command on each, and the fingerprint of one process.

Two terminals of one computer can run two hosts, one process on the first and two on the second:

    unisono run --nnodes 2 --node-rank 0 --rdzv-endpoint 127.0.0.1:29400 -n 1 examples/several_machines.py runs/hosts
    unisono run --nnodes 2 --node-rank 1 --rdzv-endpoint 127.0.0.1:29400 -n 2 examples/several_machines.py runs/hosts

On two real machines write the first one's address in place of 127.0.0.1, and add --trust-network before the program
(docs/several-machines.md says what that opens). Then compare with one process:

    python examples/several_machines.py runs/alone

Replicas and seed belong to the program, hosts and processes to the command. Ctrl-C on one host stops and saves both;
the same two commands continue. Expect one fingerprint from all of them, in 15 s on 2 cores for both hosts (29 CPU
seconds).
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import unisono
from unisono.data.digits import load_digits


def main(out: str) -> None:
    with unisono.Run(seed=0, replicas=8, out=out, checkpoint_every=23) as run:
        data = load_digits()
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
        run.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3))
        loader = run.loader(unisono.ArrayDataset(data.train_images, data.train_labels), batch_size=64)
        for batch in run.steps(loader, epochs=2):
            run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
        world, fingerprint = run.world, run.fingerprint()
        if world.local_rank == 0:  # one rank of each host prints
            print(f"host {world.node_rank}: {world.local_world_size} of {world.world_size} ranks, {fingerprint}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/several-machines")
