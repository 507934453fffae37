"""Pictures of scaling and forecasts: drawn, equal for equal numbers, with colours that say what they should."""

import pytest
from PIL import Image

from cli.test_forecast import told
from scaling.made import study, trial
from unisono.errors import ConfigError
from unisono.report.forecast_picture import draw_forecast
from unisono.report.scaling_picture import draw_scaling
from unisono.scaling.study import summarise


def colours(path):
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width == 1200
        return {colour for _, colour in image.convert("RGB").getcolors(1 << 24)}


def near(found, wanted):
    return any(all(abs(a - b) < 12 for a, b in zip(colour, wanted, strict=True)) for colour in found)


def test_scaling_is_drawn(tmp_path):
    """Lines, bars of phases, and red where there are more workers than cores: and only there."""
    draw_scaling(summarise(study()), tmp_path / "a.png", title="digits", weak=False, note="2 cores")
    draw_scaling(summarise(study(cores=8)), tmp_path / "b.png", title="digits", weak=False, note="8 cores")
    alarm, blue = (0xB0, 0x00, 0x20), (0x00, 0x72, 0xB2)
    assert near(colours(tmp_path / "a.png"), alarm)
    assert not near(colours(tmp_path / "b.png"), alarm)
    assert near(colours(tmp_path / "b.png"), blue)


def test_equal_numbers_give_equal_bytes(tmp_path):
    """Also with one row, in weak scaling, and with a title from somewhere else."""
    for name in ("a.png", "b.png"):
        rows = summarise(study(trial(1, 0.08), weak=True))
        draw_scaling(rows, tmp_path / name, title="$x^2$ </script>\n\u202e", weak=True)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_nothing_cannot_be_drawn(tmp_path):
    """No rows, no forecasts, no directory."""
    with pytest.raises(ConfigError, match="got none"):
        draw_scaling([], tmp_path / "a.png", title="", weak=False)
    with pytest.raises(ConfigError, match="got none"):
        draw_forecast({"forecasts": [], "job": {"weak": False}}, tmp_path / "a.png")
    with pytest.raises(ConfigError, match="can be written"):
        draw_scaling(summarise(study()), tmp_path / "no" / "a.png", title="", weak=False)


@pytest.mark.parametrize("ranks", ["1", "1..65536"])
def test_forecasts_are_drawn(ranks, tmp_path):
    """One number of ranks, and all."""
    draw_forecast(told("--ranks", ranks), tmp_path / "f.png")
    assert near(colours(tmp_path / "f.png"), (0x00, 0x72, 0xB2))
