"""A process that is asked by lines of JSON and answers each with another one: what it has loaded serves many tests."""

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


class Answers:
    """One such process, started when it is first asked; after an error another one.

    Args:
        program: A file; reads questions from its standard input, and writes nothing but answers to its output.
        timeout_s: Longest wait for an answer.
        variables: More of them, for its environment.
    """

    def __init__(self, program: Path, timeout_s: float = 200.0, **variables: str) -> None:
        self._program, self._timeout_s, self._variables = program, timeout_s, variables
        self._process: subprocess.Popen[str] | None = None
        self._said: Any = None

    def ask(self, question: Any) -> Any:
        """Return the answer; the error where there is none has what the process has said, as a note."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], self._timeout_s)[0], "no answer in time"
            return json.loads(process.stdout.readline())
        except BaseException as error:
            process.kill()
            process.wait()
            self._said.seek(0)
            error.add_note(self._said.read()[-5000:])
            self._process = None
            raise

    def _start(self) -> subprocess.Popen[str]:
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [sys.executable, self._program], cwd=self._program.parent, env=os.environ | self._variables,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True,
        )  # fmt: skip
        atexit.register(_close, self._process, self._said)
        return self._process


def _close(process: subprocess.Popen[str], said: Any) -> None:
    process.communicate()  # no more questions: it ends
    said.close()
