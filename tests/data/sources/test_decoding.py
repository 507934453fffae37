"""Fields are decoded by their endings."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from unisono.data.sources.decoding import decode_fields, decode_image


def png(mode, size=(4, 3)):
    buffer = io.BytesIO()
    Image.new(mode, size, 7).save(buffer, "png")
    return buffer.getvalue()


def test_fields_by_their_endings():
    """The last part decides; what nobody knows stays bytes."""
    array = io.BytesIO()
    np.save(array, np.arange(3))
    found = decode_fields({
        "__key__": "a/1", "json": b'{"a": [1]}', "txt": "né".encode(), "cls": b" 7\n", "x.npy": array.getvalue(),
        "left.png": png("RGB"), "bin": b"\x00",
    })  # fmt: skip
    assert found["__key__"] == "a/1"
    assert (found["json"], found["txt"], found["cls"], found["bin"]) == ({"a": [1]}, "né", 7, b"\x00")
    assert found["x.npy"].tolist() == [0, 1, 2]
    assert torch.equal(found["left.png"], torch.tensor([7, 0, 0], dtype=torch.uint8)[:, None, None].expand(3, 3, 4))


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 3), ("RGBA", 3), ("P", 3)])
def test_images_have_one_channel_or_three(mode, channels):
    """Grey values stay one channel, all else becomes RGB."""
    image = decode_image(png(mode))
    assert (image.dtype, tuple(image.shape)) == (torch.uint8, (channels, 3, 4))


def test_arrays_hold_no_objects():
    """A pickle in a shard is not loaded."""
    array = io.BytesIO()
    np.save(array, np.array([{}]), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        decode_fields({"npy": array.getvalue()})
