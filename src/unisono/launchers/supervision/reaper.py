"""The process that cleans up after a launcher, however that one dies. Must not import torch.

It holds the read end of a pipe that only the launcher writes to: the end of file is the launcher's end.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import final

# Reads the workers' process groups, one a line, until the launcher is gone.
_REAPER = """
import os, shutil, signal, sys, time
told = b""
while data := os.read(0, 4096):
    told += data
for group in told.split():
    try:
        os.killpg(int(group), signal.SIGKILL)
    except OSError:
        pass
end = time.monotonic() + 10
while any(map(os.path.isdir, sys.argv[1:])) and time.monotonic() < end:  # a dying worker may still write
    for place in sys.argv[1:]:
        shutil.rmtree(place, ignore_errors=True)
    time.sleep(0.01)
"""


@final
class Reaper:
    """Kills the workers' process groups and removes the launch's directories once the launcher is gone.

    Raises:
        OSError: No process could be started.
    """

    def __init__(self, places: Sequence[str]) -> None:
        read_fd, self._write_fd = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _REAPER, *map(os.path.abspath, places)],
                stdin=read_fd,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            os.close(self._write_fd)
            raise
        finally:
            os.close(read_fd)

    def watch(self, pid: int) -> None:
        """Tell it of one more worker, the leader of a process group."""
        os.write(self._write_fd, b"%d\n" % pid)

    def dismiss(self) -> None:
        """End it: the launcher cleans up itself."""
        self._process.kill()
        self._process.wait()
        os.close(self._write_fd)
