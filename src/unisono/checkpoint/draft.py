"""A checkpoint that is being written: its directory under a temporary name, and words for what goes wrong."""

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from unisono.checkpoint.files import FileSum, write_synced
from unisono.errors import CheckpointError
from unisono.system.directory import Directory
from unisono.system.disk import is_lasting, room, way_on


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is being written."""

    step: int  #: Steps done.
    home: Directory  #: The directory of the checkpoints.
    name: str  #: That of its own, once it is committed.

    @property
    def temporary(self) -> str:
        """The name of its directory until it is committed."""
        return f".{self.name}.tmp"

    def opened(self) -> Directory:
        """Open its directory, which is not committed."""
        return self.home.child(self.temporary)

    def put(self, file: str, chunks: Iterable[bytes | memoryview]) -> FileSum:
        """Write one file and put it on the disk."""
        with self.explained(), self.opened() as place:
            return write_synced(place, file, chunks)

    @contextlib.contextmanager
    def explained(self, needed: int | None = None) -> Iterator[None]:
        """Turn an `OSError` into one that names step, place and what is missing."""
        with explained(self.step, self.home.path, needed):
            yield


@contextlib.contextmanager
def explained(step: int, directory: Path, needed: int | None = None) -> Iterator[None]:
    """Turn an `OSError` of writing a checkpoint into a `CheckpointError` that names step, place and what is missing."""
    try:
        yield
    except CheckpointError:
        raise
    except OSError as error:
        raise could_not_write(step, directory, error, needed, is_final=is_lasting(error)) from error


def could_not_write(
    step: int, directory: Path, why: OSError | str, needed: int | None, *, is_final: bool = True
) -> CheckpointError:  # fmt: skip
    """Return the error that names step, place, reason and the room there is."""
    error = why if isinstance(why, OSError) else None
    reason = (error and error.strerror) or str(why)
    return CheckpointError(
        f"could not write the checkpoint of step {step} into {directory}: {reason} ({room(directory, needed)}). "
        f"{way_on(directory, error)}",
        is_final=is_final,
    )
