"""Shards that tests write."""

import io
import json
import tarfile
from pathlib import Path


def tar_bytes(samples, form=tarfile.USTAR_FORMAT):
    """Return a tar of {key: {field: bytes}}."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for key, fields in samples.items():
            for field, content in fields.items():
                member = tarfile.TarInfo(f"{key}.{field}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def lines_bytes(rows):
    """Return JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_numbered_tars(folder: Path, counts: list[int]) -> Path:
    """Write a tar for each count, the samples numbered through as ``cls``, and return the folder."""
    folder.mkdir()
    number = 0
    for shard, count in enumerate(counts):
        numbers = range(number, number + count)
        samples = {f"in/{one:04d}": {"cls": str(one).encode(), "txt": f"né {one}".encode()} for one in numbers}
        (folder / f"part-{shard:02d}.tar").write_bytes(tar_bytes(samples))
        number += count
    return folder
