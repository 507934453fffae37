"""Words for a disk that will not take more: what was to be written where, how much room it needs and there is."""

import contextlib
import errno
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from unisono.errors import CheckpointError


def room(directory: Path, needed: int | None = None) -> str:
    """Return ``1.2 MB needed, 0.3 MB free`` for a directory, or for the nearest one above it that exists."""
    free = shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.is_dir())).free
    return f"{_size(free)} free" if needed is None else f"{_size(needed)} needed, {_size(free)} free"


def is_lasting(error: BaseException) -> bool:
    """Whether an error comes again until somebody has made room, made the disk writable, or seen to what is damaged."""
    if isinstance(error, CheckpointError):
        return error.is_final
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


def mend(error: BaseException | None = None) -> str:
    """Return what to do where something could not be written: about the limit on file sizes, else about the space."""
    if not isinstance(error, OSError) or error.errno != errno.EFBIG:
        return "free some space"
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit == resource.RLIM_INFINITY:
        return "take a file system that holds larger files"
    return f"ulimit -f unlimited; this process may write no file of more than {_size(limit)}"


def hint_of(error: OSError, other: str = "") -> str:
    """Return the hint for a file that could not be written: about the limit on file sizes, where that is why."""
    hint = mend(error) if error.errno == errno.EFBIG else other
    return hint and f" Hint: {hint}."


def way_on(checkpoints: Path, error: BaseException | None = None) -> str:
    """Return what a run that could not write, because of `error`, goes on from, and the hint."""
    if any(checkpoints.glob("step-*")):
        return (
            f"The committed checkpoints are untouched. Hint: mend the cause ({mend(error)}) and repeat the command; "
            "it resumes from the newest of them."
        )
    return (
        f"No checkpoint has been written. Hint: mend the cause ({mend(error)}, or choose another --out) and repeat "
        "the command; it starts from the beginning."
    )


@contextlib.contextmanager
def explained(path: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an `OSError` of writing a run's file into one that names it, the room on its disk and the way on."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        place = path if path.is_dir() else path.parent
        raise CheckpointError(
            f"could not write {path}: {error.strerror or error} ({room(path.parent, needed)}). "
            f"{way_on(place / 'checkpoints', error)}",
            is_final=is_lasting(error),
        ) from error


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size} bytes"
