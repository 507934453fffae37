"""Images as micro-batches: normalised like MNIST, laid out for speed, changed by key only."""

import numpy as np
import pytest
import torch

from unisono.data.loader import Fetcher, Task, fetch_all
from unisono.data.sets.augment import Augment
from unisono.data.sets.mnist import MEAN, STD
from unisono.data.sets.pictures import Pictures
from unisono.errors import DataError

CHANCE = np.random.default_rng(0)
GREY = CHANCE.integers(0, 256, (30, 12, 12), dtype=np.uint8)
COLOUR = CHANCE.integers(0, 256, (30, 12, 10, 3), dtype=np.uint8)
LABELS = np.arange(30) % 3


def test_values_are_the_normalised_ones():
    """(x / 255 - mean) / std, each operation in float32, in this order."""
    images, labels = Pictures(GREY, LABELS, mean=MEAN, std=STD).fetch_micro_batch(np.array([4, 2]))
    expected = (GREY[[4, 2], None].astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
    assert np.array_equal(images.numpy(), expected)
    assert labels.tolist() == [1, 2]
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_channels_have_their_own_mean():
    """Colour images come as (n, 3, height, width), each channel by its own mean and spread."""
    mean, std = np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 4], np.float32)
    images, _ = Pictures(COLOUR, LABELS, mean=mean, std=std).fetch_micro_batch(np.arange(5))
    assert images.shape == (5, 3, 12, 10)
    assert np.allclose(images.numpy().transpose(0, 2, 3, 1), (COLOUR[:5] / 255 - mean) / std, atol=1e-6)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert images.data_ptr() % 4 == 0


def test_only_training_is_augmented():
    """In evaluation (epoch -1) an image is shown as it is."""
    fetcher = Fetcher(Pictures(GREY, LABELS, augment=Augment(shift=2)), 0)
    plain = Pictures(GREY, LABELS).fetch_micro_batch(np.arange(8))[0]
    assert torch.equal(fetcher[Task(-1, np.arange(8))].x, plain)
    assert not torch.equal(fetcher[Task(0, np.arange(8))].x, plain)


@pytest.mark.parametrize("text", ["flip,shift=2", "rotate=15,crop=0.8"])
def test_loader_processes_change_no_bit(text):
    """0, 1 and 2 loader processes give the same augmented micro-batches."""
    fetcher = Fetcher(Pictures(COLOUR, LABELS, augment=Augment.parse(text)), 5)
    tasks = [Task(epoch, np.arange(start, start + 6)) for epoch in range(2) for start in (0, 6, 12)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the loader's processes have it
    try:
        seen = [list(fetch_all(fetcher, tasks, num_workers=count)) for count in (0, 1, 2)]
    finally:
        torch.set_num_threads(threads)
    for others in seen[1:]:
        assert all(torch.equal(mine.x, theirs.x) for mine, theirs in zip(seen[0], others, strict=True))


def test_the_background_is_black_before_normalisation():
    """What a shift brings in is a pixel of 0, not of the mean."""
    white = np.full((50, 8, 8), 255, np.uint8)
    pictures = Pictures(white, np.zeros(50, np.int64), mean=0.5, std=0.5, augment=Augment(shift=2))
    assert set(pictures.fetch_keyed(np.arange(50), seed=0, epoch=0)[0].unique().tolist()) == {-1.0, 1.0}


def test_other_arrays_are_refused():
    """Floats, missing dimensions, missing labels."""
    for images, labels in ((GREY.astype(np.float32), LABELS), (GREY[0], LABELS[:12]), (GREY, LABELS[:4])):
        with pytest.raises(DataError, match="expected uint8 images"):
            Pictures(images, labels)


def test_the_fingerprint_says_the_augmentation():
    """Other changes are another score."""
    one, two = (Pictures(GREY, LABELS, augment=augment, key="k").fingerprint for augment in (None, Augment(flip=True)))
    assert one != two


@pytest.mark.parametrize("other", ["pixel", "label", "mean", None])
def test_the_fingerprint_is_that_of_the_content(other):
    """Without a key: one pixel, one label or another mean is other data; a read-only copy is not."""
    pixels, labels, mean = GREY.copy(), LABELS.copy(), 0.5
    if other == "pixel":
        pixels[7, 3, 2] ^= 1
    elif other == "label":
        labels[7] ^= 1
    elif other == "mean":
        mean = 0.25
    pixels.flags.writeable = False
    same = Pictures(pixels, labels, mean=mean).fingerprint == Pictures(GREY, LABELS, mean=0.5).fingerprint
    assert same == (other is None)
