"""Runs a checkpoint's write under strace, once for every crash point, in forked children: torch is imported once.

    python crash_server.py ROOT WRITER FAULT STRIDE SYSCALL...

FAULT is ``SIGKILL`` or the name of an errno. Prints one line of JSON: how many points, and what went wrong at which.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from states import judge, state_of

from unisono.checkpoint.store import newest_valid, write
from unisono.errors import CheckpointError

CLEAN, REFUSED, STRANGE = 0, 7, 8


def careless(directory: Path, step: int, state: object) -> None:
    """The negative control: the older ones go first, and the new one is written in place, its manifest first."""
    template = directory.parent / "careless"
    for old in directory.glob("step-*"):
        shutil.rmtree(old)
    made = next(template.glob("step-00000003.*"))
    (directory / made.name).mkdir()
    for file in sorted(made.iterdir()):
        (directory / made.name / file.name).write_bytes(file.read_bytes())


def child(writer: object, directory: Path, gate: int) -> None:
    """Wait for strace, write, and tell by the exit code how it went."""
    code = STRANGE
    try:
        os.read(gate, 1)
        writer(directory, 3, state_of(3))
        code = CLEAN
    except CheckpointError:
        code = REFUSED
    finally:
        os._exit(code)


def play(writer: object, directory: Path, syscall: str, fault: str, number: int) -> tuple[int, bool]:
    """Write with a fault at the N-th call of one kind.

    Returns:
        The writer's exit code, negative for a signal, and whether there was an N-th call.
    """
    log = directory.parent / "strace.log"
    gate, push = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(push)
        child(writer, directory, gate)
    os.close(gate)
    what = f"signal={fault}" if fault.startswith("SIG") else f"error={fault}"
    options = ["-e", f"trace={syscall}", "-e", f"inject={syscall}:{what}:when={number}"]
    tracer = subprocess.Popen(["strace", "-f", "-qq", "-p", str(pid), "-o", str(log), *options], stderr=subprocess.PIPE)
    while "TracerPid:\t0\n" in Path(f"/proc/{pid}/status").read_text():
        if tracer.poll() is not None:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            raise SystemExit(f"strace cannot attach: {tracer.stderr.read().decode()}")
        time.sleep(0.001)  # until it is attached: strace tells it nowhere else
    os.write(push, b"x")
    os.close(push)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    tracer.communicate()
    return code, code == -9 or "INJECTED" in log.read_text(errors="replace")


def check(directory: Path, code: int, expected: dict) -> str | None:
    """Return what is wrong after the fault: old or new, never a third state; the next save works and tidies up."""
    verdicts = judge(directory)
    whole = [step for step, verdict in verdicts.items() if verdict == expected.get(step)]
    if not whole or max(whole) not in (2, 3):
        return f"the checker finds {verdicts}"
    if code == CLEAN and max(whole) != 3:
        return "called saved, but is not there"
    if code == STRANGE:
        return "the writer failed with another error than CheckpointError"
    try:
        path, complaints = newest_valid(directory)
        if path is None or complaints or not path.name.startswith(f"step-{max(whole):08d}"):
            return f"the loader finds {path}, complaints {complaints}"
        write(directory, 4, state_of(4))
    except CheckpointError as error:
        return f"the next save: {error}"
    left = sorted(path.name[:13] for path in directory.iterdir())
    if left != ["LATEST", f"step-{max(whole):08d}", "step-00000004"]:
        return f"left over: {left}"
    return None


def main(root: Path, writer_name: str, fault: str, stride: int, syscalls: list[str]) -> None:
    writer = {"write": write, "careless": careless}[writer_name]
    template = root / "template"
    write(template, 1, state_of(1))
    write(template, 2, state_of(2))
    shutil.copytree(template, root / "careless")
    write(root / "careless", 3, state_of(3))
    expected = {**judge(template), **judge(root / "careless")}
    with contextlib.suppress(CheckpointError):  # everything that is imported late is imported now
        newest_valid(root)
    points, violations = {}, []
    for index, syscall in enumerate(syscalls):
        points[syscall] = 0
        for number in itertools.count(1 + index % stride, stride):
            directory = root / "work" / "checkpoints"
            shutil.rmtree(root / "work", ignore_errors=True)
            shutil.copytree(template, directory)
            shutil.copytree(root / "careless", root / "work" / "careless")
            code, was_hit = play(writer, directory, syscall, fault, number)
            if not was_hit:
                break
            points[syscall] += 1
            if code < 0 and code != -9:
                violations.append(f"{syscall} {number}: died of signal {-code}")
            elif problem := check(directory, code, expected):
                violations.append(f"{syscall} {number}: {problem}")
    print(json.dumps({"points": points, "violations": violations}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), sys.argv[5:])
