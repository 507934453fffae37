"""Row 54: hostile checkpoints and weights are refused before any side effect, and cannot speak to the terminal."""

import hashlib
import io
import json
import os
import pickle
import resource
import zipfile

import pytest
import torch
from states import state_of
from torch import nn

from unisono.checkpoint import manifest as manifests
from unisono.checkpoint.interchange import load_weights
from unisono.checkpoint.manifest import Facts, read_manifest
from unisono.checkpoint.store import list_steps, newest_valid, read, write
from unisono.errors import CheckpointError


@pytest.fixture
def two(tmp_path):
    for step in (3, 42):
        write(tmp_path / "checkpoints", step, state_of(step))
    return tmp_path / "checkpoints"


def forge(directory, change):
    """Change the newest manifest and give it the hash that fits, as somebody would who knows the format."""
    path = list_steps(directory)[0][1]
    content = json.loads((path / "manifest.json").read_bytes())
    change(content)
    content["sha256"] = manifests._hash(content)
    (path / "manifest.json").write_text(json.dumps(content))
    return path


SHA = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
CHANGES = {
    "path upwards": lambda m: m["files"].update({"../secret": {"bytes": 1, "sha256": SHA}}),
    "absolute path": lambda m: m["files"].update({"/etc/hostname": {"bytes": 1, "sha256": SHA}}),
    "below": lambda m: m["files"].update({"a/b": {"bytes": 1, "sha256": SHA}}),
    "hidden": lambda m: m["files"].update({".x": {"bytes": 1, "sha256": SHA}}),
    "itself": lambda m: m["files"].update({"manifest.json": {"bytes": 1, "sha256": SHA}}),
    "zero byte": lambda m: m["files"].update({"a\0b": {"bytes": 1, "sha256": SHA}}),
    "huge size": lambda m: m["files"]["state.json"].update(bytes=10**12),
    "larger than any": lambda m: m["files"]["state.json"].update(bytes=10**30),
    "negative size": lambda m: m["files"]["state.json"].update(bytes=-1),
    "size as text": lambda m: m["files"]["state.json"].update(bytes="5"),
    "size as truth": lambda m: m["files"]["state.json"].update(bytes=True),
    "hash as list": lambda m: m["files"]["state.json"].update(sha256=["a"] * 64),
    "short hash": lambda m: m["files"]["state.json"].update(sha256="ab"),
    "no files": lambda m: m.update(files={}),
    "files as list": lambda m: m.update(files=["state.json"]),
    "step as text": lambda m: m.update(step="42"),
    "step as float": lambda m: m.update(step=42.0),
    "another step": lambda m: m.update(step=41),
    "run as number": lambda m: m.update(run=5),
    "metric as text": lambda m: m.update(metrics={"a": "b"}),
    "metric as list": lambda m: m.update(metrics=[1]),
    "no epoch": lambda m: m.pop("epoch"),
    "parent as text": lambda m: m.update(parent_step="x"),
    "token below zero": lambda m: m.update(fencing_token=-1),
    "score as text": lambda m: m.update(score="x"),
    "another version": lambda m: m.update(format_version=[3]),
    "a file of no state": lambda m: m["files"].pop("state.json"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_forged_manifest_is_refused(two, change):
    """Whatever a manifest with a fitting hash says, the answer is one checkpoint error, and the older one is used."""
    (two / "secret").write_bytes(b"x")
    path = forge(two, change)
    with pytest.raises(CheckpointError):
        read(path)
    assert newest_valid(two)[0] == list_steps(two)[1][1]


def test_the_forger_could_have_passed(two):
    """The control: a change that does no harm, with a fitting hash, is read."""
    path = forge(two, lambda m: m.update(epoch=9))
    assert read(path)[0].facts.epoch == 9


TEXTS = {
    "deep list": b"[" * 200_000,
    "deep object": b'{"a":' * 200_000,
    "not a number": b'{"format_version": 2, "step": NaN, "sha256": ""}',
    "infinity": b'{"format_version": 2, "step": 1e999, "sha256": ""}',
    "lone surrogate": b'{"format_version": 2, "\\ud800": "\\udfff"}',
    "many digits": b'{"format_version": ' + b"9" * 10_000 + b"}",
    "no unicode": b'{"format_version": "\xff\xfe"}',
    "too long": b" " * (17 << 20) + b"{}",
    "nothing": b"",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_manifest_that_is_no_manifest(two, text):
    """Deep, endless, huge or broken JSON is refused, and the older checkpoint is used."""
    path = list_steps(two)[0][1]
    (path / "manifest.json").write_bytes(text)
    with pytest.raises(CheckpointError):
        read_manifest(path)
    assert newest_valid(two)[0] == list_steps(two)[1][1]


def test_a_huge_size_takes_no_memory(two):
    """A size that is not the file's is noticed before memory is asked for."""
    path = forge(two, lambda m: m["files"]["state.json"].update(bytes=10**12))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(CheckpointError, match="expected 1000000000000 bytes"):
        read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def refresh(path, file, data):
    """Put other bytes into a checkpoint, hashes and all."""
    (path / file).write_bytes(data)
    content = json.loads((path / "manifest.json").read_bytes())
    content["files"][file] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    content["sha256"] = manifests._hash(content)
    (path / "manifest.json").write_text(json.dumps(content))


def test_a_shard_that_is_no_shard(two):
    """A pickle, a zip, or a header that lies about its length, in a shard's place, is refused; nothing runs."""
    path = list_steps(two)[0][1]
    for data in (pickle.dumps(Bomb("shard")), (10**15).to_bytes(8, "little") + b"{}", b"\x10" + bytes(7) + b"[" * 16):
        refresh(path, "model.safetensors", data)
        with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be trusted"):
            read(path)
    refresh(path, "model.safetensors", (list_steps(two)[1][1] / "model.safetensors").read_bytes())
    assert read(path)[0].step == 42  # the control: with fitting hashes, a real shard is read


class Bomb:
    """Unpickled, it leaves a file behind."""

    def __init__(self, name):
        self.name = name

    def __reduce__(self):
        return (os.mkdir, (self.name,))


@pytest.mark.parametrize("kind", ["plain pickle", "in a state_dict", "torch zip", "legacy torch", "suffix bin"])
def test_a_pickle_with_code_is_refused_before_it_runs(tmp_path, monkeypatch, kind):
    """Weights that hold code are refused with a hint; the code has not run, and the model is as it was."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # must not open the door
    target = tmp_path / "ran"
    file = tmp_path / ("x.bin" if kind == "suffix bin" else "x.pt")
    bomb = Bomb(str(target))
    if kind == "plain pickle":
        file.write_bytes(pickle.dumps(bomb))
    elif kind == "legacy torch":
        torch.save({"weight": torch.ones(2, 2), "x": bomb}, file, _use_new_zipfile_serialization=False)
    elif kind == "torch zip":
        torch.save(bomb, file)
    else:
        torch.save({"weight": torch.ones(2, 2), "bias": bomb}, file)
    model = nn.Linear(2, 2)
    before = model.weight.clone()
    with pytest.raises(CheckpointError):
        load_weights(model, file, strict=False)
    assert not target.exists()
    assert torch.equal(model.weight, before)
    if kind != "plain pickle":  # the control: torch without its guard would have run it
        torch.load(file, weights_only=False)
        assert target.exists()


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_files_that_are_nothing(tmp_path, suffix):
    """Empty, random, text and archive files are one clear error."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("../../x", "y")
    for data in (b"", b"\x80", os.urandom(500), b"hello", archive.getvalue(), bytes(100)):
        (tmp_path / f"x{suffix}").write_bytes(data)
        with pytest.raises(CheckpointError, match=f"x{suffix}"):
            load_weights(nn.Linear(1, 1), tmp_path / f"x{suffix}")


ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


@pytest.mark.parametrize("where", ["file", "version", "run", "tensor"])
def test_control_characters_do_not_reach_the_terminal(two, where):
    """Names and values from a stranger's files are shown without control characters."""
    path = list_steps(two)[0][1]
    if where == "file":
        forge(two, lambda m: m["files"].update({ESCAPES: {"bytes": 1, "sha256": SHA}}))
    elif where == "version":
        forge(two, lambda m: m.update(format_version=ESCAPES))
    elif where == "run":
        forge(two, lambda m: m.update(run=ESCAPES))
    if where == "tensor":
        torch.save({ESCAPES: torch.ones(1)}, two / "x.pt")
        with pytest.raises(CheckpointError) as caught:
            load_weights(nn.Linear(1, 1), two / "x.pt")
    else:
        with pytest.raises(CheckpointError) as caught:
            read(path, "mine" if where == "run" else None)
    assert "owned" in str(caught.value)
    assert not [char for char in str(caught.value) if char not in "\n\t" and not char.isprintable()]


def test_a_run_is_told_apart_by_its_facts(tmp_path):
    """What a manifest says of its run comes back as it was written; metrics that are no number are left out."""
    facts = Facts(run="r" * 32, epoch=3, parent_step=2, fencing_token=7, metrics={"a": 0.5, "n": float("nan")},
                  score={"seed": 1}, environment={"torch": "2"})  # fmt: skip
    found = read(write(tmp_path, 5, state_of(5), facts=facts))[0].facts
    assert found.metrics == {"a": 0.5}
    assert (found.run, found.epoch, found.parent_step, found.fencing_token) == ("r" * 32, 3, 2, 7)
    assert (found.score, found.environment) == ({"seed": 1}, {"torch": "2"})
