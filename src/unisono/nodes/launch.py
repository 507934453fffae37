"""Run one launch on several hosts: meet, run an attempt, agree on how it ended, and meet again where that helps.

In: this host's `LaunchSpec` and a `NodesPlan`. Out: as `launchers.local.run_local`, and the same on all hosts.
"""

import contextlib
import hashlib
import os
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from unisono.environment import default_cache
from unisono.errors import PeerLost, RunStopped, WorkerFailed
from unisono.launchers.attempt import attempt
from unisono.launchers.forking import fork_server
from unisono.launchers.local import Signals, deliver, stop_signals
from unisono.launchers.outcomes import Ended, Failed, Outcome, Stopped
from unisono.launchers.spec import FunctionTarget, LaunchSpec, ScriptTarget, check_target
from unisono.launchers.supervision.memory_kills import check_address_space
from unisono.launchers.supervision.resizing import with_least
from unisono.launchers.supervision.restarts import Ending
from unisono.launchers.worker_group import OutputBroken, Signalled, next_event
from unisono.nodes.endpoint import Interrupted
from unisono.nodes.live.relay import LiveRelay, check_live, relay_of
from unisono.nodes.live.survivors import Survivors, agree, alone, without_host
from unisono.nodes.network import Interface, choose_interface, refuse_untrusted
from unisono.nodes.peer_monitor import KEEPER, Attempt
from unisono.nodes.plan import NodesPlan
from unisono.nodes.reachability import ProbePort
from unisono.nodes.rendezvous import NotNeeded, Rendezvous
from unisono.nodes.roll import NodeInfo
from unisono.nodes.roll_call import Known, RollCall, Round
from unisono.nodes.values import SharedValues
from unisono.nodes.verdicts import NodeEnding, Verdict, judge
from unisono.store.secret import given_secret
from unisono.system.messages import tell

_BYE_S = 5.0
_POLL_S = 0.1
_GRACE_S, _JOIN_S = 30.0, 120.0  # for the others, when the host that keeps the rendezvous is lost: to end, and to come


def run_nodes(spec: LaunchSpec, plan: NodesPlan, environ: Mapping[str, str], *, program: str = "") -> None:
    """Run this host's part of a launch on several hosts to its end; no process of it is left then.

    Raises:
        ConfigError: A setting, on this host or between hosts, is wrong.
        LaunchError: The hosts could not meet, or the processes could not be started.
        PeerLost: The host that keeps the rendezvous is gone, or out of reach.
        WorkerFailed: A worker failed, on any host.
        RunStopped: The run, or this host, was asked to stop; the run has saved.
        KeyboardInterrupt: SIGINT came; the workers are gone.
        SystemExit: Another signal came; code 128 + n.
        BrokenPipeError: Nobody reads our output any more.
    """
    check_target(spec.target)
    check_address_space()
    interface = choose_interface(plan.host, plan.port, plan.interface)
    refuse_untrusted(interface, plan.trusts_network)
    plan = replace(plan, secret=given_secret(environ) or "")
    spec = check_live(spec, plan)
    with stop_signals() as signals:
        try:
            verdict = _HostLaunch(spec, plan, interface, signals, environ, program).run()
        except Interrupted as interrupted:
            verdict = Verdict(what="interrupted", exit_code=128 + interrupted.event.signum)
        except NotNeeded:
            tell("the run was over before this host could take part.")
            return
    if verdict.what == "failed":
        raise WorkerFailed(verdict.text, rank=verdict.rank, exit_code=verdict.exit_code)
    if verdict.what == "stopped":
        raise RunStopped(verdict.step)
    if verdict.what == "interrupted":
        if signals.received:
            deliver(signals.received[0], signals.previous[signals.received[0]])
        tell(verdict.text)
        raise SystemExit(verdict.exit_code)


class _HostLaunch:
    def __init__(
        self, spec: LaunchSpec, plan: NodesPlan, interface: Interface, signals: Signals,
        environ: Mapping[str, str], program: str,
    ) -> None:  # fmt: skip
        self._spec, self._plan, self._interface, self._signals = spec, plan, interface, signals
        self._environ, self._program = environ, program
        self._history: list[dict[str, Any]] = []
        self._replicas = int(environ.get("UNISONO_REPLICAS") or spec.env.get("UNISONO_REPLICAS") or 0)
        self._num_attempts = 0
        self._without = ""  # how to go on without that host
        self._fewest = plan.min_nodes  # hosts to start with; fewer where so many have gone on without the others
        self._next: NodesPlan | None = None  # where this host goes on when the one that keeps the rendezvous is lost

    def run(self) -> Verdict:
        """Return the last verdict, as it concerns this host."""
        probe_port = contextlib.closing(ProbePort(self._interface))
        with probe_port as self._probe_port, fork_server(self._spec) as self._forks:
            verdict = self._meet()
            while self._next is not None:
                self._plan, self._next, self._signals.events = self._next, None, type(self._signals.events)()
                self._fewest = self._plan.min_nodes
                verdict = self._meet()
        if verdict.what != "again":
            return verdict
        # Only this host leaves.
        if verdict.step:
            return replace(verdict, what="stopped")
        return replace(verdict, what="interrupted", exit_code=128 + self._signals.received[0])

    def _meet(self) -> Verdict:
        rendezvous = Rendezvous(
            self._plan, self._interface, self._describe, self._signals, self._spec.heartbeat_s,
            default_cache(self._environ),
        )  # fmt: skip
        is_over = False
        try:
            self._say(
                f"{rendezvous.info.name} talks to the others over {self._interface.name}"
                + (", and is the rendezvous host." if rendezvous.is_keeper else ".")
            )
            self._roll_call = RollCall(
                rendezvous, self._plan, self._interface, self._probe_port,
                is_live=self._spec.live == "auto" and not self._spec.why_not_live,
            )  # fmt: skip
            verdict = self._rounds(rendezvous)
            is_over = verdict.what != "again"
        except PeerLost as error:
            raise PeerLost(
                f"lost the rendezvous {self._plan.endpoint}: {error}. The workers of this host were stopped. "
                "Hint: start the same command again on all hosts; a run goes on from its last checkpoint."
                + self._without
            ) from error
        finally:
            rendezvous.close(is_over=is_over)
        return verdict

    def _rounds(self, rendezvous: Rendezvous) -> Verdict:
        while True:
            values, index, count = rendezvous.next_round(self._fewest)
            known = Known(self._history, self._replicas, self._num_attempts)
            current = self._roll_call.call(values, index, count, known)
            if current is None:
                continue  # one of them is gone again
            with current.stores:
                verdict, mine = self._run_round(rendezvous, current)
            self._history = verdict.history
            self._num_attempts = current.placement.attempt + 1
            if verdict.what != "again":
                return verdict
            if current.node_rank in verdict.leaving:
                return replace(verdict, step=mine.step)
            self._say(verdict.text)
            if self._next is not None:
                return verdict
            self._signals.events = type(self._signals.events)()

    def _run_round(self, rendezvous: Rendezvous, current: Round) -> tuple[Verdict, NodeEnding]:
        self._replicas, self._history = current.replicas, current.history
        placement, infos = current.placement, current.infos
        keeper = next(i for i, info in enumerate(infos) if info.number == 0)
        self._without = self._how_without(current, [node for node in range(len(infos)) if node != keeper])
        elastic, env = self._spec.elastic, {**self._spec.env, "UNISONO_REPLICAS": str(current.replicas)}
        if placement.attempt:  # fewer hosts may start again than the first time
            elastic = with_least(elastic, placement.world_size)
        spec = replace(self._spec, elastic=elastic, placement=placement, env=env)
        self._say(
            f"attempt {placement.attempt}: {placement.num_nodes} hosts, {placement.world_size} workers; this is node "
            f"{placement.node_rank} with rank {spec.ranks.start} to {spec.ranks.stop - 1}."
        )
        takes_more = self._plan.is_elastic or current.places is not None  # a place may have become free
        asks = rendezvous.num_waiting if placement.node_rank == 0 and takes_more else None
        numbers, monitor = [info.number for info in infos], rendezvous.peer_monitor
        watched = Attempt(current.values.guarded(None), numbers, placement.node_rank, asks)
        monitor.enter(watched)
        try:
            with relay_of(spec, self._plan, current.places, infos, self._signals, monitor) as relay:
                watched.others = relay
                outcome = attempt(spec, self._signals.events, relay, self._forks)
            if relay is not None:
                self._fewest = min(self._fewest, len(relay.hosts))
            mine = self._ending_of(outcome)
            if monitor.cut_off:
                raise PeerLost(monitor.cut_off)
            if relay is not None and KEEPER not in relay.hosts:
                monitor.cut("its host was lost, and the others have gone on without it")
                return self._without_keeper(relay, current, mine, rendezvous.secret), mine
            current.values.put(f"ending/{placement.node_rank}", asdict(mine))
            endings = self._gather(rendezvous, watched)
            verdict = judge(
                endings, [info.name for info in infos], current.history, min_nodes=self._plan.min_nodes,
                is_elastic=self._plan.is_elastic, max_restarts=spec.max_restarts, keeper=keeper,
            )  # fmt: skip
            verdict = Verdict(**current.values.settle("verdict", asdict(verdict)))
            self._part(rendezvous, current.values, watched, verdict)
        finally:
            rendezvous.peer_monitor.leave()
        if isinstance(outcome, OutputBroken):
            raise BrokenPipeError("the reader of the output went away; the workers were stopped")
        return verdict, mine

    def _without_keeper(self, relay: LiveRelay, current: Round, mine: NodeEnding, secret: str) -> Verdict:
        """Return what follows where the host that keeps the rendezvous is lost: others may meet where it is decided.

        Raises:
            PeerLost: The workers would have to start again, and cannot.
        """
        places, max_restarts = current.places, self._spec.max_restarts
        names = [current.infos[node].name for node in relay.hosts]
        address = current.infos[relay.decider].address
        self._without = self._how_without(current, relay.hosts, relay.decider)
        if mine.kind not in ("failed", "ended") or not max_restarts or places is None:
            return alone(mine, self._without, "its host was lost, and the others have gone on without it")
        left = Survivors(relay.hosts, relay.decider, current.node_rank, places)

        def rule(endings: Sequence[NodeEnding]) -> Verdict:
            return judge(
                endings, names, current.history, min_nodes=1, is_elastic=True, max_restarts=max_restarts,
                keeper=relay.hosts.index(relay.decider),
            )  # fmt: skip

        stop = lambda: "this host was asked to stop" if self._signals.received else ""  # noqa: E731
        verdict, meeting = agree(left, mine, rule, self._spec.grace_s + _GRACE_S, stop)
        if verdict.what == "again" and current.node_rank in meeting.hosts:
            there = sorted(meeting.hosts, key=lambda node: (node != relay.decider, node))
            self._next = replace(
                self._plan, min_nodes=len(there), max_nodes=len(there), host=address, port=meeting.port, secret=secret,
                node_rank=there.index(current.node_rank), join_s=min(self._plan.join_s, _JOIN_S),
            )  # fmt: skip
        return verdict

    def _how_without(self, current: Round, others: Sequence[int], decider: int = -1) -> str:
        """Return how this host goes on without the one that keeps the rendezvous, in words; empty where that is it."""
        if current.node_rank not in others:
            return ""
        first = min(others) if decider < 0 else decider
        address = current.infos[first].address
        return without_host(others, first, current.node_rank, address, is_elastic=self._plan.is_elastic)

    def _gather(self, rendezvous: Rendezvous, watched: Attempt) -> list[NodeEnding]:
        """Return how it ended on all hosts; waits for those whose workers still run."""
        nodes = range(len(watched.numbers))
        while any(watched.ending_of(node) is None for node in nodes):
            if rendezvous.peer_monitor.cut_off:
                raise PeerLost(rendezvous.peer_monitor.cut_off)
            event = next_event(self._signals.events, time.monotonic() + _POLL_S)
            if isinstance(event, Signalled):
                raise Interrupted(event)
        return [ending for node in nodes if (ending := watched.ending_of(node)) is not None]

    def _part(self, rendezvous: Rendezvous, values: SharedValues, watched: Attempt, verdict: Verdict) -> None:
        """Say that the verdict is known here; who keeps the store, or the workers', waits until all know it."""
        deadline = time.monotonic() + _BYE_S
        values.put(f"bye/{watched.node_rank}", True)
        if not rendezvous.is_keeper or verdict.what == "again":
            return
        for node in {*range(len(watched.numbers))} - watched.left_out:
            while node not in watched.lost and values.look(f"bye/{node}") is None and time.monotonic() < deadline:
                time.sleep(_POLL_S / 2)

    def _ending_of(self, outcome: Outcome) -> NodeEnding:
        signum = self._signals.received[0] if self._signals.received else 0
        if outcome is None:
            return NodeEnding(kind="done")
        if isinstance(outcome, Stopped):
            return NodeEnding(kind="stopped", step=outcome.step, signum=signum)
        if isinstance(outcome, Ended):
            return NodeEnding(kind="ended", signum=signum)
        if isinstance(outcome, Failed):
            error = outcome.error
            code = error.exit_code if isinstance(error, WorkerFailed) else 1
            return NodeEnding(kind="failed", message=str(error), exit_code=code, signum=signum, ending=outcome.ending)
        if isinstance(outcome, OutputBroken):
            text = f"nobody reads the output of {socket.gethostname()} any more."
            ending = Ending(rank=0, what=text, is_final=True)
            return NodeEnding(kind="failed", message=text, exit_code=141, ending=ending)
        return NodeEnding(kind="interrupted", signum=outcome.signum)

    def _describe(self, number: int) -> NodeInfo:
        spec, plan = self._spec, self._plan
        target = spec.target
        if isinstance(target, FunctionTarget):
            program, code, args = f"{target.module}.{target.name}", target.name + self._program, ""
        elif isinstance(target, ScriptTarget):
            program, code, args = target.path, Path(target.path).read_bytes().hex(), "\0".join(target.args)
        else:
            program, code, args = target.name, target.name, "\0".join(target.args)
        versions = f"unisono {metadata.version('unisono')}, torch {metadata.version('torch')}"
        return NodeInfo(
            number=number,
            host=socket.gethostname(),
            address=self._interface.address,
            probe_port=self._probe_port.port,
            pid=os.getpid(),
            workers=spec.workers,
            nodes=f"{plan.min_nodes}:{plan.max_nodes}",
            node_rank=-1 if plan.node_rank is None else plan.node_rank,
            program=program,
            code=hashlib.sha256(code.encode()).hexdigest(),
            arguments=hashlib.sha256(args.encode()).hexdigest(),
            software=f"{versions}, Python {platform.python_version()}",
            threads=str(spec.threads or self._environ.get("OMP_NUM_THREADS") or 1),
            rules=f"--max-restarts {spec.max_restarts}, --backend {spec.backend}, --live {spec.live}, "
            f"--silence {plan.silence_s:g}, --elastic {spec.elastic or 'any'}",
        )

    def _say(self, text: str) -> None:
        if self._spec.output != "quiet":
            tell(text)
