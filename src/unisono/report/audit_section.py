"""An audit as parts of a page (pure)."""

from collections.abc import Mapping
from typing import Any

from unisono.report.content import Remark, Section, Table


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
