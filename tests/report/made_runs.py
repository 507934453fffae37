"""Run directories as a run leaves them, made without training."""

import json
from dataclasses import asdict
from pathlib import Path

from unisono.observe.phases import PHASES

MS = 1_000_000
HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><svg onload=alert(1)>&\"'\u2028\u202e"


def make_run(
    path: Path,
    *,
    steps=60,
    workers=2,
    launches=((1, 60),),
    seed=0,
    name="digits",
    result=True,
    slow=None,
    more=None,
    last_step=None,
    other=0,
    reached=0,
    cores=0,
):
    """Write a run of `steps` steps in launches given as (first step, last step); `other` ms pass between two steps.

    `reached`: the last step that the leader of the launches after the first has found in the ledger.
    `cores`: of the only host.
    """
    path.mkdir(parents=True)
    score = {
        "version": 1, "seed": seed, "replicas": 8, "batch_size": 64, "threads": 1, "strategy": {"name": "exact"},
        "data": {"class": "ArrayDataset", "num_samples": 1437, "shuffle": True, "fingerprint": "74a1"},
        "settings": {"recipe": name, "model": "cnn", "limit": None, **(more or {})},
    }  # fmt: skip
    write(path / "score.json", score)
    write(path / "environment.json", {"torch": "2.13.0+cpu", "cpu": "a cpu", "drifted": []})
    lines = [
        {"step": step, "epoch": 0, "num_samples": 64, "samples": "aa", "loss": (2.0 / step + seed).hex(),
         "gradient": f"{step:016x}", "weights": f"{step + seed:016x}", "lr": (0.1).hex()}
        for step in range(1, steps + 1)
    ]  # fmt: skip
    (path / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    logged = [
        {"step": step, "epoch": 0, "values": {"test_accuracy": 1 - 1 / step}} for step in range(10, steps + 1, 10)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    (path / "phases").mkdir()
    for rank in range(workers):
        text = []
        for number, (first, last) in enumerate(launches, start=1):
            head = {"phases": list(PHASES), "launch": number, "rank": rank, "world_size": workers,
                    "wall_ns": 1_795_000_000_000_000_000 + number * 10_000 * MS}  # fmt: skip
            head |= {"reached": reached} if reached and number > 1 and rank == 0 else {}
            head |= {"local_workers": workers, "cores": cores} if cores else {}
            text += [json.dumps(head), *([json.dumps({"last": last_step})] if last_step else [])]
            for step in range(first, last + 1):
                usual = {"data": MS, "forward": 10 * MS, "backward": 20 * MS, "reduce": 4 * MS, "update": MS,
                         "other": other * MS}  # fmt: skip
                spent = dict.fromkeys(PHASES, 0) | usual | {"checkpoint": 30 * MS * (step % 20 == 0)}
                spent["forward"] *= 2 if rank == slow else 1
                at = (step - first) * 100 * MS
                text.append(
                    json.dumps({"step": step, "at_ns": at, "replicas": 8 // workers, "ns": list(spent.values())})
                )
        (path / "phases" / f"rank-{rank}.jsonl").write_text("\n".join(text) + "\n")
    if result:
        told = {
            "fingerprint": f"{seed:064x}", "finished": True, "steps": steps, "epochs": 1, "world_size": workers,
            "strategy": "exact", "resumed_from_step": 0, "samples_per_s": 1600.0,
            "samples_per_s_within": 2000.0,
            "peak_memory_bytes": [300 << 20] * workers, "bytes_sent_per_step": [25_000] * workers,
            "wall_s": 4.2, "metrics": {"test_accuracy": 0.97},
        }  # fmt: skip
        write(path / "result.json", told)
    return path


def write(file: Path, content) -> Path:
    file.write_text(json.dumps(content))
    return file


def write_study(file: Path, study) -> Path:
    return write(file, {"kind": "unisono scaling", "version": 1, **asdict(study)})
