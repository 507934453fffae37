"""One attempt's roll call: who is here, whether all reach each other, who sits where, and where the workers meet.

In: a round of the rendezvous, and what this host brings. Out: a `Round`, the same on all hosts but for the place.
"""

import contextlib
import time
from dataclasses import asdict, dataclass
from typing import Any, final

from unisono.launchers.spec import NodePlacement
from unisono.nodes.env_store import EnvStore
from unisono.nodes.live.mesh import Places
from unisono.nodes.network import Interface
from unisono.nodes.plan import NodesPlan, join_endpoint
from unisono.nodes.reachability import ProbePort, probe
from unisono.nodes.rendezvous import Rendezvous
from unisono.nodes.roll import NodeInfo, check_roll, first_ranks, order, unreached
from unisono.nodes.values import SharedValues
from unisono.store.secret import derive, key_of
from unisono.store.server import Server, listen
from unisono.system.messages import tell

_ROLL_S = 30.0
_POLL_S = 0.05


@final
@dataclass(frozen=True, slots=True)
class Known:
    """What a host brings to a round."""

    history: list[dict[str, Any]]  #: Failures so far.
    replicas: int  #: Of the job; 0 where nobody has said.
    attempt: int  #: Attempts so far.


@final
@dataclass(frozen=True, slots=True)
class Round:
    """One attempt of all hosts, with everybody in place."""

    values: SharedValues
    infos: list[NodeInfo]
    node_rank: int
    placement: NodePlacement
    replicas: int
    history: list[dict[str, Any]]
    stores: contextlib.ExitStack
    places: Places | None  #: Of the launchers' own stores, where workers may go on without a host.


@final
class RollCall:
    """One host's side of it.

    Args:
        rendezvous: Where the hosts meet.
        plan: How.
        interface: By which this host talks to the others.
        probe_port: Answers those who look whether they reach this host.
        is_live: Whether workers may go on without a host: then each host keeps stores for those that go on.
    """

    def __init__(
        self, rendezvous: Rendezvous, plan: NodesPlan, interface: Interface, probe_port: ProbePort, *, is_live: bool
    ) -> None:
        self._rendezvous, self._plan, self._interface, self._probe_port = rendezvous, plan, interface, probe_port
        self._is_live = is_live

    def call(self, values: SharedValues, index: int, count: int, known: Known) -> Round | None:
        """Find out who is here, refuse what does not fit, and sit down; None when somebody has gone meanwhile.

        Args:
            values: Of this round alone.
            index: This host's place in the round.
            count: How many hosts there are.
            known: What this host brings.

        Raises:
            ConfigError: The hosts do not fit together.
            PeerLost: The store is out of reach.
            Interrupted: A signal came.
        """
        rendezvous = self._rendezvous
        values = values.guarded(lambda: rendezvous.peer_monitor.cut_off)
        entry = {"info": asdict(rendezvous.info), **asdict(known)}
        entries = self._exchange(values, "entry", index, count, entry)
        if entries is None:
            return None
        found = [NodeInfo(**told["info"]) for told in entries]
        if problem := check_roll(found):
            raise rendezvous.refuse(problem)
        places = order(found)
        infos, mine = [found[place] for place in places], places.index(index)
        probe_ports = {i: (info.address, info.probe_port) for i, info in enumerate(infos) if i != mine}
        reports = self._exchange(values, "reach", mine, count, probe(self._interface, probe_ports))
        self._probe_port.sweep()
        if reports is None:
            return None
        if problem := unreached(infos, reports):
            raise rendezvous.refuse(problem)
        told = max(entries, key=lambda one: one["attempt"])
        secret = derive(rendezvous.secret, f"workers of attempt {told['attempt']}")
        stores = contextlib.ExitStack()
        if mine == 0:
            values.put("workers", [infos[0].address, *_serve_workers(infos[0].address, secret, stores)])
            rendezvous.values.put("begun", True)
            rendezvous.values.put("sitting", [[info.number, info.node_rank, info.name] for info in infos])
        workers = self._await(values, "workers")
        name = f"attempt {told['attempt']}"
        own, launchers = self._keep_stores(values, infos, mine, name, stores) if self._is_live else ("", None)
        if workers is None or own is None:
            stores.close()
            return None
        firsts = first_ranks(infos)
        placement = NodePlacement(
            node_rank=mine, num_nodes=count, first_rank=firsts[mine], world_size=firsts[-1], master_addr=workers[0],
            master_port=workers[1], interface=self._interface.name, attempt=told["attempt"], run_id=self._plan.run_id,
            store=join_endpoint(workers[0], workers[2]), secret=secret, own_store=own,
        )  # fmt: skip
        replicas = max(one["replicas"] for one in entries)
        if not replicas:
            replicas = firsts[-1]
            if self._plan.is_elastic:  # the most that there can be: hosts that come later must find work
                replicas = max(replicas, self._plan.max_nodes * max(info.workers for info in infos))
        return Round(values, infos, mine, placement, replicas, told["history"], stores, launchers)

    def _keep_stores(
        self, values: SharedValues, infos: list[NodeInfo], mine: int, name: str, stores: contextlib.ExitStack
    ) -> tuple[str | None, Places | None]:
        """Open this host's stores for an attempt: its workers' and its launcher's, each with a key of its own.

        They are at work whether or not another host is lost, so nothing has to be opened when one is.

        Returns:
            Where its workers' is, None when somebody has gone meanwhile; and where those of all launchers are.
        """
        address, secret = infos[mine].address, self._rendezvous.secret
        keys = [key_of(derive(secret, f"{whose} of {name}")) for whose in ("workers", "launchers")]
        servers = [stores.enter_context(contextlib.closing(Server(listen(address, 0), key, tell))) for key in keys]
        ports = self._exchange(values, "mesh", mine, len(infos), servers[1].port)
        if ports is None:
            return None, None
        where = [(info.address, port) for info, port in zip(infos, ports, strict=True)]
        return join_endpoint(address, servers[0].port), Places(where, keys[1])

    def _exchange(self, values: SharedValues, key: str, mine: int, count: int, value: Any) -> Any:
        values.put(f"{key}/{mine}", value)
        told = [self._await(values, f"{key}/{other}") for other in range(count)]
        return None if None in told else told

    def _await(self, values: SharedValues, key: str) -> Any:
        deadline = time.monotonic() + _ROLL_S
        while (value := values.look(key)) is None:
            self._rendezvous.check()
            if time.monotonic() > deadline:
                return None
            time.sleep(_POLL_S)
        return value


def _serve_workers(address: str, secret: str, stores: contextlib.ExitStack) -> tuple[int, int]:
    """Open the stores of one attempt's workers on this host's address alone: torch's and ours; return the ports."""
    theirs = stores.enter_context(contextlib.closing(EnvStore(address)))
    ours = stores.enter_context(contextlib.closing(Server(listen(address, 0), key_of(secret), tell)))
    return theirs.port, ours.port
