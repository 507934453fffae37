"""The manifest of a checkpoint: what is in it, what it belongs to, and how it is told from another's.

In: JSON of unknown origin. Out: a `Manifest` whose every field has been checked, or a `CheckpointError`.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from unisono.checkpoint.files import FileSum, read_whole
from unisono.checkpoint.policy import stem_of
from unisono.checkpoint.values import printable
from unisono.errors import CheckpointError
from unisono.system.directory import Directory, entered

FORMAT_VERSION = 3
_READABLE = (2, 3)  # 2: version 0.1.0, which knows neither ``ledger_head`` nor ``spent``
FILE_NAME = "manifest.json"
STATE_FILE = "state.json"
DIRECTORY_NAME = re.compile(r"step-(\d{8,18})\.[0-9a-f]{8}")
_MOST_BYTES = 16 << 20
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEAD = re.compile(r"(?:[0-9a-f]{32})?")
_LARGEST = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known about a checkpoint besides its files."""

    run: str = ""  #: Id of the run directory's run.
    epoch: int = 0  #: Epochs that had been completed.
    #: Step of the checkpoint that this launch went on from or wrote before; None for the first.
    parent_step: int | None = None
    fencing_token: int = 0  #: Number of the launch that wrote it; a later launch has a larger one.
    metrics: dict[str, float] = field(default_factory=dict)  #: Measured with exactly these weights; finite.
    ledger_head: str = ""  #: The ledger's chain value at this step; empty where there is none.
    #: What the steps have cost up to this one, over all launches: see `RunProgress`; empty where unknown.
    spent: dict[str, float] = field(default_factory=dict)
    score: dict[str, Any] = field(default_factory=dict)  #: As in ``score.json``.
    #: As in ``environment.json``: software and hardware it was computed with.
    environment: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """One checkpoint's manifest."""

    step: int  #: Steps done.
    files: dict[str, FileSum]  #: By plain file name.
    facts: Facts  #: What it belongs to.
    sha256: str = ""  #: Over all other fields.

    @property
    def hashes(self) -> dict[str, str]:
        """SHA-256 by what it is over: ``model`` (the weights), ``optimizer``, ``objects``, ``state`` (plain values).

        Of one file it is the file's, which the state alone decides. Where ranks have shared the writing, it is that of
        the parts' hashes, so their number counts too.
        """
        parts: dict[str, list[str]] = {}
        for name, entry in sorted(self.files.items()):
            parts.setdefault(stem_of(name).removesuffix(".json"), []).append(entry.sha256)
        return {
            stem: found[0] if len(found) == 1 else hashlib.sha256(" ".join(found).encode()).hexdigest()
            for stem, found in parts.items()
        }


def encode(step: int, files: Mapping[str, FileSum], facts: Facts) -> bytes:
    """Return the bytes of ``manifest.json``; metrics that are not finite are left out."""
    content: dict[str, Any] = {"format_version": FORMAT_VERSION, "step": step, **asdict(facts)}
    content["metrics"] = {name: value for name, value in facts.metrics.items() if math.isfinite(value)}
    content["files"] = {name: asdict(entry) for name, entry in files.items()}
    content["sha256"] = _hash(content)
    return json.dumps(content, indent=1, allow_nan=False).encode()


def read_manifest(place: Path | Directory) -> Manifest:
    """Return the manifest of a checkpoint's directory; the files it names are not looked at.

    Raises:
        CheckpointError: It is missing, damaged, another directory's, a link, or not what a run writes.
    """
    path = place.path if isinstance(place, Directory) else place
    where = printable(str(path / FILE_NAME))
    try:
        with entered(place, follow=may_be_link(path)) as home:
            content = json.loads(read_whole(home, FILE_NAME, _MOST_BYTES), parse_constant=_refuse)
        if not isinstance(content, dict) or "format_version" not in content:
            raise CheckpointError(f"{where} is not a checkpoint's manifest.")
        version = content["format_version"]
        if type(version) is not int or version not in _READABLE:
            raise CheckpointError(
                f"{where} has format {printable(repr(version)[:40])}, this version of unisono reads "
                f"{' and '.join(map(str, _READABLE))}. Hint: go on with the version that wrote it."
            )
        named = DIRECTORY_NAME.fullmatch(path.name)
        if content.get("sha256") != _hash(content) or (named and int(named[1]) != content.get("step")):
            raise CheckpointError(f"{where} is damaged, or not this directory's.")
        return _checked(content)
    except FileNotFoundError:
        raise CheckpointError(f"{where} is missing: never written, or lost.") from None
    except CheckpointError as error:
        raise error if where in str(error) else CheckpointError(f"{where}: {error}") from error
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = printable(str(error))[:200]
        raise CheckpointError(f"{where} cannot be trusted: {type(error).__name__}: {reason}") from error


def may_be_link(place: Path | Directory) -> bool:
    """Whether a path may be a link that its user has made; those inside a run directory may not."""
    return isinstance(place, Directory) or not (place.name == "checkpoints" or DIRECTORY_NAME.fullmatch(place.name))


def _checked(content: dict[str, Any]) -> Manifest:
    files: dict[str, FileSum] = {}
    for name, entry in _typed(content, "files", dict).items():
        if not _PLAIN_NAME.fullmatch(name) or name == FILE_NAME:
            raise CheckpointError(f"names {name[:200]!r}, which is not a file of the checkpoint.")
        sha256 = _typed(entry, "sha256", str)
        if not _SHA256.fullmatch(sha256):
            raise CheckpointError(f"has no SHA-256 of {name!r}.")
        files[name] = FileSum(_count(entry, "bytes"), sha256)
    if STATE_FILE not in files:
        raise CheckpointError(f"names no {STATE_FILE}.")
    is_old = content["format_version"] == 2
    head = "" if is_old else _typed(content, "ledger_head", str)
    if not _HEAD.fullmatch(head):
        raise CheckpointError("has no chain value as ledger_head.")
    facts = Facts(
        run=_typed(content, "run", str),
        epoch=_count(content, "epoch"),
        parent_step=None if content["parent_step"] is None else _count(content, "parent_step"),
        fencing_token=_count(content, "fencing_token"),
        metrics=_numbers(content, "metrics"),
        ledger_head=head,
        spent={} if is_old else _numbers(content, "spent"),
        score=_typed(content, "score", dict),
        environment=_typed(content, "environment", dict),
    )
    return Manifest(step=_count(content, "step"), files=files, facts=facts, sha256=_typed(content, "sha256", str))


def _typed(content: Any, name: str, kind: type) -> Any:
    value = content[name] if isinstance(content, dict) else None
    if type(value) is not kind:
        raise CheckpointError(f"expected {name} as {kind.__name__}, got {type(value).__name__}.")
    return value


def _numbers(content: Any, name: str) -> dict[str, float]:
    found: dict[str, float] = _typed(content, name, dict)
    if not all(type(value) in (int, float) for value in found.values()):
        raise CheckpointError(f"expected numbers as {name}.")
    return found


def _count(content: Any, name: str) -> int:
    value: int = _typed(content, name, int)
    if not 0 <= value < _LARGEST:
        raise CheckpointError(f"expected {name} from 0 to 2**62, got {str(value)[:40]}.")
    return value


def _hash(content: dict[str, Any]) -> str:
    others = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of a manifest")
