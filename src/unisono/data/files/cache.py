"""Directories that are built once per machine from other data, and verified whenever they are opened.

In: a key (source checksum, settings, format version) and a function that builds. Out: a directory whose
files are exactly the ones that were built. A builder that dies leaves nothing that looks complete; several
starters at once build once. Imports no torch.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from unisono.data.files.fetch import file_lock, sha256_file
from unisono.errors import DataError
from unisono.system.directory import Directory
from unisono.system.files import replace_file

log = logging.getLogger(__name__)

MANIFEST = "manifest.json"


def cache_key(*, source_sha256: str, settings: Mapping[str, str | int | None], format_version: int) -> str:
    """Return 16 hexadecimal digits that change when the source, a setting or the format changes."""
    named = {"source": source_sha256, "settings": dict(settings), "format": format_version}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode("ascii")).hexdigest()[:16]


def cached_directory(entry: Path, build: Callable[[Path], None]) -> Path:
    """Return `entry`, complete and verified; build it where it is missing or damaged (with a warning).

    Args:
        entry: The directory; its name should hold the `cache_key`.
        build: Writes the files, no subdirectories, into the empty directory that it is given.

    Raises:
        DataError: The parent cannot be written or has no room, or a lock does not come free.
        Exception: Whatever `build` raises; nothing is left then.
    """
    if find_damage(entry) is None:
        return entry
    with file_lock(entry.parent / f".{entry.name}.lock"):
        damage = find_damage(entry)
        if damage is None:
            return entry
        # Under the lock nobody else builds: what carries our temporary name was left by a killed builder.
        for orphan in entry.parent.glob(f".{entry.name}.*.tmp"):
            shutil.rmtree(orphan)
        if entry.exists():
            log.warning("%s: %s; building it again", entry, damage)
            shutil.rmtree(entry)
        _build(entry, build)
    return entry


def _build(entry: Path, build: Callable[[Path], None]) -> None:
    """Build beside `entry`, write the manifest last, then rename."""
    temporary = Path(tempfile.mkdtemp(dir=entry.parent, prefix=f".{entry.name}.", suffix=".tmp"))
    try:
        build(temporary)
        files = {
            path.name: {"size_bytes": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(temporary.iterdir())
        }
        for name in files:
            _fsync(temporary / name)
        content = json.dumps({"files": files}, indent=1).encode("ascii")
        replace_file(temporary / MANIFEST, content)
        temporary.rename(entry)
    except OSError as error:
        raise DataError(
            f"{entry.parent}: expected room to build {entry.name}, found: {error}. "
            "Hint: free some space, or pass another cache directory."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # already renamed when all went well
    with Directory.open(entry.parent) as home:
        home.sync()


def _fsync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def check_manifest(entry: Path, prefix: str = "") -> None:
    """Refuse (`DataError`) a directory with a file that is missing or not as it was built; only files that begin so."""
    damage = find_damage(entry, prefix)
    if damage is not None:
        raise DataError(f"{entry}: {damage}. Hint: delete {entry}; it is built again.")


def find_damage(entry: Path, prefix: str = "") -> str | None:
    """Return what is wrong with a built directory in one sentence, or None where its files are as built."""
    try:
        files = json.loads((entry / MANIFEST).read_bytes())["files"]
        for name, expected in files.items():
            if not name.startswith(prefix):
                continue
            path = entry / name
            found_bytes = path.stat().st_size
            if found_bytes != expected["size_bytes"]:
                return f"expected {expected['size_bytes']:,} bytes in {name}, found {found_bytes:,}"
            found = sha256_file(path)
            if found != expected["sha256"]:
                return f"expected sha256 {expected['sha256']} of {name}, found {found}"
    except OSError as error:
        return f"expected a built directory, found: {error.strerror} ({error.filename})"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"expected a manifest of sizes and checksums in {MANIFEST}, found: {error!r}"
    return None
