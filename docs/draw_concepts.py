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
WIDTH = 460
EDGE = 12
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
        self, x: float, y: float, words: object, *, size: float = 14, fill: str = INK, at: str = "middle",
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

    def title(self, *lines: str) -> None:
        """Write above all what the picture shows."""
        for number, words in enumerate(lines):
            self.text(EDGE, 20 + 21 * number, words, size=16, at="start", bold=True)

    def note(self, y: float, *lines: str) -> None:
        """Write pale lines below each other."""
        for number, words in enumerate(lines):
            self.text(EDGE, y + 20 * number, words, fill=FAINT, at="start")

    def done(self) -> str:
        """Return the file's text."""
        return "\n".join([*self.parts, "</svg>", ""])


def placement() -> str:
    """The same eight replicas on 1, 2, 3 and 4 workers."""
    worlds = (1, 2, 3, 4)
    svg = Svg(68 + 46 * len(worlds), "Eight replicas on one to four workers")
    cell, left = 44, 102
    svg.title("The same 8 replicas on any number of workers")
    for row, workers in enumerate(worlds):
        y = 42 + 46 * row
        svg.text(EDGE, y + 18, f"{workers} worker{'s' if workers > 1 else ''}", at="start")
        for rank, hosted in enumerate(place_evenly(REPLICAS, workers)):
            for replica in hosted:
                svg.box(left + replica * cell, y, cell - 5, 36, COLOURS[rank])
                svg.text(left + replica * cell + cell / 2 - 2, y + 18, replica, fill="white", size=16, bold=True)
    svg.note(42 + 46 * len(worlds) + 10, "Colour: the worker that computes the replica.")
    return svg.done()


def batch() -> str:
    """A global batch, cut into the micro-batches of the replicas."""
    sampler = ExactSampler(1437, 20, REPLICAS, seed=0)
    step = 7
    svg = Svg(310, "A batch of twenty samples, cut into eight micro-batches")
    svg.title("Step 7: 20 of 1,437 samples, cut for 8 replicas")
    cell = 42.0
    for replica, samples in enumerate(sampler.micro_batches(step)):
        shade = COLOURS[0] if replica % 2 == 0 else COLOURS[4]
        left, y = EDGE + 226 * (replica % 2), 44 + 48 * (replica // 2)
        svg.text(left, y + 17, f"replica {replica}", at="start")
        for place, sample in enumerate(samples.tolist()):
            x = left + 76 + place * (cell + 2)
            svg.box(x, y, cell, 34, shade)
            svg.text(x + cell / 2, y + 17, sample, fill="white")
    svg.note(
        250, "Each replica computes its micro-batch, on any worker.",
        "The first four have one more. The order follows from",
        "(seed, epoch, step) alone: to resume, the step is enough.",
    )  # fmt: skip
    return svg.done()


def tree() -> str:
    """The canonical tree over eight replicas, and who adds what with three workers."""
    placed = place_evenly(REPLICAS, 3)
    owner: dict[Node, int] = {}
    partials = owned_nodes(tuple(placed), REPLICAS)
    svg = Svg(372, "The tree of eight replicas on three workers")
    svg.title("One order for any number of workers:", "((0+1)+(2+3)) + ((4+5)+(6+7))")
    cell, base = 55, 284

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
            return 36 + node[0] * cell, base
        left, right = place((node[0], split(node))), place((split(node), node[1]))
        return (left[0] + right[0]) / 2, min(left[1], right[1]) - 66

    def draw(node: Node) -> None:
        x, y = place(node)
        if node[1] - node[0] > 1:
            for child in ((node[0], split(node)), (split(node), node[1])):
                svg.line((x, y), place(child))
                draw(child)
        sent = any(node in nodes for nodes in partials)
        svg.box(
            x - 20, y - 15, 40, 30, COLOURS[owner[node]] if node in owner else SHARED, edge=INK if sent else "white"
        )
        svg.text(x, y, node[0] if node[1] - node[0] == 1 else "+", fill="white", size=16, bold=True)

    draw((0, REPLICAS))
    svg.note(
        316, "Three workers. Colour: the worker that adds.",
        "Outlined: the partial sums that it sends.",
        "Grey: added by every worker, each for its own slice.",
    )  # fmt: skip
    return svg.done()


def exact_step() -> str:
    """One step on three workers, from the batch to the new weights."""
    exchange = owner_computes(3)
    placed = place_evenly(REPLICAS, 3)
    partials = owned_nodes(tuple(placed), REPLICAS)
    svg = Svg(578, "One exact step on three workers")
    svg.title("3 workers share the sums,", "all have the same bits after them")
    columns, wide, tall = (149, 265, 381), 110, 40

    def lane(y: float, title: str, words: Callable[[int], str], fill: str | None = None) -> None:
        svg.text(EDGE, y + tall / 2, title, at="start", bold=True)
        for rank, x in enumerate(columns):
            svg.box(x - wide / 2, y, wide, tall, fill or COLOURS[rank])
            lines = words(rank).split("|")
            for number, line in enumerate(lines):
                svg.text(x, y + tall / 2 + 17 * (number - (len(lines) - 1) / 2), line, fill="white")

    def arrows(y: float, number: int) -> None:
        svg.text(EDGE, y + 18, f"round {number + 1}", at="start", fill=FAINT)
        for move in exchange.rounds[number]:
            svg.line((columns[move.source], y + 3), (columns[move.target], y + 35), tip=True, ink=COLOURS[move.source])

    for rank, x in enumerate(columns):
        svg.text(x, 70, f"rank {rank}", fill=COLOURS[rank], bold=True)
    lane(84, "data", lambda rank: f"replicas|{placed[rank].start} to {placed[rank].stop - 1}")
    lane(132, "compute", lambda rank: f"{len(placed[rank])} losses,|{len(placed[rank])} gradients")
    lane(180, "add up", lambda rank: " ".join(f"[{a}..{b - 1}]" if b - a > 1 else f"[{a}]" for a, b in partials[rank]))
    arrows(220, 0)
    lane(258, "add slice", lambda rank: f"slice {rank},|in tree order")
    arrows(298, 1)
    lane(336, "all have", lambda _: "the whole|gradient", SHARED)
    lane(384, "update", lambda _: "clip, Adam,|schedule", SHARED)
    lane(432, "record", lambda rank: "line of the|ledger" if rank == 0 else "checksum|compared", SHARED)
    svg.note(
        494, "[a..b]: the sum of replicas a to b; [a]: replica a alone.",
        "Coloured: which rank does it may change,", "the sums do not. Grey: the same code on the same bits,",
        "on every rank.",
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
                svg.text(left + cell / 2 - 1, y + 20, "abcdefgh"[chunk], fill="white", bold=True)


def _play(schedule: Schedule) -> list[list[dict[int, Content]]]:
    own = start(schedule, lambda rank, chunk: Content(frozenset([rank]), str(rank)))
    return list(states(schedule, own, lambda left, right: left + right))


def collectives() -> str:
    """The six patterns on four ranks: before and after."""
    names = ("broadcast", "scatter", "gather", "all-gather", "reduce", "all-reduce")
    wide = 398  # of four buffers and what is between them
    svg = Svg(54 + 142 * len(names), "Six collectives on four ranks, before and after")
    svg.title("Six collectives: who has what, before and after")
    for number, name in enumerate(names):
        schedule = plan(name, 4)
        rows = _play(schedule)
        x, y = EDGE, 50 + number * 132
        column = wide / 4
        cell = (column - 14) / schedule.num_chunks
        svg.text(x, y + 2, name, at="start", size=15, bold=True)
        for row, held in enumerate((rows[0], rows[-1])):
            _buffers(svg, x, y + 16 + row * 56, schedule, held, cell=cell, gap=14, old=rows[0] if row else None)
        for rank in range(4):
            middle = x + rank * column + (column - 14) / 2
            svg.line((middle, y + 59), (middle, y + 70), tip=True, ink=SHARED)
    svg.note(
        50 + 132 * len(names) + 6, "Four ranks side by side; above before, below after.",
        "Colours: whose values are in it; a sum has several.", "Outlined: new.",
    )  # fmt: skip
    return svg.done()


def ring() -> str:
    """The chunked ring on four ranks: what each holds after every round."""
    schedule = plan("ring", 4)
    rows = _play(schedule)
    svg = Svg(132 + 50 * len(rows), "The ring on four ranks, round by round")
    svg.title("Each chunk is summed once, then copied")
    left, gap, cell = 74, 9, 22
    for rank in range(4):
        middle = left + rank * (4 * cell + gap) + 2 * cell - 1
        svg.text(middle, 50, f"rank {rank}", fill=COLOURS[rank], bold=True)
    for row, held in enumerate(rows):
        y = 64 + row * 50
        svg.text(EDGE, y + 20, "start" if row == 0 else f"round {row}", at="start")
        _buffers(svg, left, y, schedule, held, cell=cell, gap=gap, old=rows[row - 1] if row else None)
    svg.note(
        74 + 50 * len(rows), "Each round a rank sends one chunk to the right:",
        "1 to 3 add, 4 to 6 copy. Outlined: new.", "So all ranks have the same bits.",
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
