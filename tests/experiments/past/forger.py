"""A forger of runs: changes what a run says, and then makes all hashes that he can make fit again."""

import dataclasses
import hashlib
import json
import os
import shutil
import subprocess
import sys

from safetensors.torch import load_file, save_file

from unisono.checkpoint.files import FileSum
from unisono.checkpoint.format import fingerprint_of
from unisono.checkpoint.manifest import encode, read_manifest
from unisono.checkpoint.store import list_steps
from unisono.observe.chain import PREVIOUS, START, value_after
from unisono.system.directory import Directory
from unisono.train.run_directory.commitment import describe_commitment

PROGRAM = """
import os, sys, torch, unisono
from torch.nn import functional as F
said = {"seed": 0, "lr": 0.1, "data": 1, "epochs": 3, "drift": False} | eval(os.environ.get("FORGED", "{}"))
run = unisono.Run(seed=said["seed"], replicas=4, out=sys.argv[1], checkpoint_every=100,
                  checkpoints=unisono.CheckpointPolicy(keep_sparse=5), allow_drift=said["drift"])
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 4))
model, optimizer = run.prepare(model, torch.optim.SGD(model.parameters(), lr=said["lr"], momentum=0.9))
draws = torch.Generator().manual_seed(said["data"])
x, y = torch.randn(50, 6, generator=draws), torch.randint(0, 4, (50,), generator=draws)
for batch in run.steps(run.loader(unisono.ArrayDataset(x, y), batch_size=12), epochs=said["epochs"]):
    run.step(batch, lambda micro: F.cross_entropy(model(micro.x), micro.y))
run.close()
"""  # 15 steps; states of 5, 10 and 15 stay


def train(folder, environ=None, **forged):
    """Train, or go on, with other values than the program says; return the run directory."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(PROGRAM)
    env = os.environ | {"FORGED": repr(forged)} | (environ or {})
    subprocess.run([sys.executable, "train.py", "run"], cwd=folder, check=True, env=env)
    return folder / "run"


def copied(run, folder):
    """Return a copy of a run, to be forged."""
    return shutil.copytree(run, folder / "forged", symlinks=True)


def change_weights(run, step):
    """Change the weights in a checkpoint."""
    place = dict(list_steps(run / "checkpoints"))[step]
    tensors = load_file(place / "model.safetensors")
    tensors["0.weight"] = tensors["0.weight"] + 1e-3
    save_file(tensors, place / "model.safetensors")
    return place


def change_values(run, step, change):
    """Pass the plain values of a checkpoint to `change`, which changes them in place."""
    change_object(dict(list_steps(run / "checkpoints"))[step], "state.json", change)


def change_lines(run, change):
    """Pass each line's entry to `change`; those for which it returns None go."""
    file = run / "ledger.jsonl"
    entries = [change(json.loads(line)) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries if entry is not None))


def change_object(run, name, change):
    """Pass the content of a JSON file to `change`, which changes it in place."""
    content = json.loads((run / name).read_text())
    change(content)
    (run / name).write_text(json.dumps(content, indent=2))


def seal(run):
    """Make the chain of the ledger, all manifests, the result and the commitment fit what is there now."""
    score = json.loads((run / "score.json").read_text())
    value, heads, lines = START, {}, []
    for line in (run / "ledger.jsonl").read_text().splitlines():
        entry = json.loads(line) | {PREVIOUS: value}
        lines.append(json.dumps(entry))
        heads[entry["step"]] = value = value_after(value, lines[-1].encode())
    (run / "ledger.jsonl").write_text("\n".join(lines) + "\n")
    last = max(heads)
    for step, place in list_steps(run / "checkpoints"):
        if step > last:
            shutil.rmtree(place)
            continue
        manifest = read_manifest(place)
        facts = dataclasses.replace(manifest.facts, score=score, ledger_head=heads[step])
        files = {
            name: FileSum((place / name).stat().st_size, hashlib.sha256((place / name).read_bytes()).hexdigest())
            for name in manifest.files
        }
        (place / "manifest.json").write_bytes(encode(step, files, facts))
    newest = dict(list_steps(run / "checkpoints"))[last]
    fingerprint = fingerprint_of(load_file(newest / "model.safetensors"))
    change_object(run, "result.json", lambda it: it.update(steps=last, ledger_head=value, fingerprint=fingerprint))
    with Directory.open(run) as home:
        content = describe_commitment(home, steps=last, head=value, fingerprint=fingerprint)
    (run / "commitment.json").write_text(json.dumps(content))
    return run
