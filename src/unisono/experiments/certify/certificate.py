"""A certificate as plain values: rows with their controls, sealed by a hash, read back and judged (pure).

In: what checks have seen. Out: a dictionary in JSON's types. A row is certified only if its claim held and its control,
in which something was broken on purpose, was noticed. What could not run is never certified.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

from unisono.errors import ConfigError

KIND = "unisono certificate"
VERSION = 1
CERTIFIED, FAILED, NOT_RUN, TOLD = "certified", "FAILED", "could not run", "measured"
VERDICTS = (CERTIFIED, FAILED, NOT_RUN, TOLD)
_SEAL = "sha256"
_PARTS = {"written", "device", "quick", "unisono", "facts", "rows"}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One check."""

    name: str  #: Short.
    claim: str  #: What is certified, in a sentence.
    held: bool | None = None  #: Whether it was seen; None: it could not run, or it is a measurement.
    found: tuple[str, ...] = ()  #: What was seen, line by line.
    control: str = ""  #: What was broken on purpose.
    noticed: bool | None = None  #: Whether the check has found that out.
    why_not: str = ""  #: Why it could not run.
    seconds: float = 0.0  #: How long it took.
    numbers: Mapping[str, Any] = field(default_factory=dict)  #: Fingerprints, hashes and times, by name.

    @property
    def verdict(self) -> str:
        """One of `VERDICTS`."""
        if self.why_not:
            return NOT_RUN
        if self.held is None:
            return TOLD
        return CERTIFIED if self.held and self.noticed else FAILED


def seal(facts: Mapping[str, Any], rows: Sequence[Row], **about: Any) -> dict[str, Any]:
    """Return the certificate: what this machine is, what was seen on it, and the hash of both.

    `about`: when, on which device, by which command.
    """
    told = [{**asdict(row), "found": list(row.found), "verdict": row.verdict} for row in rows]
    # As it will be read: tuples are lists, keys are text.
    content = json.loads(json.dumps({"kind": KIND, "version": VERSION, **about, "facts": facts, "rows": told}))
    return {**content, _SEAL: content_hash(content)}


def content_hash(certificate: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all that a certificate says, less the hash that it holds."""
    content = {key: value for key, value in certificate.items() if key != _SEAL}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def read(text: bytes, name: str) -> dict[str, Any]:
    """Return a certificate from a file's content; `name` is that of the file.

    Raises:
        ConfigError: It is none, of another version, or was changed or cut since it was written.
    """
    hint = "Hint: unisono certify --out DIR writes a new one."
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is no certificate, or a damaged one: {error}. {hint}") from None
    if not isinstance(found, dict) or found.get("kind") != KIND:
        raise ConfigError(f"{name} is no certificate: expected JSON of kind {KIND!r}. {hint}")
    if found.get("version") != VERSION:
        raise ConfigError(f"{name}: expected a certificate of version {VERSION}, got {found.get('version')!r}. {hint}")
    if not found.keys() >= _PARTS or found.get(_SEAL) != content_hash(found):
        raise ConfigError(f"{name} is damaged: its content is not what its hash was made of. {hint}")
    if not (isinstance(found["facts"], dict) and isinstance(found["rows"], list) and all(map(_is_row, found["rows"]))):
        raise ConfigError(f"{name} is damaged: expected facts by name, and rows with the verdicts that follow. {hint}")
    return found


def _is_row(told: Any) -> bool:
    """Whether it is what `seal` makes of a row, with the verdict that follows from what it says."""
    try:
        verdict: str = Row(**{name: value for name, value in told.items() if name != "verdict"}).verdict
        return verdict == str(told["verdict"])
    except (AttributeError, KeyError, TypeError):
        return False


def check_machine(
    certificate: Mapping[str, Any], facts: Mapping[str, Any], name: str,
    differences: Callable[[dict[str, Any], dict[str, Any]], list[str]],
) -> None:  # fmt: skip
    """Refuse a certificate of another machine, or of this one as it was. `differences` returns a line for each fact
    that decides bits and differs.

    Raises:
        ConfigError: Names what differs.
    """
    if lines := differences(dict(certificate["facts"]), dict(facts)):
        raise ConfigError(
            f"{name} is not of this machine as it is now: {'; '.join(lines)}. "
            "Hint: unisono certify --out DIR certifies what is here."
        )


def count(certificate: Mapping[str, Any]) -> dict[str, int]:
    """Return how many rows have each verdict."""
    verdicts = [row["verdict"] for row in certificate["rows"]]
    return {verdict: verdicts.count(verdict) for verdict in VERDICTS}


def conclusion(certificate: Mapping[str, Any]) -> str:
    """Return in a sentence how many checks have which verdict."""
    return f"{', '.join(f'{number} {verdict}' for verdict, number in count(certificate).items() if number)}."


def all_equal(fingerprints: Mapping[str, str]) -> bool:
    """Whether there are at least two, and all are the same."""
    return len(fingerprints) > 1 and len(set(fingerprints.values())) == 1
