"""Pictures read back: their texts, with the room that a real font needs for them, and their shapes."""

from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

from PIL import ImageFont

_font = cache(ImageFont.load_default)
NAMESPACE = "{http://www.w3.org/2000/svg}"


class Box(NamedTuple):
    text: str
    left: float
    top: float
    right: float
    bottom: float

    def covers(self, other: "Box") -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def tree_of(picture: Path | str) -> ET.Element:
    """Return a file's or a drawing's tree, without namespaces; what is not well-formed fails here."""
    text = picture.read_text() if isinstance(picture, Path) else picture
    tree = ET.fromstring(text)
    for node in tree.iter():
        node.tag = node.tag.removeprefix(NAMESPACE)
    return tree


def kinds(tree: ET.Element, tag: str, name: str) -> list[ET.Element]:
    """Return the elements of a class."""
    return [node for node in tree.iter(tag) if name in (node.get("class") or "").split()]


def boxes(svg: ET.Element, plain: int, *, at: tuple[float, float] = (0.0, 0.0)) -> list[Box]:
    """Return where the shown texts of a drawing are, drawings in it included; `plain`: where no size is named."""
    found = []
    for node in svg:
        if node.tag == "svg":
            found += boxes(node, plain, at=(at[0] + float(node.get("x")), at[1] + float(node.get("y"))))
        elif node.tag == "text":
            style = dict(part.split(":") for part in (node.get("style") or "").split(";") if part)
            size = float(style.get("font-size", f"{plain}px").removesuffix("px"))
            width = _font(size).getlength(node.text or "")
            x, y = at[0] + float(node.get("x")), at[1] + float(node.get("y"))
            anchor = "middle" if node.get("class") == "on" else node.get("text-anchor", "start")
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[anchor]
            found.append(Box(node.text or "", left, y - size * 0.75, left + width, y + size * 0.2))
    return found


def check_texts(svg: ET.Element) -> None:
    """Hold a picture to this: no text leaves it or covers another one, in a picture and on a phone."""
    _, _, width, height = map(float, svg.get("viewBox").split())
    found = boxes(svg, 16)
    assert len(found) > 4
    for number, box in enumerate(found):
        assert box.left >= 0 and box.right <= width and box.top >= 0 and box.bottom <= height, box
        covered = [other for other in found[number + 1 :] if box.covers(other)]
        assert not covered, (box, covered)
