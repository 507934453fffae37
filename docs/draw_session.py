"""Draw docs/pictures/session.svg: a terminal session that really ran.

    python docs/draw_session.py

trains the digits in a temporary directory, kills a worker, then the launcher, with SIGKILL, continues with one worker,
and compares with a run that nobody disturbed (a minute). What the programs print is shown as it is, without the middle
of long outputs. Exits with an error, and draws nothing, if the two runs differ.
"""

import io
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).parent / "pictures" / "session.svg"
COLUMNS = 53  # where 370 pixels, a phone, show it, its letters are 11 high
UNISONO = (sys.executable, "-m", "unisono")


def workers_of(launcher: int) -> list[int]:
    """Return the launcher's workers, by rank."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    names = {Path(f"/proc/{pid}/comm").read_text().strip(): int(pid) for pid in children}
    return [names[name] for name in sorted(names) if name.startswith("unisono-rank")]


class Session:
    """What stands in the terminal."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)

    def say(self, text: str, style: str = "") -> None:
        """Add a line."""
        self.console.print(Text(text, style=style, overflow="fold"))

    def play(self, command: str, disturb: Callable[[str, int], str | None] | None = None) -> str:
        """Run a command; show what belongs to a disturbance or a resume, and the fingerprint."""
        self.say(f"$ {command}", "bold")
        program = [*UNISONO, *command.split()[1:]]
        process = subprocess.Popen(
            program, cwd=self.directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        lines, shown = [], set[int]()
        for line in process.stdout:
            lines.append(("", line.rstrip()))
            if line.startswith("fingerprint"):
                shown.add(len(lines) - 1)
            if "unisono: " in line:
                shown.add(len(lines) - 1)
            if disturb is not None and (done := disturb(line, process.pid)):
                lines.append(("red", done))
                shown |= {len(lines) - 2, len(lines) - 1}
        process.wait()
        for number, (style, line) in enumerate(lines):
            if number in shown:
                self.say(line, style or ("green" if line.startswith(("fingerprint", "equal")) else ""))
            elif number - 1 in shown:
                self.say("...", "dim")
        return "\n".join(line for _, line in lines)


def disturb(line: str, launcher: int) -> str | None:
    """Kill a worker after the third epoch, and the launcher after the tenth; return the command for it."""
    if "epoch 3/" in line and "test" in line:
        worker = workers_of(launcher)[1]
        os.kill(worker, signal.SIGKILL)
        return f"(elsewhere) $ kill -9 {worker}      # a worker"
    if "epoch 10/" in line and "test" in line:
        os.kill(launcher, signal.SIGKILL)
        return f"(elsewhere) $ kill -9 {launcher}      # the launcher"
    return None


def fingerprint(printed: str) -> str:
    """Return the one that a training has printed."""
    (found,) = re.findall(r"^fingerprint +(\w{64})", printed, re.MULTILINE)
    return found


def main() -> None:
    """Run the session and draw it."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        session.play("unisono train digits -n 3 --out runs/killed", disturb)
        session.say("Killed")
        disturbed = session.play("unisono train digits -n 1 --out runs/killed")
        plain = session.play("unisono train digits -n 2 --out runs/undisturbed")
        assert fingerprint(disturbed) == fingerprint(plain), "the two runs differ"
    drawn = session.console.export_svg(title="Killed twice, continued by one worker: the same bits")
    drawn = drawn.replace("font-size: 18px;", "font-size: 20px;")  # of the title
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\n", "", drawn, flags=re.DOTALL))


if __name__ == "__main__":
    main()
