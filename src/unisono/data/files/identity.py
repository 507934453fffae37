"""What identifies a large file: its size and a hash of some blocks, read in milliseconds; or a hash of all of it.

The places of the blocks follow from the size alone, so every machine and every copy gives the same. An edit that keeps
the size and lies between the blocks is not seen by them; a file that was made anew is. The hash of all bytes is worth
keeping, and is kept under what the file is on this machine: device, inode, size, time of change, blocks. No torch.
"""

import hashlib
import os
from pathlib import Path

from unisono.data.files.fetch import sha256_file
from unisono.determinism.seeding import mix
from unisono.environment import default_cache
from unisono.errors import DataError
from unisono.system.files import read_file, replace_file

NUM_BLOCKS = 64
BLOCK_BYTES = 1 << 14


def sampled_identity(path: Path, num_blocks: int = NUM_BLOCKS) -> str:
    """Return size and hash of so many blocks of 16 KiB, ``SIZE-HASH``; of a smaller file all bytes count."""
    try:
        with path.open("rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            digest = hashlib.sha256()
            for place in places_of(size, num_blocks):
                digest.update(os.pread(file.fileno(), BLOCK_BYTES, place))
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror}. Hint: check the path.") from None
    return f"{size}-{digest.hexdigest()[:16]}"


def places_of(size: int, num_blocks: int = NUM_BLOCKS) -> list[int]:
    """Return where the blocks of a file of so many bytes begin: all of a small one; else first, last, and one a part.

    Between the first and the last the file is cut into equal parts, with a block at a place of each that the size
    decides.
    """
    if size <= num_blocks * BLOCK_BYTES:
        return list(range(0, size, BLOCK_BYTES))
    last, parts = size - BLOCK_BYTES, num_blocks - 2
    inner = (part * last // parts + mix(size, "block", part) % (last // parts) for part in range(parts))
    return [0, *inner, last]


def whole_identity(path: Path, cache: Path | None = None) -> str:
    """Return size and hash of all bytes, ``SIZE-HASH``; computed once for a file that does not change."""
    key = hashlib.sha256(place_on_machine(path).encode()).hexdigest()[:32]
    entry = (cache or default_cache({})) / "hashes" / key
    size = path.stat().st_size
    try:
        kept = (read_file(entry) or b"").decode("ascii", "replace")
        if len(kept) == 64 and set(kept) <= set("0123456789abcdef"):
            return f"{size}-{kept[:16]}"
        found = sha256_file(path)
        entry.parent.mkdir(parents=True, exist_ok=True)
        replace_file(entry, found.encode("ascii"))
    except OSError as error:
        raise DataError(
            f"{entry.parent}: expected a directory that can be written, found: {error.strerror}. "
            "Hint: pass another cache directory."
        ) from None
    return f"{size}-{found[:16]}"


def place_on_machine(path: Path) -> str:
    """Return what tells this file, as it is now, from every other on this machine; `DataError`: unreadable."""
    blocks, held = sampled_identity(path), path.stat()
    return f"{held.st_dev} {held.st_ino} {held.st_size} {held.st_mtime_ns} {blocks}"
