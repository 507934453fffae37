"""An independent judge of checkpoints: shares no code with what writes them; json, hashlib and struct are all it uses.

python tests/faults/checker.py RUN/checkpoints
"""

import hashlib
import json
import re
import struct
import sys
from pathlib import Path

WIDTHS = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}


def judge(directory: Path) -> dict[int, dict[str, str] | str]:
    """Return for each step the hash of every tensor, or what is wrong with it."""
    found: dict[int, dict[str, str] | str] = {}
    for path in sorted(Path(directory).glob("step-*")):
        step = int(re.fullmatch(r"step-(\d+)\.[0-9a-f]{8}", path.name).group(1))
        try:
            verdict = tensors(path, step)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            verdict = f"{type(error).__name__}: {error}"
        if isinstance(found.get(step, ""), str):  # a whole one wins over a damaged one of the same step
            found[step] = verdict
    return found


def tensors(path: Path, step: int) -> dict[str, str]:
    """Return the hash of every tensor of a whole checkpoint; an exception says what is wrong."""
    manifest = json.loads((path / "manifest.json").read_text())
    claimed = manifest.pop("sha256")
    expect(claimed, hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest(), "manifest")
    expect(manifest["step"], step, "step")
    hashes: dict[str, str] = {}
    expect("state.json" in manifest["files"], True, "state.json")
    for name, entry in manifest["files"].items():
        expect(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name) is not None, True, f"name {name!r}")
        expect((path / name).is_symlink(), False, f"{name} is a link")
        data = (path / name).read_bytes()
        expect((len(data), hashlib.sha256(data).hexdigest()), (entry["bytes"], entry["sha256"]), name)
        if name.endswith(".json"):
            json.loads(data)
            continue
        stem = re.sub(r"(-\d{5}-of-\d{5})?\.safetensors$", "", name)
        for key, value in safetensors(data).items():
            expect(f"{stem}/{key}" in hashes, False, f"{key} twice")
            hashes[f"{stem}/{key}"] = value
    return hashes


def safetensors(data: bytes) -> dict[str, str]:
    """Return the hash of every tensor in the bytes of a file."""
    (length,) = struct.unpack("<Q", data[:8])
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    hashes, end = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        first, last = entry["data_offsets"]
        count = 1
        for size in entry["shape"]:
            count *= size
        expect((first, last - first), (end, count * WIDTHS.get(entry["dtype"], 1)), f"place of {name}")
        hashes[name] = hashlib.sha256(f"{entry['dtype']}{entry['shape']}".encode() + body[first:last]).hexdigest()
        end = last
    expect(len(body), end, "length")
    return hashes


def expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise ValueError(f"{what}: expected {wanted}, found {found}")


if __name__ == "__main__":
    verdicts = judge(Path(sys.argv[1]))
    for number, verdict in sorted(verdicts.items()):
        print(number, verdict if isinstance(verdict, str) else f"whole, {len(verdict)} tensors")
    sys.exit(any(isinstance(verdict, str) for verdict in verdicts.values()) or not verdicts)
