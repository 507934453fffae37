"""Start two processes as training would, let them talk, and say how torch and their conversation are.

They run in processes of their own: torch is not loaded here, and one that cannot be loaded is a finding.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.doctor.finding import Finding, fail, ok, warn
from unisono.launchers.scratch import scratch_directory

START_S = 120.0
"""Longest wait for the whole, of which loading torch twice is nearly all."""
_PROGRAM = ("-m", "unisono", "run", "-n", "2", "--threads", "1", "-m", "unisono.doctor.talk")


def check_talk(
    gpus: Sequence[str], environ: Mapping[str, str], program: Sequence[str] = _PROGRAM, wait_s: float = START_S
) -> list[Finding]:
    """Run the communication self-test on two processes of this host."""
    outer = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "UNISONO_RENDEZVOUS", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in environ.items() if name not in outer}
    with scratch_directory("doctor") as scratch:
        path = Path(scratch, "seen.json")
        command = [sys.executable, *program, str(path)]
        try:
            done = subprocess.run(
                command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=wait_s, check=False
            )
        except subprocess.TimeoutExpired:
            told = f"two processes did not finish within {wait_s:g} s"
            return [fail("communication", told, "repeat it when the machine is quiet.")]
        if done.returncode or not path.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            hint = "the whole message: unisono run -n 2 -m unisono.doctor.talk /tmp/seen.json"
            return [fail("communication", f"two processes could not talk (code {done.returncode}): {last}", hint)]
        seen = json.loads(path.read_text())
    return [judge_torch(seen), judge_gpus(seen, gpus), judge_talk(seen)]


def judge_torch(seen: Mapping[str, Any]) -> Finding:
    """Return the verdict on torch's build."""
    told = f"{seen['torch']}, CPU capability {seen['cpu_capability']}, gloo {'yes' if seen['gloo'] else 'no'}"
    if tuple(int(part) for part in seen["torch"].split("+")[0].split(".")[:2] if part.isdigit()) < (2, 10):
        return fail("torch", told, "unisono needs torch 2.10 or later.")
    if not seen["gloo"]:
        return fail("torch", told, "install a build of torch with torch.distributed.")
    if seen["cpu_capability"] == "DEFAULT":
        hint = "no AVX2 kernels: slower, and other bits than machines that have them."
        return warn("torch", told, hint)
    return ok("torch", told)


def judge_gpus(seen: Mapping[str, Any], gpus: Sequence[str]) -> Finding:
    """Return the verdict on GPUs: those of the driver, those that torch can use, and NCCL."""
    usable = len(seen["gpus"])
    if not gpus and not usable:
        return ok("gpus", "none; training uses the CPU")
    told = (
        f"{usable} usable of {max(len(gpus), usable)} ({', '.join(seen['gpus'] or gpus)}), NCCL {seen['nccl'] or 'no'}"
    )
    if not usable:
        hint = "install a CUDA build of torch" if seen["cuda"] is None else "compare nvidia-smi's driver with CUDA"
        return warn("gpus", told, f"torch uses none of them: {hint}; see CUDA_VISIBLE_DEVICES too.")
    if usable > 1 and not seen["nccl"]:
        return fail("gpus", told, "install a build of torch with NCCL.")
    return ok("gpus", told)


def judge_talk(seen: Mapping[str, Any]) -> Finding:
    """Return the verdict on the conversation."""
    if seen["wrong"]:
        told = f"{seen['wrong']} sums over {seen['transport']} were wrong"
        return fail("communication", told, "test this machine's memory.")
    told = (
        f"2 processes over {seen['transport']}: sums are right; {seen['latency_us']:.0f} us for 4 KiB, "
        f"{seen['mb_per_s']:.0f} MB/s for 1 MiB (CPU; NCCL is not exercised)"
    )
    return ok("communication", told)
