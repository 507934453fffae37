"""Which interface is taken, what is refused, and why a host is not reached, in words."""

import errno
import os
import socket
import struct

import pytest

from unisono.errors import ConfigError
from unisono.nodes.network import (
    Interface,
    choose_interface,
    explain,
    interface_of,
    list_interfaces,
    own_address,
    parse_ifconf,
    parse_inet6,
    refuse_untrusted,
)

KNOWN = [Interface("lo", "127.0.0.1"), Interface("ens3", "10.0.0.2"), Interface("ib0", "192.168.7.2")]


def test_the_kernels_lists():
    """Both of the kernel's formats are read: aliases belong to their interface, link-local addresses to nobody."""

    def row(name, address):
        return struct.pack("16sHH4s", name, socket.AF_INET, 0, socket.inet_aton(address)).ljust(40, b"\0")

    data = row(b"lo", "127.0.0.1") + row(b"eth0", "10.0.0.2") + row(b"eth0:1", "10.0.0.3")
    assert parse_ifconf(data) == [
        Interface("lo", "127.0.0.1"), Interface("eth0", "10.0.0.2"), Interface("eth0", "10.0.0.3"),
    ]  # fmt: skip
    six = (
        "00000000000000000000000000000001 01 80 10 80       lo\n"
        "fe8000000000000002155dfffe000001 02 40 20 80     eth0\n"
        "fd000000000000000000000000000002 02 40 00 80     eth0\n"
    )
    assert parse_inet6(six) == [Interface("lo", "::1"), Interface("eth0", "fd00::2")]
    assert Interface("lo", "127.0.0.1") in list_interfaces()


def test_the_interface_towards_the_endpoint():
    """The loopback endpoint is met over loopback; an address belongs to the interface that has it."""
    assert own_address("127.0.0.1", 29400) == "127.0.0.1"
    assert choose_interface("127.0.0.1", 29400).name == "lo"
    assert choose_interface("127.0.0.3", 29400).name == "lo"
    assert interface_of("127.0.0.3", KNOWN) == Interface("lo", "127.0.0.3")  # all of 127/8 is this host
    assert interface_of("192.168.7.2", KNOWN).name == "ib0"
    with pytest.raises(ConfigError, match=r"no interface of this host has the address 10\.9\.9\.9"):
        interface_of("10.9.9.9", KNOWN)


def test_a_chosen_interface():
    """What the user names is taken; a wrong name is answered with those that there are."""
    assert choose_interface("127.0.0.1", 1, "ens3", KNOWN) == KNOWN[1]
    with pytest.raises(ConfigError, match=r"got 'eth0'; there are lo \(127\.0\.0\.1\), ens3 \(10\.0\.0\.2\)"):
        choose_interface("127.0.0.1", 1, "eth0", KNOWN)


def test_no_way_to_the_endpoint(monkeypatch):
    """A name without an address, and a network without a route, are told from each other."""

    def nobody(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    with pytest.raises(ConfigError, match="the name has no address"):
        own_address("no-such-host", 1)
    assert explain(OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))).startswith("no route")
    assert "firewall drops it" in explain(TimeoutError())
    assert "nothing listens" in explain(ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"))
    assert explain(OSError(errno.EIO, "Input/output error")) == "Input/output error"


def test_ports_beyond_loopback_are_refused():
    """Without the word of the user nothing listens beyond loopback, and the reason is given."""
    refuse_untrusted(KNOWN[0], False)
    refuse_untrusted(KNOWN[1], True)
    with pytest.raises(ConfigError, match=r"ens3 \(10\.0\.0\.2\).*can read and change gradients.*--trust-network"):
        refuse_untrusted(KNOWN[1], False)
