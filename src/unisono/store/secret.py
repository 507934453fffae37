"""A run's secret: where it comes from, and the keys that are made of it.

In: the environment's mapping, or a file that only its owner may read. Out: one word; it never stands in a command line.
"""

import base64
import contextlib
import hashlib
import hmac
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from unisono.errors import ConfigError

VARIABLE = "UNISONO_SECRET"
FILE_VARIABLE = "UNISONO_SECRET_FILE"
USER_FILE = "secret"
"""Below the user's cache: what processes of one user share where nobody has given a secret."""

_FEWEST = 16
_MOST_BYTES = 4096
_WORD = re.compile(r"[\x21-\x7e]+")
_HOW_TO_MAKE = "make one with: (umask 077; head -c 24 /dev/urandom | base64 > FILE)"


def given_secret(environ: Mapping[str, str]) -> str | None:
    """Return the secret that the environment gives, itself or as a file; None where it gives none.

    Raises:
        ConfigError: It gives both, the file is not its owner's alone, or the secret is no word of 16 characters.
    """
    word, path = environ.get(VARIABLE), environ.get(FILE_VARIABLE)
    if word and path:
        raise ConfigError(f"{VARIABLE} and {FILE_VARIABLE} say the same. Hint: set one of them.")
    if path:
        return read_secret(Path(path), FILE_VARIABLE)
    return _checked(word, VARIABLE) if word else None


def read_secret(path: Path, said_by: str) -> str:
    """Return the secret in a file.

    Raises:
        ConfigError: It cannot be read, is a link, belongs to somebody else, or others may read it.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(
            f"expected a file with a secret at {path} ({said_by}), got: {error.strerror}. Hint: {_HOW_TO_MAKE}."
        ) from error
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"expected a plain file at {path} ({said_by}), got another kind. Hint: {_HOW_TO_MAKE}.")
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise ConfigError(
                f"expected a secret that only its owner, user {os.geteuid()}, may read at {path} ({said_by}), got "
                f"owner {found.st_uid} and mode {stat.S_IMODE(found.st_mode):04o}. Hint: chmod 600 {path}, and a new "
                "secret if others have seen it."
            )
        text = os.read(fd, _MOST_BYTES + 1)
    finally:
        os.close(fd)
    return _checked(text.decode("ascii", errors="replace").strip(), f"{path} ({said_by})")


def user_secret(cache: Path) -> str:
    """Return the secret of this user's processes, made at the first use: nobody else may read its file."""
    path = cache / USER_FILE
    if not path.exists():
        draft = path.with_name(f"{USER_FILE}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            try:
                with os.fdopen(fd, "w") as file:
                    file.write(new_secret() + "\n")
                with contextlib.suppress(FileExistsError):  # another process was faster: its own counts
                    os.link(draft, path, follow_symlinks=False)
            finally:
                draft.unlink()
        except OSError as error:
            raise ConfigError(
                f"expected a place for a secret at {path}, got: {error.strerror}. "
                f"Hint: give all processes of the run one {VARIABLE}, or a {FILE_VARIABLE}."
            ) from error
    return read_secret(path, "made by unisono for all runs of this user")


def new_secret() -> str:
    """Return a new secret: one word of 32 letters, digits, ``-`` and ``_``."""
    return base64.urlsafe_b64encode(os.urandom(24)).decode()


def derive(secret: str, purpose: str) -> str:
    """Return another secret, of which nobody can compute `secret`: for those who need no more than `purpose`."""
    made = hmac.digest(key_of(secret), b"derived\0" + purpose.encode(), "sha256")
    return base64.urlsafe_b64encode(made[:24]).decode()


def key_of(secret: str) -> bytes:
    """Return the key of a secret, for the handshake."""
    return hashlib.sha256(b"unisono store 1\0" + secret.encode()).digest()


def _checked(word: str, where: str) -> str:
    if len(word) < _FEWEST or len(word) > _MOST_BYTES or not _WORD.fullmatch(word):
        # Never the word itself: it would stand in a log.
        raise ConfigError(
            f"expected a secret of {_FEWEST} or more printable characters without spaces in {where}, got {len(word)} "
            f"characters. Hint: {_HOW_TO_MAKE}."
        )
    return word
