"""A recipe is run by name, on samples spread evenly over the data."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.recipes import digits, images, imdb, mnist, text
from unisono.recipes import execute as play_module
from unisono.recipes.catalog import RECIPES, Options
from unisono.recipes.execute import execute, spread, thinned


def test_a_warning_of_ours_is_one_line():
    """Without the line of our code; another's is shown as Python does."""
    ours = play_module._one_line("passed over", UserWarning, play_module.__file__, 1)
    assert ours == "unisono: passed over\n"
    for other in (("old", DeprecationWarning, play_module.__file__), ("odd", UserWarning, "/elsewhere/a.py")):
        assert play_module._one_line(*other, 1) == play_module._PYTHONS(*other, 1)


@given(st.integers(1, 5000), st.none() | st.integers(1, 6000))
def test_spread_chooses_distinct_samples_in_order(num_samples, limit):
    """As many as asked for, no more than there are, each once, in the data's order, first one included."""
    chosen = spread(num_samples, limit).tolist()
    assert len(chosen) == (num_samples if limit is None else min(limit, num_samples))
    assert chosen == sorted(set(chosen))
    assert chosen[0] == 0
    assert chosen[-1] < num_samples


@given(st.integers(1, 12), st.integers(1, 60), st.integers(1, 300))
def test_spread_keeps_sorted_classes_balanced(num_classes, per_class, limit):
    """Data sorted by class keeps its shares within one sample, where the first samples would be one class."""
    labels = np.repeat(np.arange(num_classes), per_class)
    counts = np.bincount(labels[spread(len(labels), limit)], minlength=num_classes)
    assert counts.max() - counts.min() <= 1


def test_the_first_samples_would_be_one_class():
    """The control: cutting sorted data at its head is not balanced."""
    labels = np.repeat(np.arange(2), 100)
    assert set(labels[:50]) == {0}
    assert np.bincount(labels[spread(200, 50)]).tolist() == [25, 25]


def test_thinned_keeps_rows_together():
    """Images and labels stay pairs."""
    images, labels = thinned(7, np.arange(100) * 2, np.arange(100))
    assert len(labels) == 7
    assert (images == labels * 2).all()
    assert len(thinned(None, labels)[0]) == 7


@pytest.mark.parametrize(
    ("name", "module"), [("digits", digits), ("mnist", mnist), ("imdb", imdb), ("text", text), ("images", images)]
)
def test_play_finds_the_recipe_s_file(monkeypatch, name, module):
    """Each recipe of the catalog is run by the file of its name, with the options as given."""
    played = []
    monkeypatch.setattr(module, "train", played.append)
    options = Options(recipe=name, model=RECIPES[name].models[0], epochs=1, batch_size=8, replicas=2)
    execute(options)
    assert played == [options]
