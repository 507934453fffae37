"""Ranks that are forked from one process, which has loaded torch and unisono: two seconds less for each than a launch.

They have the variables that our launcher gives its workers; nobody watches them but this process, which ends all when
one fails. What is about launchers and about how workers end takes `ranks.run_processes`.
"""

import base64
import json
import os
import pickle
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import ranks
from answers import Answers
from unisono.launchers.spec import LaunchSpec, ModuleTarget
from unisono.launchers.worker.environment import thread_variables, worker_environment
from unisono.launchers.worker.error_file import ERROR_VARIABLE
from unisono.system.heartbeat import HEARTBEAT_VARIABLE
from unisono.system.processes import die_with_parent

_answers = Answers(Path(__file__), **thread_variables(1, os.environ))


def run_forked(program: ranks.Program, world_size: int, *args: Any) -> list[Any]:
    """As `ranks.run_processes`."""
    task = base64.b64encode(pickle.dumps((program, args))).decode()
    found: list[Any] = _answers.ask([task, world_size])
    return found


def _fork(task: str, size: int) -> list[Any]:
    """Fork ranks, and return their results; an error ends all."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the launcher keeps it
        reserved.bind(("", 0))
        spec, port = LaunchSpec(target=ModuleTarget(name=""), workers=size, threads=1), reserved.getsockname()[1]
        alive = []
        for rank in range(size):
            if not (pid := os.fork()):
                _be(task, folder, worker_environment(spec, rank, folder, port, os.environ))
            alive.append(pid)
        failed = []
        while alive:
            pid, status = os.wait()
            alive.remove(pid)
            if status and not failed:
                failed.append(os.waitstatus_to_exitcode(status))
                for other in alive:
                    os.kill(other, signal.SIGKILL)
        if failed:
            raise RuntimeError(f"a rank has ended with code {failed[0]}")
        return [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(size)]


def _be(task: str, folder: str, variables: dict[str, str]) -> None:
    """Be a rank; never returns."""
    code = 1
    try:
        die_with_parent()
        os.environ.update(variables)
        for name in (ERROR_VARIABLE, HEARTBEAT_VARIABLE):  # nobody reads them
            del os.environ[name]
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)
        program, args = pickle.loads(base64.b64decode(task))
        ranks._play(program, folder, args)
        code = 0
    except BaseException:  # noqa: BLE001 - told to the parent
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    die_with_parent()
    import torch._dynamo  # noqa: F401 - 1.7 s of CPU for each rank that makes an optimizer without a run

    import unisono.train.run  # noqa: F401 - what each rank would load

    for line in sys.stdin:
        print(json.dumps(_fork(*json.loads(line))), flush=True)
