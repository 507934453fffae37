"""From a record of a shard to a sample: by the fields' endings, as webdataset does, or as the user says.

What comes out goes through torch's ``default_collate``: numbers and arrays become tensors, texts and bytes lists.
"""

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

IMAGES = ("png", "jpg", "jpeg", "webp", "bmp", "ppm", "pgm")


def decode_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a tar's sample, each decoded by the last part of its ending; unknown ones stay bytes."""
    return {
        name: _DECODERS.get(name.rpartition(".")[2], _same)(value) if isinstance(value, bytes) else value
        for name, value in record.items()
    }


def decode_image(content: bytes) -> Tensor:
    """Return uint8 (channels, height, width): one channel where the image has grey values only, else RGB."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        values = np.array(image if image.mode == "L" else image.convert("RGB"))
    return torch.from_numpy(values if values.ndim == 3 else values[:, :, np.newaxis]).permute(2, 0, 1).contiguous()


def _array(content: bytes) -> Any:
    return np.load(io.BytesIO(content), allow_pickle=False)


def _text(content: bytes) -> str:
    return content.decode("utf-8")


def _same(content: bytes) -> bytes:
    return content


_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "json": json.loads,
    **dict.fromkeys(("txt", "text", "transcript"), _text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), int),
    "npy": _array,
    **dict.fromkeys(IMAGES, decode_image),
}
