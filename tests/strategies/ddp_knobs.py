"""Settings of DDP that must give the bits of a hand-written script."""

from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

KNOBS: dict[str, tuple[dict[str, Any], Any]] = {
    "plain": ({}, None),
    "unused": ({"find_unused_parameters": True}, None),
    "views": ({"gradient_as_bucket_view": True}, None),
    "static": ({"static_graph": True}, None),
    "small buckets": ({"bucket_cap_mb": 0.001}, None),
    "accumulate": ({"accumulate": 2}, None),
    "fp16 hook": ({"comm_hook": "fp16"}, default_hooks.fp16_compress_hook),
}
"""Options, and the hook of the script; bucket sizes change no bit between two ranks."""
