"""Cases about files: a run directory that somebody or something has changed is refused, or gives the same result."""

import contextlib
import functools
import json
import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import unisono
from adversary.found import Found, check, limited
from adversary.trainings import Description, on_ranks, run_training

_COMMON = {
    "scheduler": "cosine", "clip": {"clip_norm": 0.3}, "replicas": 4, "batch_size": 12, "num_samples": 40, "epochs": 3,
    "shuffle": True, "bf16": False, "penalty": False, "noise": True,
}  # fmt: skip
TRAININGS: list[Description] = [
    {**_COMMON, "model": "mlp", "optimizer": "adamw", "seed": 5},
    {**_COMMON, "model": "normed", "optimizer": "momentum", "seed": 6, "num_samples": 48},
    {**_COMMON, "model": "attentive", "optimizer": "nadam", "seed": 7, "scheduler": "chained"},
]
STOP_AFTER, EVERY = 7, 2
_FOLDERS: list[Path] = []
SENTINEL = b"a file of somebody else\n"


@functools.cache
def made(number: int, seed: int) -> tuple[Path, dict[str, Any]]:
    """Return a directory that was left after `STOP_AFTER` steps, and what the whole training gives; made once."""
    description = TRAININGS[number] | {"seed": TRAININGS[number]["seed"] + seed}
    folder = Path(tempfile.mkdtemp(prefix="adversary-"))
    _FOLDERS.append(folder)
    whole = on_ranks(description, 1, out=folder / "whole", checkpoint_every=EVERY)[0]
    on_ranks(description, 1, out=folder / "part", checkpoint_every=EVERY, stop_after=STOP_AFTER)
    return folder / "part", whole


def forget() -> None:
    """Remove what `made` has made."""
    while _FOLDERS:
        shutil.rmtree(_FOLDERS.pop())
    made.cache_clear()


def damage(chance: random.Random, *, cheat: bool = False) -> str:
    """One or two damages; then the run is resumed: an error of ours, or the whole training's bits and files."""
    number = chance.randrange(len(TRAININGS))
    _, whole = made(number, 0)
    other, other_whole = made(number, 1)
    description = dict(TRAININGS[number])
    with tempfile.TemporaryDirectory() as folder:
        out, sentinel = Path(folder, "run"), Path(folder, "sentinel")
        shutil.copytree(made(number, 0)[0], out, symlinks=True)
        sentinel.write_bytes(SENTINEL)
        done = []
        for _ in range(chance.choice([1, 1, 1, 2])):
            act = chance.choice(ACTS)
            with contextlib.suppress(OSError):  # the second damage may come too late
                done.append(act(chance, out, other, sentinel))
        if chance.random() < 0.15:  # the next launch says another seed
            description["seed"] += 1
            whole = other_whole
            done.append("resumed with another seed")
        if cheat:  # somebody adopts the other run in silence
            shutil.rmtree(out)
            shutil.copytree(other, out)
            description["seed"] += 1
        words = f"{description['model']}: {'; '.join(done)}"
        with warnings.catch_warnings(record=True) as warned, limited(60, words):
            warnings.simplefilter("always")
            try:
                # Alone in this thread, so that a hang can be ended.
                report = run_training(description, out=out, checkpoint_every=EVERY, transport="auto")
            except unisono.UnisonoError as error:
                check(len(str(error).splitlines()) <= 8, f"{words}: a refusal of many lines: {error}")
                return f"refused after {words}"
            except Exception as error:
                raise Found(f"{words}: {type(error).__name__}: {error}") from error
        check(sentinel.read_bytes() == SENTINEL, f"{words}: a file outside was written")
        for part in ("fingerprint", "optimizer"):
            check(report[part] == whole[part], f"{words}: went on to another {part}")
        check(report["ledger"] == whole["ledger"] or warned, f"{words}: another ledger, and no word")
        result = json.loads((out / "result.json").read_text())
        check(result["fingerprint"] == whole["fingerprint"], f"{words}: result.json says another fingerprint")
    return f"equal after {words}"


def _some_file(chance: random.Random, out: Path) -> Path:
    files = sorted(path for path in out.rglob("*") if path.is_file() and not path.is_symlink())
    return chance.choice(files)


def _remove(path: Path) -> None:
    """Remove what an earlier damage may have put there; `shutil.rmtree` would wait for a pipe."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _flip(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    path = _some_file(chance, out)
    data = bytearray(path.read_bytes())
    if not data:
        return f"{path.name} is empty"
    place = chance.randrange(len(data))
    data[place] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return f"bit flipped at {place} of {path.relative_to(out)}"


def _digit(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    path = out / chance.choice(["ledger.jsonl", "score.json", "run.json", "environment.json"])
    text = path.read_text() if path.is_file() else ""
    places = [place for place, letter in enumerate(text) if letter.isdigit()]
    if not places:
        return f"{path.name} has no digit"
    place = chance.choice(places)
    path.write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    return f"digit changed at {place} of {path.name}"


def _cut(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    path = _some_file(chance, out)
    size = path.stat().st_size
    kept = chance.choice([0, 1, size // 2, max(0, size - 1), chance.randint(0, size)])
    os.truncate(path, kept)
    return f"{path.relative_to(out)} cut to {kept} of {size}"


def _garbage(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    path = _some_file(chance, out)
    what = chance.choice([b"[]", b"null", b"{}", b"\xff\xfe\x00", b"[" * 5000, b"1e999", chance.randbytes(300), b"\n"])
    if chance.random() < 0.5:
        path.write_bytes(what)
        return f"{path.relative_to(out)} replaced by {what[:10]!r}"
    with path.open("ab") as file:
        file.write(what)
    return f"{what[:10]!r} behind {path.relative_to(out)}"


def _lose(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    paths = sorted(path for path in out.rglob("*"))
    path = chance.choice(paths)
    _remove(path)
    return f"lost {path.relative_to(out)}"


def _lose_names(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    lost = chance.sample(["run.json", "score.json", "environment.json", "ledger.jsonl"], chance.randint(1, 3))
    for name in lost:
        (out / name).unlink()
    return f"lost {', '.join(lost)}"


def _foreign(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    name = chance.choice(["checkpoints", "ledger.jsonl", "score.json", "run.json", "environment.json", "newest"])
    if name == "newest":
        newest = max(path for path in (other / "checkpoints").iterdir() if path.name.startswith("step-"))
        shutil.copytree(newest, out / "checkpoints" / newest.name, dirs_exist_ok=True)
    elif name == "checkpoints":
        _remove(out / name)
        shutil.copytree(other / name, out / name)
    else:
        _remove(out / name)
        shutil.copy(other / name, out / name)
    return f"{name} of another run"


def _swap(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    steps = sorted(path for path in (out / "checkpoints").iterdir() if path.name.startswith("step-"))
    if len(steps) < 2:
        return "too few checkpoints"
    name = chance.choice(["manifest.json", "model.safetensors", "optimizer.safetensors", "state.json"])
    first, second = (step / name for step in chance.sample(steps, 2))
    one, two = first.read_bytes(), second.read_bytes()
    first.write_bytes(two)
    if chance.random() < 0.5:
        second.write_bytes(one)
    return f"{name} of {second.parent.name} in {first.parent.name}"


def _replace(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    names = [
        "ledger.jsonl",
        "score.json",
        "run.json",
        "result.json",
        "environment.json",
        "run.lock",
        "checkpoints",
        "phases",
    ]
    path = out / chance.choice(names)
    _remove(path)
    kind = chance.choice(["directory", "fifo", "link", "dangling link", "link to itself"])
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(sentinel)
    elif kind == "dangling link":
        path.symlink_to(sentinel.parent / "made-through-a-link")
    else:
        path.symlink_to(path)
    return f"{path.name} is a {kind}"


def _plant(chance: random.Random, out: Path, other: Path, sentinel: Path) -> str:
    name = chance.choice(
        ["ledger.tmp", "ledger.jsonl.tmp", "result.json.tmp", "score.json.tmp", "checkpoints/tmp", "checkpoints/LATEST"]
    )
    path = out / name
    _remove(path)
    path.symlink_to(sentinel)
    return f"a link planted at {name}"


ACTS = [_flip, _digit, _cut, _garbage, _lose, _lose_names, _foreign, _swap, _replace, _plant]
