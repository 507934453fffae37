"""What all pictures share: a figure without global state, text shown literally, and a PNG file written whole.

Matplotlib is loaded when a picture is drawn. Imports no torch.
"""

import io
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from unisono.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
WIDTH = 1200
"""Width of every picture in pixels."""

INK, FAINT, RULE, ALARM = "#222222", "#757575", "#b5b5b5", "#b00020"
COLOURS = ("#0072b2", "#d98c00", "#009e73", "#c0609a", "#3fa0d8", "#d55e00", "#8c6d31", "#6a51a3")
"""One for each rank or line; told apart by colour-blind readers too."""

FONT = "DejaVu Sans"
_CUT = "\N{HORIZONTAL ELLIPSIS}"


def blank(height: float) -> "Figure":
    """Return an empty figure of `WIDTH` x `height` pixels, drawn by Agg whatever the user's settings are."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH / DPI, height / DPI), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def printable(text: str, size: float, width: float = WIDTH) -> str:
    """Return `text` on one line, with a box for what the font cannot show, cut where it would be too wide.

    Args:
        text: Any text.
        size: Of the font, in points; the widest weight is assumed.
        width: In pixels.
    """
    from matplotlib.font_manager import FontProperties, findfont, get_font

    font = get_font(findfont(FontProperties(family=FONT, weight="bold")))
    font.set_size(size, DPI)
    known = font.get_charmap()
    line = " ".join(text[:1000].split())
    line = "".join(char if char.isprintable() and ord(char) in known else "\N{WHITE SQUARE}" for char in line)
    advances = [font.load_char(ord(char)).linearHoriAdvance / 65536 for char in line]
    if sum(advances) <= width:
        return line
    room = width - font.load_char(ord(_CUT)).linearHoriAdvance / 65536
    return line[: sum(end <= room for end in itertools.accumulate(advances))] + _CUT


def save(figure: "Figure", path: str | Path) -> None:
    """Write a figure as PNG of 256 colours; the same figure gives the same bytes.

    Raises:
        ConfigError: The file cannot be written.
    """
    from PIL import Image

    drawn, picture = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=DPI)
    # A palette takes a third of the space, and pictures are kept in repositories.
    Image.open(drawn).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(picture, "png", optimize=True)
    try:
        Path(path).write_bytes(picture.getvalue())
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"expected a file that can be written, got {str(path)!r}: {error}. Hint: its directory must exist."
        ) from error
