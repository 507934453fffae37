"""What was probably meant."""

from unisono.hints import nearest


def test_the_nearest_name_is_a_hint():
    """One name, the nearest; nothing where none is near, or there is none."""
    assert nearest("trian", {"train": 1, "run": 2}) == " Hint: did you mean 'train'?"
    assert nearest("zzz", ["train", "run"]) == nearest("train", []) == ""
