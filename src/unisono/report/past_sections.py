"""What verbs about past steps find, as parts of a page: a run and its forks (reads files), an audit (pure).

Of forks: who leaves whom after which step, and what differs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unisono.observe.compare import diff, said_now
from unisono.observe.run_json import read_object
from unisono.report.charts import Span, span_chart
from unisono.report.content import Chart, Remark, Section, Table, unique
from unisono.report.run_view import RunView

_MOST_CHANGES = 4


def family_sections(runs: Sequence[RunView]) -> list[Section]:
    """Return the forks among some runs, each below its parent; nothing where there is none."""
    forks = [read_object(run.path / "fork.json") for run in runs]
    if not any(forks):
        return []
    ids = [read_object(run.path / "run.json").get("run") for run in runs]
    names = unique([run.name for run in runs])
    parents = [ids.index(fork["run"]) if fork and fork.get("run") in ids else None for fork in forks]
    order: list[int] = []

    def add(number: int) -> None:
        if number not in order:
            order.append(number)
            children = [child for child, parent in enumerate(parents) if parent == number]
            for child in sorted(children, key=lambda child: int(forks[child]["step"])):
                add(child)

    for number in [*(n for n, parent in enumerate(parents) if parent is None), *range(len(runs))]:
        add(number)
    rows, spans, findings = [], [], []
    for number in order:
        run, fork, parent = runs[number], forks[number], parents[number]
        steps, shared = len(run.ledger), int(fork["step"]) if fork else 0
        whose = "" if not fork else f"{fork['parent']}, not on this page" if parent is None else names[parent]
        changes = _changes(run, None if parent is None else runs[parent])
        rows.append([names[number], whose, str(shared or ""), str(steps), changes])
        if shared:
            said = f": {changes}" if changes else ", and what differs is not known"
            findings.append(Remark(text=f"{names[number]} leaves {whose} after step {shared}{said}."))
            text = f"steps 1 to {shared}: those of {whose}"
            spans.append(Span(row=names[number], began=0, ended=shared, kind="of its parent", text=text))
        spans.append(Span(row=names[number], began=shared, ended=max(steps, shared), kind="its own", text=changes))
    head = ["run", "forked from", "after step", "steps", "what differs"]
    table = Table(title="The family", head=head, rows=rows, numeric=frozenset({2, 3}))
    drawn = span_chart("Steps of each run, shared with its parent or its own", spans, spell=lambda step: f"{step:g}")
    chart = Chart(title="Steps that are shared", drawing=drawn, values=table, note="Over steps.")
    return [Section(title="Forks", findings=findings, charts=[chart])]


def _changes(run: RunView, parent: RunView | None) -> str:
    """Return in what the score of a run is another than its parent's."""
    if parent is None:
        return ""
    theirs, ours = ({n: v for n, v in said_now(one.score).items() if n != "fork"} for one in (parent, run))
    lines = diff(theirs, ours)
    more = f"; and {len(lines) - _MOST_CHANGES} more" if len(lines) > _MOST_CHANGES else ""
    return "; ".join(lines[:_MOST_CHANGES]) + more if lines else "nothing in the score"


def sections_of_audit(found: Mapping[str, Any]) -> list[Section]:
    """Return what ``unisono audit --json`` prints, as sections."""
    drawn = [one for one in found["segments"] if one["is_drawn"]]
    wrong = [Remark(text=line, tone="alarm") for line in found["problems"]]
    wrong += [
        Remark(text=f"Steps {one['start'] + 1} to {one['last']}: {one['problem']}.", tone="alarm")
        for one in drawn
        if one["problem"]
    ]
    published = "it is the published one" if found["is_published"] else "it was not compared with a published one"
    if found["problems"] and found["is_published"]:
        published = "it was compared with the published one"
    agree = "Ledger, checkpoints, score, program, result and commitment were compared with each other, and agree."
    lines = [
        *([] if found["problems"] else [agree]),
        f"{found['steps_computed']} of {found['steps']} steps were computed again, in {len(drawn)} of "
        f"{len(found['segments'])} segments between two kept states, drawn at random.",
        *(f"The environment was allowed to change {line}." for line in found["drifts"]),
        f"Fingerprint of the weights: {found['fingerprint']}.",
        f"Commitment: {found['commitment'] or 'none'}; {published}.",
    ]
    rows = [
        (f"{one['start'] + 1} to {one['last']}", "yes" if one["is_drawn"] else "no", one["problem"] or "")
        for one in found["segments"]
    ]
    chances = [(f"{float(name):.0%}", f"{value:.1%}") for name, value in found["chances"].items()]
    tables = [
        Table(title="Segments", head=("steps", "computed again", "found"), rows=rows),
        Table(
            title="What this audit would have seen", rows=chances,
            head=("segments forged, at least one", "probability to find one"), numeric=frozenset({1}),
        ),
    ]  # fmt: skip
    findings = wrong or [Remark(text="Nothing was found.", tone="good")]
    return [Section(title="Audit", lines=lines, findings=findings, tables=tables)]
