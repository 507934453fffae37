"""Which files are meant: paths, folders, patterns with ``*``, and numbered ones as ``train-{000..127}.tar`` (no torch).

The order of the shards numbers the samples, so it must not depend on the file system: names that a pattern or a folder
gives are sorted, and those that somebody lists stay as listed.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from unisono.errors import ConfigError, DataError

KINDS = {"tar": (".tar",), "lines": (".jsonl", ".ndjson"), "parquet": (".parquet",)}
"""How names end, by kind of shard."""
PACKED = (".gz", ".zst")
_NUMBERED = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")
_MOST = 1_000_000
_SPELLED = ".tar, .jsonl, .ndjson (each also with .gz or .zst), .tgz, .parquet"


def find_shards(given: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the files that are meant, in their order.

    Raises:
        ConfigError: It is an address, or no path at all.
        DataError: Nothing is there, something is twice, or the files are of several kinds.
    """
    several = [given] if isinstance(given, str | os.PathLike) else given
    if not isinstance(several, Iterable) or not all(isinstance(one, str | os.PathLike) for one in several):
        raise ConfigError(f"expected shards as a path, a pattern or a list of them, got {type(given).__name__}.")
    found = [path for one in several for spelled in _numbered(os.fspath(one)) for path in _found(spelled)]
    if not found:
        raise DataError("expected at least one shard, got an empty list. Hint: check what makes the list.")
    twice = sorted({path for path in found if found.count(path) > 1}) if len(set(found)) < len(found) else []
    if twice:
        raise DataError(f"expected each shard once, got {twice[0]} twice. Hint: list it once.")
    kinds = {kind_of(path): path for path in reversed(found)}
    if len(kinds) > 1:
        raise DataError(
            f"expected shards of one kind, got {' and '.join(map(str, kinds.values()))}. "
            "Hint: one Shards for each kind, joined by unisono.Mixture."
        )
    return found


def kind_of(path: Path) -> str:
    """Return ``tar``, ``lines`` or ``parquet``."""
    name = path.name.lower()
    if name.endswith(".tgz"):
        return "tar"
    bare = name.removesuffix(packing_of(path) or "")
    for kind, endings in KINDS.items():
        if bare.endswith(endings) and (kind != "parquet" or bare == name):
            return kind
    raise DataError(f"{path}: expected a shard whose name ends in {_SPELLED}. Hint: name files after what they hold.")


def packing_of(path: Path) -> str | None:
    """Return ``.gz`` or ``.zst`` where the whole file is compressed."""
    name = path.name.lower()
    return ".gz" if name.endswith(".tgz") else next((ending for ending in PACKED if name.endswith(ending)), None)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the paths without the folder that they share: the same wherever that lies."""
    absolute = [str(path.absolute()) for path in paths]
    home = os.path.commonpath([str(Path(path).parent) for path in absolute])
    return [Path(os.path.relpath(path, home)).as_posix() for path in absolute]


def _numbered(spelled: str) -> Iterator[str]:
    """Yield a path for each number of ``{000..127}``, padded as its first; several are gone through from the right."""
    found = _NUMBERED.search(spelled)
    if found is None:
        yield spelled
        return
    first, last = found.groups()
    if int(last) < int(first) or int(last) - int(first) >= _MOST:
        raise ConfigError(f"expected rising numbers in braces, fewer than {_MOST:,}, got {found[0]} in {spelled!r}.")
    for number in range(int(first), int(last) + 1):
        yield from _numbered(f"{spelled[: found.start()]}{number:0{len(first)}d}{spelled[found.end() :]}")


def _found(spelled: str) -> list[Path]:
    if re.match(r"[a-z][a-z0-9+.-]*:", spelled) or spelled.startswith("|"):
        raise ConfigError(
            f"expected shards on a file system, got {spelled!r}. Hint: fetch or mount them, since samples are read at "
            "any place."
        )
    path = Path(spelled)
    if path.is_dir():
        named = (*(ending for endings in KINDS.values() for ending in endings), *PACKED, ".tgz")
        held = sorted(one for one in path.iterdir() if one.name.lower().endswith(named) and one.is_file())
        return _some(held, f"a folder with shards ({_SPELLED})", spelled)
    if any(sign in spelled for sign in "*?[") and not path.exists():
        anchor = Path(path.anchor or ".")
        held = sorted(one for one in anchor.glob(str(path.relative_to(path.anchor))) if one.is_file())
        return _some(held, "a pattern that fits some file", spelled)
    if not path.is_file():
        raise DataError(f"{spelled}: expected a shard, found nothing. Hint: check the path.")
    return [path]


def _some(held: list[Path], expected: str, spelled: str) -> list[Path]:
    if not held:
        raise DataError(f"expected {expected}, got {spelled!r}, which gives none. Hint: check the path.")
    return held
