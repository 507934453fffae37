"""The endpoint of a rendezvous: who keeps the store there, by which secret, and when it answers."""

import errno
import socket
import time
from pathlib import Path

from unisono.errors import ConfigError, LaunchError
from unisono.launchers.local import Signals
from unisono.launchers.worker_group import Signalled, next_event
from unisono.nodes.network import Interface, explain
from unisono.nodes.plan import NodesPlan
from unisono.store.secret import VARIABLE, derive, new_secret, user_secret
from unisono.store.server import listen
from unisono.system.messages import tell

_POLL_S = 0.1
_REMIND_S = 15.0


class Interrupted(Exception):
    """A signal came while this host waited for the others."""

    def __init__(self, event: Signalled) -> None:
        super().__init__(event.signum)
        self.event = event


def listen_at(plan: NodesPlan, interface: Interface) -> socket.socket | None:
    """Return the socket of the store where the endpoint lies on this machine and nobody keeps it yet.

    Raises:
        ConfigError: Node rank 0 is not where the endpoint is.
        LaunchError: The address cannot be listened at.
    """
    if plan.node_rank:  # numbered by hand: the first one keeps it
        return None
    try:
        return listen(plan.host, plan.port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        if error.errno != errno.EADDRNOTAVAIL and not isinstance(error, socket.gaierror):
            raise LaunchError(f"could not listen at {plan.endpoint}: {explain(error)}.") from error
        if plan.node_rank == 0:
            why = "not an address of this machine"
            if isinstance(error, socket.gaierror):
                why = f"no address at all: {explain(error)}"
            raise ConfigError(
                f"--node-rank 0 is the rendezvous host, but {plan.endpoint} (--rdzv-endpoint, --master-addr) is "
                f"{why}; this machine has {interface.address}. "
                "Hint: give the address of the host of node rank 0, the same on all hosts."
            ) from error
        return None


def find_secret(plan: NodesPlan, interface: Interface, cache: Path, *, is_first: bool) -> str:
    """Return the secret: the given one, this user's own on one machine, else the first host makes one."""
    if plan.secret:
        return plan.secret
    if interface.is_loopback:
        return derive(user_secret(cache), "launchers")
    if not is_first:
        raise ConfigError(
            f"expected a secret that this host shares with the others, got neither {VARIABLE} nor {VARIABLE}_FILE. "
            f"Hint: the first host, {plan.endpoint}, prints a word; write {VARIABLE}=WORD before the "
            "same command."
        )
    made = new_secret()
    tell(f"no secret was given, so one was made. Start the other hosts with it:\n  {VARIABLE}={made} unisono ...")
    return made


def wait_for_keeper(plan: NodesPlan, signals: Signals) -> None:
    """Return when something answers at the endpoint.

    Raises:
        LaunchError: Nothing has in time.
        Interrupted: A signal came.
    """
    reminded = began = time.monotonic()
    while True:
        try:
            socket.create_connection((plan.host, plan.port), timeout=2.0).close()
        except OSError as error:
            why, now = explain(error), time.monotonic()
            if now - began > plan.join_s:
                raise LaunchError(
                    f"no host answers at the rendezvous {plan.endpoint} after {plan.join_s:g} s (--rdzv-timeout): "
                    f"{why}. Hint: start the launcher on that host too, and look at its output; the endpoint must "
                    "be an address by which all hosts reach it."
                ) from error
            if now - reminded > _REMIND_S:
                reminded = now
                tell(f"still waiting for {plan.endpoint}: {why}.")
        else:
            return
        event = next_event(signals.events, time.monotonic() + _POLL_S)
        if isinstance(event, Signalled):
            raise Interrupted(event)
