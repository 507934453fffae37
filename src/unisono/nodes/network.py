"""Which network interface leads to the other hosts, and why a host cannot be reached.

In: the endpoint, the kernel's routes and addresses. Out: one interface with its address, which gloo, nccl and our own
stores all use. No torch.

Source: https://man7.org/linux/man-pages/man7/netdevice.7.html (SIOCGIFCONF)
"""

import array
import errno
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from unisono.errors import ConfigError

_SIOCGIFCONF = 0x8912
_REQUEST_BYTES = 40  # struct ifreq on 64-bit Linux
_MOST_ADDRESSES = 256

_REASONS = {
    errno.ECONNREFUSED: "nothing listens there, or a firewall rejects it",
    errno.ETIMEDOUT: "no answer: a firewall drops it, the link is down, or the address belongs to another network",
    errno.EHOSTUNREACH: "no such host in that network, or its link is down",
    errno.ENETUNREACH: "no route to that network",
    errno.EADDRNOTAVAIL: "this host has no such address",
    errno.EACCES: "a local firewall forbids it",
    errno.EPERM: "a local firewall forbids it",
}


@dataclass(frozen=True, slots=True)
class Interface:
    """A network interface and the address that others reach it by."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether no other machine can reach it."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback


def choose_interface(
    host: str, port: int, asked: str | None = None, known: Sequence[Interface] | None = None
) -> Interface:
    """Return the interface for everything between hosts.

    Args:
        host: Of the endpoint.
        port: Of the endpoint.
        asked: What the user chose; None: the one by which packets to the endpoint leave, or on which it lies.
        known: Addresses of this host; None asks the kernel.

    Raises:
        ConfigError: No such interface, one without an address, or a host without a route to it.
    """
    known = list_interfaces() if known is None else known
    if asked is not None:
        found = [interface for interface in known if interface.name == asked]
        if not found:
            names = ", ".join(f"{interface.name} ({interface.address})" for interface in known)
            raise ConfigError(f"expected --interface to be one with an address, got {asked!r}; there are {names}.")
        return found[0]
    return interface_of(own_address(host, port), known)


def own_address(host: str, port: int) -> str:
    """Return the address that packets to `host` leave with; nothing is sent."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"expected a way from this host to {host} (--rdzv-endpoint), got: {explain(error)}. "
            "Hint: give an address that all hosts reach; --interface does not help without a route."
        ) from error


def interface_of(address: str, known: Iterable[Interface]) -> Interface:
    """Return the interface that an address belongs to."""
    plain = address.partition("%")[0]
    for interface in known:
        if interface.address == plain:
            return interface
    if ipaddress.ip_address(plain).is_loopback:  # all of 127.0.0.0/8 is
        return Interface("lo", plain)
    raise ConfigError(f"no interface of this host has the address {address}. Hint: name one with --interface.")


def list_interfaces() -> list[Interface]:
    """Return the addresses of this host: IPv4 as the kernel lists them, then IPv6 of the same."""
    buffer = array.array("B", bytes(_REQUEST_BYTES * _MOST_ADDRESSES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
        filled = struct.unpack("iL", fcntl.ioctl(probe, _SIOCGIFCONF, request))[0]
    six = Path("/proc/net/if_inet6")
    return parse_ifconf(buffer.tobytes()[:filled]) + parse_inet6(six.read_text() if six.exists() else "")


def parse_ifconf(data: bytes) -> list[Interface]:
    """Return what the kernel's answer to SIOCGIFCONF lists; an alias (``eth0:1``) belongs to its interface."""
    found = []
    for start in range(0, len(data) - _REQUEST_BYTES + 1, _REQUEST_BYTES):
        name = data[start : start + 16].split(b"\0")[0].decode(errors="replace").partition(":")[0]
        found.append(Interface(name, socket.inet_ntoa(data[start + 20 : start + 24])))
    return found


def parse_inet6(text: str) -> list[Interface]:
    """Return what ``/proc/net/if_inet6`` lists, without link-local addresses, which mean nothing to other hosts."""
    rows = [line.split() for line in text.splitlines()]
    pairs = [(row[5], ipaddress.IPv6Address(int(row[0], 16))) for row in rows if len(row) == 6]
    return [Interface(name, str(address)) for name, address in pairs if not address.is_link_local]


def explain(error: OSError) -> str:
    """Return why a connection failed, in words that say where to look."""
    if isinstance(error, socket.gaierror):
        return f"the name has no address ({error.strerror})"
    if isinstance(error, TimeoutError):
        return _REASONS[errno.ETIMEDOUT]
    known = _REASONS.get(error.errno or 0)
    return f"{known} ({error.strerror})" if known else str(error.strerror or error)


def refuse_untrusted(interface: Interface, trusts_network: bool) -> None:
    """Refuse to open ports that other machines reach, unless the user has said that they are trusted."""
    if not interface.is_loopback and not trusts_network:
        raise ConfigError(
            f"several hosts meet over {interface.name} ({interface.address}), and whoever reaches the ports of gloo "
            "and nccl there can read and change gradients: they know no passwords and no encryption (the store of the "
            "launchers has both sides prove that they know the run's secret, and encrypts nothing). Hint: "
            "--trust-network if only trusted machines reach that network; else join the hosts by WireGuard or an ssh "
            "tunnel, and give that interface."
        )
