"""What a program of another project has computed, one file for each rank: every bit of it counts."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def record(folder: str, model: torch.nn.Module | None, *seen: Any) -> None:
    """Write what this rank has seen, and the hash of a model's weights, into the folder."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()) if model is not None else ():
        digest.update(name.encode() + value.detach().contiguous().numpy().tobytes())
    group = dist.group.WORLD
    told = {"backend": group.name(), "size": dist.get_world_size(), "weights": digest.hexdigest(), "seen": seen}
    path = Path(folder, f"{os.environ['RANK']}.json")
    path.write_text(json.dumps(told, default=lambda tensor: tensor.tolist(), sort_keys=True))


def leave() -> None:
    """Leave the process group: under torchrun torch 2.13 ends every second process that still has one by SIGABRT."""
    dist.barrier()
    dist.destroy_process_group()
