"""A store of torch's for programs that form ``env://`` groups themselves; it is there as soon as one of them asks.

Torch's store believes whoever connects. So it runs in a process of its own (`env_server`), which is started by the
first connection: programs that train through unisono meet elsewhere, and none is ever started for them.
"""

import selectors
import socket
import subprocess
import sys
import threading
from typing import final

from unisono.store.server import listen


@final
class EnvStore:
    """Listens on one address; the first connection starts torch's store there."""

    def __init__(self, address: str) -> None:
        self._listener = listen(address, 0)
        self.port = int(self._listener.getsockname()[1])  #: Its port.
        self._process: subprocess.Popen[bytes] | None = None
        self._alarm, self._bell = socket.socketpair()
        self._thread = threading.Thread(target=self._wait, name="unisono-env-store", daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._bell, selectors.EVENT_READ)
            if any(found.fileobj is self._bell for found, _ in selector.select()):
                return
        fd = self._listener.fileno()
        command = [sys.executable, "-P", "-m", "unisono.nodes.env_server", str(fd)]
        # Its input ends with us, however we end.
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(fd,), start_new_session=True)

    def close(self) -> None:
        """End it; safe to call twice."""
        self._alarm.close()
        self._thread.join()
        self._bell.close()
        self._listener.close()
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.kill()
            self._process.wait()
