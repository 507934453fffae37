"""What following a job of somebody else's engine needs, whichever engine: its tools, patience, and where output goes.

Must not import torch.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence

from unisono.errors import LaunchError

INTERVAL_S = 2.0
PATIENCE = 5
"""Questions in a row that an engine may leave unanswered: it is being restarted, say."""

Tell = Callable[[str], None]
Write = Callable[[bytes], None]


def find_tool(name: str, of: str, hint: str) -> str:
    """Return where a program is."""
    found = shutil.which(name)
    if found is None:
        raise LaunchError(f"expected {of} {name} on PATH, got none. Hint: {hint}")
    return found


def ask(command: Sequence[str], interval_s: float, is_final: Callable[[str], bool]) -> subprocess.CompletedProcess[str]:
    """Return a program's answer, asking again as long as it fails, `PATIENCE` times in all."""
    for attempt in range(PATIENCE):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        is_answer = done.returncode == 0 and done.stdout.strip()
        if is_answer or is_final(done.stderr) or attempt + 1 == PATIENCE:
            break
        time.sleep(interval_s)
    return done


def write_to_stdout(piece: bytes) -> None:
    """Write a piece of output as it is."""
    while piece:
        piece = piece[os.write(1, piece) :]
