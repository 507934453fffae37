"""The known mistakes of a distributed training script, found in its source without running it (pure).

What a rule cannot see (names made at run time, other files) it does not report; what it takes wrongly for a mistake is
silenced on its line with ``# unisono: ignore[rule]``.
"""

from unisono.doctor.finding import Finding
from unisono.doctor.rules_names import NAME_RULES
from unisono.doctor.rules_placement import PLACEMENT_RULES
from unisono.doctor.rules_runs import RUN_RULES
from unisono.doctor.rules_training import TRAINING_RULES
from unisono.doctor.rules_workers import WORKER_RULES
from unisono.doctor.source import Source

RULES = {
    rule.__name__.replace("_", "-"): rule
    for rule in (*PLACEMENT_RULES, *TRAINING_RULES, *RUN_RULES, *WORKER_RULES, *NAME_RULES)
}
"""All rules by name."""


def examine(text: str) -> list[Finding]:
    """Return the mistakes of a script, by line.

    Args:
        text: Its source. A script that Python cannot read has one finding, ``syntax``.
    """
    try:
        source = Source(text)
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes
        line = getattr(error, "lineno", None) or 1
        told = f"Python cannot read the script: {getattr(error, 'msg', error)}"
        return [Finding(name="syntax", status="fail", detail=told, hint="mend this line first.", line=line)]
    found = [
        Finding(name=name, status=mistake.status, detail=mistake.detail, hint=mistake.hint, line=mistake.line)
        for name, rule in RULES.items()
        for mistake in rule(source)
    ]
    return sorted(
        (finding for finding in found if not source.is_silenced(finding.line or 1, finding.name)),
        key=lambda finding: (finding.line or 0, finding.name),
    )
