"""What a run commits itself to (``commitment.json``): one SHA-256 over its score, environment, program, ledger,
checkpoints and weights.

It is written where the run ends. Who publishes the hash can show later that nothing of it was changed since.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from unisono.checkpoint.manifest import read_manifest
from unisono.checkpoint.store import list_steps
from unisono.determinism.switches import NUMERIC
from unisono.errors import CheckpointError
from unisono.system.directory import Directory
from unisono.train.run_directory.program import FILE_NAME as PROGRAM_FILE

FILE_NAME = "commitment.json"


def describe_commitment(home: Directory, *, steps: int, head: str, fingerprint: str) -> dict[str, Any]:
    """Return what ``commitment.json`` holds.

    Returns:
        These three; SHA-256 of ``score``, ``environment`` (what decides bits) and ``program`` (None: unknown); where
        the environment was allowed to change, the changes (``drifted``); SHA-256 of each part of each valid
        ``checkpoints`` entry, by step; and ``sha256`` over all of it.
    """
    environment = _object(home, "environment.json")
    drifted = environment.get("drifted")
    environment = {name: environment.get(name) for name in (*NUMERIC, "flags")}
    program = _object(home, PROGRAM_FILE).get("files")
    content: dict[str, Any] = {
        "steps": steps,
        "ledger_head": head,
        "fingerprint": fingerprint,
        "score": _hash(_object(home, "score.json")),
        "environment": _hash(environment),
        **({"drifted": drifted} if drifted else {}),
        "program": None if program is None else _hash(sorted(program.values())),
        "checkpoints": _checkpoints(home),
    }
    return content | {"sha256": _hash(content)}


def is_whole(commitment: Mapping[str, Any]) -> bool:
    """Whether its hash is that of its content."""
    content = {name: value for name, value in commitment.items() if name != "sha256"}
    return bool(commitment.get("sha256") == _hash(content))


def _checkpoints(home: Directory) -> dict[str, dict[str, str]]:
    found = {}
    place = home.path / "checkpoints"
    for step, path in list_steps(place) if place.is_dir() else ():
        try:
            found[str(step)] = read_manifest(path).hashes
        except CheckpointError:
            continue  # no state of the run
    return found


def _object(home: Directory, name: str) -> dict[str, Any]:
    content = json.loads(home.read(name) or b"{}")
    return content if isinstance(content, dict) else {}


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
