"""Draw the pictures of docs/concepts.md from the code that trains: placement, sampler, tree and schedules.

    python docs/draw_concepts.py

writes docs/pictures/concepts/*.svg. Nothing in them is drawn by hand: boxes, owners, orders and moves come from the
pure functions of the package. A test compares the files with what this program draws. Loads no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path

from unisono.collectives.placement import place_evenly
from unisono.collectives.schedules import Schedule, owner_computes, plan, start, states
from unisono.collectives.tree import Node, owned_nodes, split
from unisono.data.sampler import ExactSampler
from unisono.report.schedule_picture import Content
from unisono.report.svg import DARK_DRAWING, LIGHT

PICTURES = Path(__file__).parent / "pictures" / "concepts"
WIDTH = 640
REPLICAS = 8
COLOURS = [LIGHT[f"c{number}"] for number in range(8)]
INK, FAINT, RULE = LIGHT["ink"], LIGHT["faint"], LIGHT["rule"]
SHARED = "#5f6b76"  # what no single rank owns


class Svg:
    """An SVG picture of `WIDTH` pixels, put together shape by shape."""

    def __init__(self, height: float, label: str) -> None:
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
            f'height="{height:g}" font-family="system-ui, sans-serif" role="img" aria-label="{escape(label)}">',
            f"{DARK_DRAWING}"
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0 8 4 0 8z" fill="{SHARED}"/></marker></defs>',
            f'<rect width="{WIDTH}" height="{height:g}" rx="6" fill="white"/>',
        ]

    def box(self, x: float, y: float, width: float, height: float, fill: str, *, edge: str = "white") -> None:
        """Draw a rectangle from its upper left corner."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{fill}" stroke="{edge}"/>'
        )

    def text(
        self, x: float, y: float, words: object, *, size: float = 15, fill: str = INK, at: str = "middle",
        bold: bool = False,
    ) -> None:  # fmt: skip
        """Write one line; y is its middle."""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y + size * 0.35:g}" font-size="{size:g}" fill="{fill}" text-anchor="{at}"{weight}>'
            f"{escape(str(words))}</text>"
        )

    def line(self, tail: tuple[float, float], head: tuple[float, float], *, tip: bool = False, ink: str = RULE) -> None:
        """Draw a line, or an arrow."""
        marker = ' marker-end="url(#tip)"' if tip else ""
        self.parts.append(
            f'<line x1="{tail[0]:g}" y1="{tail[1]:g}" x2="{head[0]:g}" y2="{head[1]:g}" stroke="{ink}" '
            f'stroke-width="1.5"{marker}/>'
        )

    def note(self, x: float, y: float, *lines: str) -> None:
        """Write small lines below each other."""
        for number, words in enumerate(lines):
            self.text(x, y + 18 * number, words, size=13, fill=FAINT, at="start")

    def done(self) -> str:
        """Return the file's text."""
        return "\n".join([*self.parts, "</svg>", ""])


def placement() -> str:
    """The same eight replicas on 1, 2, 3 and 4 workers."""
    worlds = (1, 2, 3, 4)
    svg = Svg(74 + 54 * len(worlds), "Eight replicas on one to four workers")
    cell, left = 58, 150
    svg.text(left, 26, "replicas of one step: fixed by the score", at="start", bold=True)
    for row, workers in enumerate(worlds):
        y = 52 + 54 * row
        svg.text(20, y + 18, f"{workers} worker{'s' if workers > 1 else ''}", at="start")
        for rank, hosted in enumerate(place_evenly(REPLICAS, workers)):
            for replica in hosted:
                svg.box(left + replica * cell, y, cell - 6, 36, COLOURS[rank])
                svg.text(left + replica * cell + cell / 2 - 3, y + 18, replica, fill="white", bold=True)
    svg.note(left, 52 + 54 * len(worlds) + 4, "colour: the rank that computes it")
    return svg.done()


def batch() -> str:
    """A global batch, cut into the micro-batches of the replicas."""
    sampler = ExactSampler(1437, 20, REPLICAS, seed=0)
    step = 7
    svg = Svg(262, "A batch of twenty samples, cut into eight micro-batches")
    svg.text(16, 24, f"step {step}: batch_size = 20 of 1,437 samples, a slice of the epoch's order", at="start",
             bold=True)  # fmt: skip
    cell, x = 46.0, 16.0
    for replica, samples in enumerate(sampler.micro_batches(step)):
        shade = COLOURS[0] if replica % 2 == 0 else COLOURS[4]
        if replica == REPLICAS // 2:
            x = 16.0
        first, y = x, 48 + 86 * (replica >= REPLICAS // 2)
        for sample in samples.tolist():
            svg.box(x, y, cell - 2, 34, shade)
            svg.text(x + cell / 2 - 1, y + 17, sample, fill="white", size=13)
            x += cell
        svg.line((first, y + 44), (x - 3, y + 44))
        svg.text((first + x) / 2 - 1, y + 62, f"replica {replica}", size=13)
        x += 7
    svg.note(
        16, 228, "Each replica computes its micro-batch, on any rank. The first four have one more.",
        "The numbers follow from (seed, epoch, step) alone: to resume, the step is enough.",
    )  # fmt: skip
    return svg.done()


def tree() -> str:
    """The canonical tree over eight replicas, and who adds what with three workers."""
    placed = place_evenly(REPLICAS, 3)
    owner: dict[Node, int] = {}
    partials = owned_nodes(tuple(placed), REPLICAS)
    svg = Svg(362, "The tree of eight replicas on three workers")
    svg.text(16, 24, "((0+1)+(2+3)) + ((4+5)+(6+7)), always", at="start", bold=True)
    cell, base = 74, 300

    def claim(node: Node, rank: int) -> None:
        owner[node] = rank
        if node[1] - node[0] > 1:
            middle = split(node)
            claim((node[0], middle), rank)
            claim((middle, node[1]), rank)

    for rank, nodes in enumerate(partials):
        for node in nodes:
            claim(node, rank)

    def place(node: Node) -> tuple[float, float]:
        if node[1] - node[0] == 1:
            return 50 + node[0] * cell, base
        left, right = place((node[0], split(node))), place((split(node), node[1]))
        return (left[0] + right[0]) / 2, min(left[1], right[1]) - 70

    def draw(node: Node) -> None:
        x, y = place(node)
        if node[1] - node[0] > 1:
            for child in ((node[0], split(node)), (split(node), node[1])):
                svg.line((x, y), place(child))
                draw(child)
        sent = any(node in nodes for nodes in partials)
        svg.box(
            x - 22, y - 15, 44, 30, COLOURS[owner[node]] if node in owner else SHARED, edge=INK if sent else "white"
        )
        svg.text(x, y, node[0] if node[1] - node[0] == 1 else "+", fill="white", bold=True)

    draw((0, REPLICAS))
    svg.note(
        16, 332, "Colour: the rank that adds. Outlined: the partials it sends.",
        "Grey: added by every rank for its own slice.",
    )  # fmt: skip
    return svg.done()


def exact_step() -> str:
    """One step on three workers, from the batch to the new weights."""
    exchange = owner_computes(3)
    placed = place_evenly(REPLICAS, 3)
    partials = owned_nodes(tuple(placed), REPLICAS)
    svg = Svg(490, "One exact step on three workers")
    columns = (196, 364, 532)

    def lane(y: float, title: str, words: Callable[[int], str], fill: str | None = None, height: float = 34) -> None:
        svg.text(16, y + height / 2, title, at="start", bold=True, size=14)
        for rank, x in enumerate(columns):
            svg.box(x - 78, y, 156, height, fill or COLOURS[rank])
            svg.text(x, y + height / 2, words(rank), fill="white", size=13)

    def arrows(y: float, number: int) -> None:
        for move in exchange.rounds[number]:
            svg.line((columns[move.source], y + 3), (columns[move.target], y + 38), tip=True, ink=COLOURS[move.source])

    for rank, x in enumerate(columns):
        svg.text(x, 22, f"rank {rank}", fill=COLOURS[rank], bold=True)
    lane(40, "data", lambda rank: f"replicas {placed[rank].start} to {placed[rank].stop - 1}")
    lane(88, "compute", lambda rank: f"{len(placed[rank])} x loss, gradient")
    lane(136, "add up", lambda rank: " ".join(f"[{a}..{b - 1}]" if b - a > 1 else f"[{a}]" for a, b in partials[rank]))
    arrows(170, 0)
    svg.text(16, 192, "round 1", at="start", size=13, fill=FAINT)
    lane(212, "own a slice", lambda rank: f"slice {rank}, in tree order")
    arrows(246, 1)
    svg.text(16, 268, "round 2", at="start", size=13, fill=FAINT)
    lane(288, "all have", lambda _: "the whole gradient", SHARED)
    lane(336, "update", lambda _: "clip, Adam, schedule", SHARED)
    lane(384, "record", lambda rank: "ledger line" if rank == 0 else "checksum compared", SHARED)
    svg.note(
        16, 434, "[a..b]: the sum of replicas a to b, a partial; [a]: replica a alone.",
        "Grey: the same code on the same bits.",
        "Coloured: which rank does it may change, the sums do not.",
    )  # fmt: skip
    return svg.done()


def _buffers(svg: Svg, x: float, y: float, schedule: Schedule, held: Sequence[Mapping[int, Content]], *, cell: float,
             gap: float, old: Sequence[Mapping[int, Content]] | None = None) -> None:  # fmt: skip
    """Draw what the ranks hold, side by side; a chunk has a band for each rank whose values are in it."""
    for rank, chunks in enumerate(held):
        for chunk in range(schedule.num_chunks):
            left = x + rank * (schedule.num_chunks * cell + gap) + chunk * cell
            value = chunks.get(chunk)
            is_new = old is not None and value is not None and old[rank].get(chunk) != value
            svg.box(left, y, cell - 2, 40, "#f3f3f3", edge=INK if is_new else RULE)
            inside = sorted(value.ranks) if value else []
            for band, source in enumerate(inside):
                height = 38 / len(inside)
                svg.parts.append(
                    f'<rect x="{left + 1:g}" y="{y + 1 + band * height:g}" width="{cell - 4:g}" '
                    f'height="{height:g}" fill="{COLOURS[source]}"/>'
                )
            if value and schedule.num_chunks > 1:
                svg.text(left + cell / 2 - 1, y + 20, "abcdefgh"[chunk], fill="white", size=13, bold=True)


def _play(schedule: Schedule) -> list[list[dict[int, Content]]]:
    own = start(schedule, lambda rank, chunk: Content(frozenset([rank]), str(rank)))
    return list(states(schedule, own, lambda left, right: left + right))


def collectives() -> str:
    """The six patterns on four ranks: before and after."""
    names = ("broadcast", "scatter", "gather", "all-gather", "reduce", "all-reduce")
    svg = Svg(500, "Six collectives on four ranks, before and after")
    for number, name in enumerate(names):
        schedule = plan(name, 4)
        rows = _play(schedule)
        x, y = 20 + (number % 2) * 316, 20 + (number // 2) * 150
        cell = 284 / 4 - 11 if schedule.num_chunks == 1 else (284 / 4 - 11) / schedule.num_chunks
        svg.text(x, y + 6, name, at="start", bold=True)
        for row, held in enumerate((rows[0], rows[-1])):
            _buffers(svg, x, y + 22 + row * 56, schedule, held, cell=cell, gap=11, old=rows[0] if row else None)
        for rank in range(4):
            middle = x + rank * 71 + 30
            svg.line((middle, y + 65), (middle, y + 76), tip=True, ink=SHARED)
    svg.note(
        20, 462, "Four ranks side by side; above before, below after.",
        "Colours: whose values are in it; a sum has several.",
    )  # fmt: skip
    return svg.done()


def ring() -> str:
    """The chunked ring on four ranks: what each holds after every round."""
    schedule = plan("ring", 4)
    rows = _play(schedule)
    svg = Svg(88 + 54 * len(rows), "The ring on four ranks, round by round")
    for rank in range(4):
        svg.text(98 + rank * 138 + 58, 20, f"rank {rank}", fill=COLOURS[rank], bold=True)
    for row, held in enumerate(rows):
        y = 40 + row * 54
        svg.text(12, y + 20, "start" if row == 0 else f"round {row}", at="start", size=14)
        _buffers(svg, 98, y, schedule, held, cell=29, gap=22, old=rows[row - 1] if row else None)
    svg.note(
        12, 52 + 54 * len(rows),
        "Each round a rank sends one chunk to its right neighbour: 1 to 3 add, 4 to 6 copy.",
        "Outlined: new. A chunk is summed once, then copied: the same bits on all ranks.",
    )  # fmt: skip
    return svg.done()


DRAWN = {
    "placement": placement, "batch": batch, "tree": tree, "exact-step": exact_step, "collectives": collectives,
    "ring": ring,
}  # fmt: skip


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, draw in DRAWN.items():
        (PICTURES / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main()
