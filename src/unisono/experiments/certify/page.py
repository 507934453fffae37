"""A certificate as a page (pure, but for the writing)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.certify.certificate import CERTIFIED, FAILED, KIND, NOT_RUN, conclusion, count
from unisono.report.content import Remark, Section, Table
from unisono.report.page import MARK, write_sections
from unisono.system.files import check_place, write_whole

JSON, HTML = "certificate.json", "certificate.html"
_TONES = {CERTIFIED: "good", FAILED: "alarm"}


def prepare(directory: Path) -> None:
    """Make the directory of a certificate, and refuse one in which it cannot be written.

    Raises:
        ConfigError: As said, or there is something else under its names.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"expected a directory for the certificate, got {str(directory)!r}: {error.strerror}."
        ) from None
    check_place(directory / JSON, (KIND,))
    check_place(directory / HTML, (MARK,))


def write(certificate: Mapping[str, Any], directory: Path) -> None:
    """Write the certificate as JSON and as a page."""
    write_whole(directory / JSON, json.dumps(certificate, indent=1).encode() + b"\n")
    write_sections(f"Certificate of {subject(certificate)}", sections(certificate), directory / HTML)


def subject(certificate: Mapping[str, Any]) -> str:
    """Return what it is of, in a few words."""
    facts = certificate["facts"]
    return f"{facts.get('device_name') or facts.get('cpu') or facts['machine']}, torch {facts['torch']}"


def sections(certificate: Mapping[str, Any]) -> list[Section]:
    """Return the page: the verdicts, each check, and what the machine is."""
    rows = certificate["rows"]
    cells = [
        [row["name"], row["verdict"], "" if row["verdict"] == NOT_RUN else f"{row['seconds']:.1f}"] for row in rows
    ]
    overview = Table(title="Checks", head=["check", "verdict", "seconds"], rows=cells, numeric=frozenset({2}))
    parts = [
        Section(
            title="What is certified",
            lines=[
                f"Device {certificate['device']}, {certificate['written']}, unisono {certificate['unisono']}"
                f"{', with --quick' * certificate['quick']}. SHA-256 of the content: {certificate['sha256']}",
                "A check is certified only if its control, in which something was broken on purpose, was noticed.",
            ],
            findings=[Remark(text=conclusion(certificate), tone=_overall(certificate))],
            tables=[overview],
        )
    ]
    return [*parts, *map(_check, rows), _facts(certificate["facts"])]


def _overall(certificate: Mapping[str, Any]) -> str:
    number = count(certificate)
    return "alarm" if number[FAILED] else "good" if number[CERTIFIED] and not number[NOT_RUN] else ""


def _check(row: Mapping[str, Any]) -> Section:
    lines = [row["claim"], *row["found"]]
    lines += [f"Control: {row['control']}. {'Noticed' if row['noticed'] else 'NOT NOTICED'}."] if row["control"] else []
    verdict = f"{row['verdict']}{row['why_not'] and ': '}{row['why_not']}"
    return Section(title=row["name"], lines=lines, findings=[Remark(text=verdict, tone=_TONES.get(row["verdict"], ""))])


def _facts(facts: Mapping[str, Any]) -> Section:
    rows = [[name, str(value)] for name, value in facts.items() if name != "flags"]
    flags = [[name, str(value)] for name, value in facts.get("flags", {}).items()]
    return Section(
        title="Machine",
        tables=[Table(title="What decides bits", head=["fact", "value"], rows=rows)],
        folded=[Table(title="Flags of torch", head=["flag", "value"], rows=flags)],
    )
