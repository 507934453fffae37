"""Whose files a directory may hold: ours, root's, nothing that strangers can write, and nothing but a run's."""

import contextlib
import os
import pwd
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from unisono.errors import CheckpointError, ConfigError
from unisono.system.directory import Directory

PROBE = ".probe-"
"""How the names of files begin that tell who we are on a file system; needed for a moment only."""
_INSIDE = ("checkpoints", "phases", "logs")
_MARKS = {"run.json", "score.json", "run.lock", "ledger.jsonl"}
"""Each tells the directory of a run, also of one that has lost the others."""
_OURS = re.compile(
    r"\..*|checkpoints|phases|logs|lost\+found|run\.toml|(environment|program|fork|result|commitment)\.json"
    r"|(ledger|detail|metrics)\.(jsonl|tmp)|.*\.(sock|log|out|err)|(secret|stopped)-.*"
)
"""What may lie there before a run begins: hidden files, a run's, the launcher's, and where output was sent."""


@dataclass(frozen=True, slots=True)
class Owners:
    """Whose files a directory may hold."""

    ids: frozenset[int]  #: User ids: ours, root's, and that which the file system gives to what we create.
    has_modes: bool = True  #: Whether the file system keeps the mode of a file.

    @classmethod
    def judging_by(cls, created: os.stat_result) -> "Owners":
        """Return the owners on a file system, from what it has made of a file that we have just created, mode 0600.

        A server may map users to others (NFS, CIFS, a container's mounts), and keep no modes.
        """
        return cls(frozenset({0, os.geteuid(), created.st_uid}), has_modes=not created.st_mode & stat.S_IWOTH)

    def check_directory(self, path: Path, status: os.stat_result) -> None:
        """Refuse a directory that another user has, or that every user may write."""
        if status.st_uid not in self.ids:
            raise ConfigError(
                f"expected a directory of this user's, got {path}, which belongs to {_name(status.st_uid)}: who can "
                "write there could change what a run keeps. "
                f"Hint: choose a new directory (--out, out=), or make this one yours: chown -R {_own_name()} {path}."
            )
        if self.has_modes and status.st_mode & stat.S_IWOTH:
            raise ConfigError(
                f"expected a directory that strangers cannot write, got {path} with mode "
                f"{stat.S_IMODE(status.st_mode):04o}. Hint: chmod o-w {path}, or choose a new directory in it "
                f"(--out {path}/NAME, out=)."
            )

    def check_file(self, path: Path, status: os.stat_result) -> None:
        """Refuse a file that another user has."""
        if status.st_uid not in self.ids:
            raise CheckpointError(
                f"expected a file of this user's at {path}, found one of {_name(status.st_uid)}. "
                f"Hint: remove it; or, where you trust it, make it yours: chown {_own_name()} {path}."
            )


def adopt(path: Path, *, alone: bool = False) -> Directory:
    """Open the directory that a run is to keep its files in, made where it is missing; its name is on the disk then.

    A link that leads to it is its user's own choice, and is followed once. Group members may write there, if its owner
    wants it so: what they put there is refused when it would be used.

    Args:
        path: Of the directory.
        alone: Whether nothing but a run may be there: a program puts what it likes into its own run's, a command does
            not mix a run with files that happen to be where it was told to write.

    Raises:
        ConfigError: It belongs to another user, or every user may write there, or what it holds is of that kind; or
            it is no run's and holds other files, where it is `alone`.
        CheckpointError: A link stands in the place of a directory of the run.
        OSError: It cannot be made or written.
    """
    found = Directory.make(path)
    try:
        with contextlib.suppress(PermissionError), Directory.open(path.resolve().parent) as parent:
            parent.sync()  # it may have been made by a launch that was killed, or a moment ago by hand
        probe = f"{PROBE}{os.urandom(8).hex()}"
        with found.create(probe) as file:
            created = os.fstat(file.fileno())
        found.remove(probe)
        found.owners = Owners.judging_by(created)
        found.owners.check_directory(path, os.fstat(found.descriptor))
        if alone:
            _check_content(path, found)
        for name in _INSIDE:
            if found.status(name) is not None:
                found.child(name).close()
    except BaseException:
        found.close()
        raise
    return found


def _check_content(path: Path, found: Directory) -> None:
    """Refuse a directory with files that are no run's: a run's would lie among them."""
    names = set(found.names())
    foreign = sorted(name for name in names if not _OURS.fullmatch(name))
    if not foreign or names & _MARKS:
        return
    if "checkpoints" in names:
        with found.child("checkpoints") as inside:
            if any(name.startswith("step-") for name in inside.names()):
                return
    more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
    raise ConfigError(
        f"expected an empty directory or that of a run, got {path}, which holds {', '.join(foreign[:3])}{more}. "
        f"Hint: choose a new directory in it (--out {path / 'run'}), or move away what is there."
    )


def _name(user_id: int) -> str:
    try:
        return f"{pwd.getpwuid(user_id).pw_name} (user {user_id})"
    except KeyError:
        return f"user {user_id}"


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
