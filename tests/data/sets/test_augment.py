"""Random image changes are keyed by sample, move pixels exactly, and turn about the centre."""

import numpy as np
import pytest

from unisono.data.sets.augment import Augment, uniforms
from unisono.errors import ConfigError

IMAGES = np.random.default_rng(0).random((40, 3, 9, 8), dtype=np.float32)
NUMBERS = np.arange(40) * 7


def test_the_numbers_are_uniform_and_keyed():
    """Mean and spread of uniform numbers, no correlation of neighbours, other numbers for other keys."""
    drawn = uniforms(0, 1, np.arange(20_000), 4)
    assert abs(drawn.mean() - 0.5) < 0.01
    assert abs(drawn.std() - 12**-0.5) < 0.01
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert np.abs(np.corrcoef(drawn.T) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.03
    assert not np.array_equal(uniforms(0, 2, np.arange(5), 4), drawn[:5])
    assert not np.array_equal(uniforms(1, 1, np.arange(5), 4), drawn[:5])


def test_golden_numbers():
    """The key is pinned: a change of it would change every augmented run."""
    assert uniforms(0, 0, np.array([0, 1, 10**9]), 2).tolist() == [
        [0.9987010189467973, 0.24167275750024309],
        [0.7676669479599599, 0.33234012849774897],
        [0.9059607520621896, 0.08111393101102826],
    ]


@pytest.mark.parametrize(
    "text", ["flip", "shift=2", "flip,shift=3", "rotate=20", "crop=0.7", "flip,shift=1,rotate=5,crop=0.9"]
)
def test_a_sample_s_change_does_not_depend_on_its_batch(text):
    """Alone or among others, in any order, a sample looks the same; in the next epoch it does not."""
    augment = Augment.parse(text)
    together = augment.apply(IMAGES.copy(), 3, 1, NUMBERS)
    alone = np.concatenate([augment.apply(IMAGES[i : i + 1].copy(), 3, 1, NUMBERS[i : i + 1]) for i in range(40)])
    backwards = augment.apply(IMAGES[::-1].copy(), 3, 1, NUMBERS[::-1])[::-1]
    assert np.allclose(together, alone, atol=1e-6)
    assert np.allclose(together, backwards, atol=1e-6)
    assert together.shape == IMAGES.shape
    assert together.dtype == np.float32
    assert not np.allclose(together, augment.apply(IMAGES.copy(), 3, 2, NUMBERS))
    assert not np.allclose(together, augment.apply(IMAGES.copy(), 3, 1, NUMBERS + 1))


def test_flip_and_shift_move_whole_pixels():
    """Each image is one of the possible moves, bit for bit, and all of them occur."""
    seen = set()
    for image, moved in zip(IMAGES, Augment.parse("flip,shift=1").apply(IMAGES.copy(), 0, 0, NUMBERS), strict=True):
        framed = np.pad(image, ((0, 0), (1, 1), (1, 1)))
        for flip in (False, True):
            turned = np.pad(image[:, :, ::-1], ((0, 0), (1, 1), (1, 1))) if flip else framed
            for down in range(3):
                for right in range(3):
                    if np.array_equal(turned[:, down : down + 9, right : right + 8], moved):
                        seen.add((flip, down, right))
                        break
    assert len(seen) >= 14


def test_nothing_is_nothing():
    """Without a change the images come back; so do those that a full turn would leave."""
    assert np.array_equal(Augment.parse("none").apply(IMAGES, 0, 0, NUMBERS), IMAGES)
    assert str(Augment()) == "none"


def test_rotation_is_about_the_centre():
    """A ring around the centre stays one, a point far out moves along it, and background comes in at the corners."""
    yy, xx = np.mgrid[-10:11, -10:11]
    ring = (np.abs(np.hypot(yy, xx) - 6) < 1.5).astype(np.float32)[None, None].repeat(20, 0)
    turned = Augment.parse("rotate=180").apply(ring, 0, 0, np.arange(20))
    assert np.abs(turned - ring).mean() < 0.08
    point = np.zeros((20, 1, 21, 21), np.float32)
    point[:, 0, 10, 18] = 1
    places = np.array(
        [
            np.unravel_index(each.argmax(), (21, 21))
            for each in Augment.parse("rotate=180").apply(point, 0, 0, np.arange(20))
        ]
    )
    assert len({tuple(place) for place in places.tolist()}) > 8
    assert np.abs(np.hypot(*(places - 10).T) - 8).max() < 1.5


def test_a_crop_enlarges():
    """A part of the image fills all of it: no background comes in."""
    ones = np.ones((30, 1, 16, 16), np.float32)
    assert Augment.parse("crop=0.5").apply(ones, 0, 0, np.arange(30))[:, :, 1:-1, 1:-1].min() > 0.99
    assert Augment.parse("shift=3").apply(ones, 0, 0, np.arange(30)).min() == 0


@pytest.mark.parametrize("text", ["flop", "shift", "shift=x", "rotate=", "flip=1", "shift=-1", "rotate=200", "crop=0"])
def test_nonsense_is_refused(text):
    """Unknown names, missing numbers, values out of range."""
    with pytest.raises(ConfigError, match="expected"):
        Augment.parse(text)


def test_text_and_back():
    """What is recorded reads as what was given."""
    assert str(Augment.parse(" flip, shift=2,rotate=10 ,crop=0.8")) == "flip,shift=2,rotate=10,crop=0.8"
    assert Augment.parse(str(Augment(flip=True, rotate=7.5))) == Augment(flip=True, rotate=7.5)
