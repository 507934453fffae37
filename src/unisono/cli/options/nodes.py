"""The options of several hosts, shared by the verbs that start processes; no torch until they are used."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.options.settings import number
from unisono.options.quantities import NODE_RANK, PORT, WAIT

if TYPE_CHECKING:
    from unisono.nodes.plan import NodesPlan

_OPTIONS = (
    click.option("--nnodes", metavar="N|MIN:MAX", help="Number of hosts; each starts this command.  [default: 1]"),
    click.option(
        "--node-rank",
        type=number(NODE_RANK),
        metavar="R",
        help="Index of this host, from 0.  [default: order of arrival]",
    ),
    click.option("--rdzv-endpoint", metavar="HOST[:PORT]", help="Where the hosts meet: an address of one of them."),
    click.option("--rdzv-id", default="none", metavar="NAME", help="Tells jobs with one endpoint apart."),
    click.option(
        "--rdzv-timeout", type=number(WAIT), metavar="S", help="Longest wait for the other hosts.  [default: 600]"
    ),
    click.option("--master-addr", metavar="HOST", help="The endpoint, in the words of older launchers."),
    click.option("--master-port", type=number(PORT), metavar="PORT", help="Of --master-addr.  [default: 29400]"),
    click.option("--interface", metavar="NAME", help="Network interface.  [default: the one towards the endpoint]"),
    click.option("--trust-network", is_flag=True, help="Open ports that other machines reach; see the docs first."),
)


def nodes_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets what was given as the argument `nodes`."""

    @functools.wraps(command)
    def with_nodes(*args: Any, **kwargs: Any) -> Any:
        names = (
            "nnodes", "node_rank", "rdzv_endpoint", "rdzv_id", "rdzv_timeout", "master_addr", "master_port",
            "interface", "trust_network",
        )  # fmt: skip
        return command(*args, nodes={name: kwargs.pop(name) for name in names}, **kwargs)

    for option in reversed(_OPTIONS):
        option(with_nodes)
    return with_nodes


def plan_nodes(given: dict[str, Any]) -> "NodesPlan | None":
    """Return how the hosts meet; None for a launch on this host alone.

    Raises:
        ConfigError: The options contradict each other, or lack the endpoint.
    """
    from unisono.errors import ConfigError
    from unisono.nodes.plan import DEFAULT_PORT, JOIN_S, NodesPlan, parse_endpoint, parse_nodes

    endpoint, addr, port = given["rdzv_endpoint"], given["master_addr"], given["master_port"]
    least, most = parse_nodes(given["nnodes"] or "1")
    if most == 1:
        if given["node_rank"]:
            raise ConfigError(f"--node-rank {given['node_rank']} needs --nnodes, the number of hosts.")
        if endpoint and given["nnodes"] is None:  # each host would train alone, and nobody would notice
            raise ConfigError(
                f"--rdzv-endpoint {endpoint} needs --nnodes, the number of hosts. Hint: --nnodes 1 for this one alone."
            )
        return None
    if endpoint and addr:
        raise ConfigError("--rdzv-endpoint and --master-addr say the same. Hint: give one of them.")
    if not endpoint and not addr:
        raise ConfigError(
            f"--nnodes {given['nnodes']} needs --rdzv-endpoint HOST[:PORT]: an address of one of the hosts, the same "
            "on all of them."
        )
    if port is not None and not addr:
        raise ConfigError("--master-port belongs to --master-addr. Hint: --rdzv-endpoint HOST:PORT.")
    host, number = parse_endpoint(endpoint) if endpoint else (addr, port or DEFAULT_PORT)
    timeout = given["rdzv_timeout"]
    return NodesPlan(
        min_nodes=least, max_nodes=most, host=host, port=number, node_rank=given["node_rank"],
        interface=given["interface"], trusts_network=given["trust_network"], run_id=given["rdzv_id"],
        join_s=JOIN_S if timeout is None else timeout,
    )  # fmt: skip
