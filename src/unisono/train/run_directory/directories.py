"""Do all ranks see one run directory, or does each host have its own: found out at the start, by looking.

On one host two paths are one directory when device and inode are equal. Between hosts each writes a token into its
directory and looks for those of the others; a network file system may take a moment to show one.
"""

import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from unisono.collectives.leader import ranks_say
from unisono.collectives.transport import Transport
from unisono.errors import ConfigError
from unisono.system.directory import Directory
from unisono.system.processes import name_of_this_host

TOKEN = ".seen-"
"""How the names of files begin that are needed for a moment only."""

_PATIENCE_S = 5.0
_POLL_S = 0.05


@final
@dataclass(frozen=True, slots=True)
class Directories:
    """Who writes where."""

    #: For each rank, the rank that writes the directory it sees: the lowest of those that see it.
    keepers: tuple[int, ...]
    num_hosts: int = 1  #: On how many hosts the ranks are.

    @property
    def is_shared(self) -> bool:
        """Whether all ranks see one directory."""
        return set(self.keepers) == {0}

    def __str__(self) -> str:
        if self.is_shared:
            return f"is one directory for all {self.num_hosts} hosts."
        whose = ", ".join(str(rank) for rank in sorted(set(self.keepers)))
        return f"is a directory of its own for each host: ranks {whose} each keep the whole run."


def find_directories(transport: Transport, path: Path | None, patience_s: float = _PATIENCE_S) -> Directories:
    """Find out which ranks see one directory; collective.

    Args:
        transport: Joins the ranks.
        path: Of the run directory, as this rank names it; made where it is missing. None on all ranks or on none.
        patience_s: How long a token may take to show.

    Raises:
        LeaderFailed: Another rank cannot make its directory; that rank raises the reason.
    """
    if path is None or transport.world_size == 1:
        return Directories((0,) * transport.world_size)

    def look() -> list[str]:
        with Directory.make(path) as here:
            found = os.fstat(here.descriptor)
        return [name_of_this_host(), f"{found.st_dev}:{found.st_ino}"]

    places = [tuple(told) for told in ranks_say(transport, True, look)]
    heads = {place: places.index(place) for place in reversed(places)}
    num_hosts = len({host for host, _ in places})
    if len(heads) == 1:
        return Directories((0,) * len(places), num_hosts)
    is_head = transport.rank in heads.values()
    name = f"{TOKEN}{uuid.uuid4().hex}"
    tokens: list[str | None] = ranks_say(transport, is_head, lambda: _leave_token(path, name))
    # On its own host a head has seen already that the others' directories are not its own.
    here = places[transport.rank][0]
    foreign = {
        rank: token
        for rank, token in enumerate(tokens[: transport.rank])
        if token is not None and places[rank][0] != here
    }
    seen = ranks_say(transport, is_head, lambda: _find_tokens(path, foreign, patience_s))
    ranks_say(transport, is_head, (path / name).unlink)
    return Directories(join_heads([heads[place] for place in places], seen), num_hosts)


def join_heads(heads: Sequence[int], seen: Sequence[list[int] | None]) -> tuple[int, ...]:
    """Return each rank's keeper, from the first rank of its directory (`heads`) and the earlier heads it has seen."""
    keepers: list[int] = []
    for head in heads:
        earlier = seen[head] or []
        keepers.append(keepers[min(earlier)] if earlier else head)
    return tuple(keepers)


def _leave_token(path: Path, name: str) -> str:
    with Directory.open(path) as here:
        here.create(name).close()
    return name


def _find_tokens(path: Path, tokens: Mapping[int, str], patience_s: float) -> list[int]:
    """Return the ranks whose tokens show in a directory; one is enough, since the earlier have found each other."""
    deadline = time.monotonic() + patience_s
    while not (found := [rank for rank, token in tokens.items() if (path / token).exists()]) and tokens:
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)  # nothing tells us when the file system will show it
    return found


def furthest(path: Path | None, told: Mapping[int, Sequence[Any]]) -> int:
    """Return the rank whose directory has come furthest, of those that tell of theirs its run and newest step."""
    runs = {run: keeper for keeper, (run, _) in sorted(told.items()) if run}
    if len(runs) > 1:
        raise ConfigError(
            f"the directories {path} of the hosts of ranks {', '.join(map(str, sorted(runs.values())))} hold "
            "different runs. Hint: remove those that do not belong here, or choose another --out (out=)."
        )
    return max(sorted(told), key=lambda keeper: (told[keeper][0] != "", told[keeper][1], -keeper))
