"""Hosts as network namespaces, joined by veth pairs over one bridge or by one pair; every one is removed again.

Each namespace gets a host name of its own (``unshare --uts``), so that its processes count as another machine and talk
over the network, not through shared memory. Needs root and Debian's iproute2.
"""

import contextlib
import os
import re
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest

NETWORK = "10.213.7"


def why_not() -> str:
    """Return why there can be no namespaces here, after an attempt to install what is missing; else empty."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        if shutil.which("apt-get") is None:
            return "there is no `ip` (iproute2), and no apt-get to install it"
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True)
        subprocess.run(["apt-get", "install", "-y", "-qq", "iproute2"], check=False, capture_output=True)
    if shutil.which("ip") is None:
        return "iproute2 could not be installed"
    name = f"unisono-{os.getpid()}-try"
    tried = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
    return f"network namespaces cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


def ip(*arguments: str, within: str | None = None) -> None:
    """Run ``ip``, in a namespace if one is named."""
    command = ["ip", *(["-n", within] if within else []), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stderr)


def remove_left_overs() -> None:
    """Remove the namespaces of tests that were killed: their names tell the process, and it is gone."""
    listed = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    for name, pid in re.findall(r"^(unisono-(\d+)-\S+)", listed, re.MULTILINE):
        if not Path("/proc", pid).exists():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


class Network:
    """So many namespaces in one network, with addresses 10.213.7.1, .2, ...

    Args:
        num_hosts: How many.
        direct: Two hosts joined by one veth pair, without a switch between them (and so without `link`).
    """

    def __init__(self, num_hosts: int, *, direct: bool = False) -> None:
        self.tag = f"unisono-{os.getpid()}-{uuid.uuid4().hex[:4]}"
        self.names = [f"{self.tag}-h{index + 1}" for index in range(num_hosts)]
        self.addresses = [f"{NETWORK}.{index + 1}" for index in range(num_hosts)]
        self._made: list[str] = []
        self._switch = f"{self.tag}-sw"  # the bridge has a namespace too: nothing of it shows in ours
        try:
            for name in (*([] if direct else [self._switch]), *self.names):
                ip("netns", "add", name)
                self._made.append(name)
                ip("link", "set", "lo", "up", within=name)
            if direct:
                one, other = self.names
                ip("link", "add", "eth0", "netns", one, "type", "veth", "peer", "name", "eth0", "netns", other)
            else:
                ip("link", "add", "br0", "type", "bridge", within=self._switch)
                ip("link", "set", "br0", "up", within=self._switch)
            for index, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
                if not direct:
                    self._plug_in(index)
                ip("addr", "add", f"{address}/24", "dev", "eth0", within=name)
                ip("link", "set", "eth0", "up", within=name)
        except BaseException:
            self.close()
            raise

    def _plug_in(self, index: int) -> None:
        """Join a host to the switch."""
        name, port = self.names[index], f"p{index}"
        ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", port, "netns", self._switch)
        ip("link", "set", port, "master", "br0", within=self._switch)
        ip("link", "set", port, "up", within=self._switch)

    def within(self, index: int) -> list[str]:
        """Return what stands before a command that is to run on a host."""
        name = self.names[index]
        rename = f'hostname {name} && exec "$@"'
        return ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", rename, "sh"]

    def link(self, index: int, state: str) -> None:
        """Set a host's link ``up`` or ``down``, at the switch."""
        ip("link", "set", f"p{index}", state, within=self._switch)

    def lose_way(self, index: int, other: int) -> None:
        """Let a host drop what it sends to another: that one's packets still come."""
        ip("route", "add", "blackhole", f"{self.addresses[other]}/32", within=self.names[index])

    def find_way(self, index: int, other: int) -> None:
        """Undo `lose_way`."""
        ip("route", "delete", "blackhole", f"{self.addresses[other]}/32", within=self.names[index])

    def slow_down(self, rate: str | None, burst: str = "32kbit") -> None:
        """Limit what each host sends; None: not any more."""
        for name in self.names:
            has_limit = "tbf" in subprocess.run(["tc", "-n", name, "qdisc", "show", "dev", "eth0"], check=True,
                                                capture_output=True, text=True).stdout  # fmt: skip
            if rate is not None:
                what = ["replace", "dev", "eth0", "root", "tbf", "rate", rate, "burst", burst, "latency", "50ms"]
            elif has_limit:
                what = ["delete", "dev", "eth0", "root"]
            else:
                continue
            done = subprocess.run(["tc", "-n", name, "qdisc", *what], check=False, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr

    def close(self) -> None:
        """Remove all namespaces; what runs in them must have ended."""
        while self._made:
            subprocess.run(["ip", "netns", "delete", self._made.pop()], check=False, capture_output=True)


@contextlib.contextmanager
def network(num_hosts: int):
    """Make a network, and remove it whatever happens."""
    if reason := why_not():
        pytest.skip(reason)
    remove_left_overs()
    made = Network(num_hosts)
    try:
        yield made
    finally:
        made.close()
