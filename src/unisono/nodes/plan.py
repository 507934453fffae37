"""What one launcher is told about the others: how many, where they meet, and what it may listen on. Pure.

In: `NodesOptions`, as users say it. Out: a `NodesPlan`, checked, or none for a launch on one host.
"""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import final

from unisono.errors import ConfigError
from unisono.options.fields import HOSTS, check, option
from unisono.options.quantities import NODE_RANK, PORT, SILENCE, WAIT

DEFAULT_PORT = 29400
"""Torch's own for elastic rendezvous."""
JOIN_S = 600.0
SILENCE_S = 1.0


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class NodesPlan:
    """How the launchers of several hosts find each other; the same on all of them but for `node_rank`.

    `NodesOptions` says what the fields are.
    """

    min_nodes: int
    max_nodes: int  #: Most hosts; more of them wait as spares.
    host: str  #: Name or address of the endpoint, where one of the launchers keeps the store.
    port: int = DEFAULT_PORT
    node_rank: int | None = None
    interface: str | None = None
    trusts_network: bool = False
    join_s: float = JOIN_S  #: Longest wait for the other hosts, in seconds.
    silence_s: float = SILENCE_S  #: With live recovery, silence after which a host is left out, in seconds.
    run_id: str = "none"
    secret: str = field(default="", repr=False)  #: What the launchers share, if it was given; never shown.

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ConfigError(f"expected --nnodes MIN:MAX with 1 <= MIN <= MAX, got {self.min_nodes}:{self.max_nodes}.")
        if self.node_rank is not None and self.is_elastic:
            raise ConfigError(
                f"--node-rank {self.node_rank} numbers the hosts, but with --nnodes {self.min_nodes}:{self.max_nodes} "
                "they come and go. Hint: leave --node-rank out, or give one number of hosts."
            )
        if self.node_rank is not None and not 0 <= self.node_rank < self.max_nodes:
            raise ConfigError(
                f"expected 0 <= --node-rank < {self.max_nodes} (--nnodes), got {self.node_rank}. "
                "Hint: hosts are numbered from 0."
            )
        WAIT.take("--rdzv-timeout", self.join_s)
        SILENCE.take("--silence", self.silence_s)

    @property
    def is_elastic(self) -> bool:
        """Whether hosts may come and go."""
        return self.min_nodes < self.max_nodes

    @property
    def endpoint(self) -> str:
        """The rendezvous as the user writes it."""
        return join_endpoint(self.host, self.port)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class NodesOptions:
    """What users say about several hosts; each field says what it is."""

    nnodes: str | None = option(
        None, "Number of hosts; each starts this command.", usual="1", word="N|MIN:MAX", group=HOSTS
    )
    node_rank: int | None = option(
        None, "Index of this host, from 0.", of=NODE_RANK, usual="order of arrival", word="R", group=HOSTS
    )
    rdzv_endpoint: str | None = option(
        None, "Where the hosts meet: an address of one of them.", word="HOST[:PORT]", group=HOSTS
    )
    rdzv_id: str = option("none", "Tells jobs with one endpoint apart.", group=HOSTS)
    rdzv_timeout: float = option(JOIN_S, "Longest wait for the other hosts.", of=WAIT, word="S", group=HOSTS)
    silence: float = option(
        SILENCE_S, "With --live auto: seconds without a sign of life after which the others go on without a host.",
        of=SILENCE, word="S", group=HOSTS,
    )  # fmt: skip
    master_addr: str | None = option(None, "The endpoint's host, as older launchers call it.", word="HOST", group=HOSTS)
    master_port: int | None = option(
        None, "Of --master-addr.", of=PORT, usual=str(DEFAULT_PORT), word="PORT", group=HOSTS
    )
    interface: str | None = option(None, "Network interface.", usual="the one towards the endpoint", group=HOSTS)
    trust_network: bool = option(False, "Open ports that other machines reach; see the docs first.", group=HOSTS)

    def __post_init__(self) -> None:
        check(self, as_flags=True)

    def plan(self) -> NodesPlan | None:
        """Return how the hosts meet; None for a launch on this host alone."""
        least, most = parse_nodes(self.nnodes or "1")
        endpoint, addr = self.rdzv_endpoint, self.master_addr
        if most == 1:
            if self.node_rank:
                raise ConfigError(f"--node-rank {self.node_rank} needs --nnodes, the number of hosts.")
            if endpoint and self.nnodes is None:  # each host would train alone, and nobody would notice
                raise ConfigError(
                    f"--rdzv-endpoint {endpoint} needs --nnodes, the number of hosts. "
                    "Hint: --nnodes 1 for this one alone."
                )
            return None
        if endpoint and addr:
            raise ConfigError("--rdzv-endpoint and --master-addr say the same. Hint: give one of them.")
        if self.master_port is not None and not addr:
            raise ConfigError("--master-port belongs to --master-addr. Hint: --rdzv-endpoint HOST:PORT.")
        if endpoint:
            host, port = parse_endpoint(endpoint)
        elif addr:
            host, port = addr, self.master_port or DEFAULT_PORT
        else:
            raise ConfigError(
                f"--nnodes {self.nnodes} needs --rdzv-endpoint HOST[:PORT]: an address of one of the hosts, the same "
                "on all of them."
            )
        return NodesPlan(
            min_nodes=least, max_nodes=most, host=host, port=port, node_rank=self.node_rank, interface=self.interface,
            trusts_network=self.trust_network, run_id=self.rdzv_id, join_s=self.rdzv_timeout, silence_s=self.silence,
        )  # fmt: skip


def parse_nodes(text: str) -> tuple[int, int]:
    """Return least and most hosts of ``N`` or ``MIN:MAX``.

    Raises:
        ConfigError: It is neither.

    Example:
        >>> parse_nodes("2"), parse_nodes("1:4")
        ((2, 2), (1, 4))
    """
    match = re.fullmatch(r"(\d{1,6})(?::(\d{1,6}))?", text.strip(), re.ASCII)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise ConfigError(f"expected --nnodes N or MIN:MAX with 1 <= MIN <= MAX, got {text!r}.")
    return least, most


def parse_endpoint(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST[:PORT]``; an IPv6 address with a port stands in brackets.

    Raises:
        ConfigError: No host, or a port outside 1-65535.

    Example:
        >>> parse_endpoint("node1:4000"), parse_endpoint("[::1]:4000"), parse_endpoint("node1")
        (('node1', 4000), ('::1', 4000), ('node1', 29400))
    """
    match = re.fullmatch(r"(?:\[([^\[\]]+)\]|([^\[\]:]+))(?::([0-9]{1,5}))?", text.strip())
    if match is None:
        try:  # an IPv6 address alone
            return str(ipaddress.IPv6Address(text.strip())), DEFAULT_PORT
        except ValueError:
            raise ConfigError(f"expected --rdzv-endpoint HOST[:PORT], got {text!r}.") from None
    port = int(match[3] or DEFAULT_PORT)
    if not 0 < port < 65536:
        raise ConfigError(f"expected a port between 1 and 65535 in --rdzv-endpoint, got {text!r}.")
    return match[1] or match[2], port


def join_endpoint(host: str, port: int) -> str:
    """Return ``HOST:PORT``; an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
