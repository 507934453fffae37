"""The process of `env_store`: torch's TCPStore on a socket that listens already, until the launcher is gone.

In: the socket's number; nothing ever comes by the standard input, whose end is the launcher's.
"""

import socket
import sys
from datetime import timedelta

from torch._C._distributed_c10d import TCPStore

_TIMEOUT = timedelta(seconds=60)


def main(fd: int) -> None:
    """Serve until the standard input ends."""
    with socket.socket(fileno=fd) as listener:
        host, port = listener.getsockname()[:2]
        listener.detach()
    store = TCPStore(host, port, is_master=True, timeout=_TIMEOUT, wait_for_workers=False, master_listen_fd=fd)
    sys.stdin.buffer.read()
    del store


if __name__ == "__main__":
    main(int(sys.argv[1]))
