"""The roll of the hosts that have come: do they fit together, and who sits where (pure).

In: one `NodeInfo` from every launcher. Out: what is wrong in words, or the order of the hosts and the ranks of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from unisono.errors import ConfigError

MOST_SKEW_S = 5.0
"""Clocks further apart than this are told; nothing depends on them but what people read."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class NodeInfo:
    """What a launcher says about itself when it comes."""

    number: int  #: Order of arrival, from 0; the first one keeps the store.
    host: str  #: Name of the machine.
    address: str  #: By which the others reach it.
    probe_port: int  #: A port that answers, to find out who reaches whom.
    pid: int  #: Of the launcher.
    workers: int  #: On this host.
    nodes: str  #: ``MIN:MAX`` as it was told.
    node_rank: int  #: As numbered by the user; -1 where the order of arrival counts.
    program: str  #: Script or module.
    code: str  #: SHA-256 of the program's text.
    arguments: str  #: SHA-256 of the program's arguments.
    software: str  #: Versions of unisono, torch and Python.
    threads: str  #: Per worker.
    rules: str  #: Whatever else must be equal: restarts, backend.

    @property
    def name(self) -> str:
        """How messages speak of it."""
        rank = f"node rank {self.node_rank}" if self.node_rank >= 0 else f"host {self.number}"
        return f"{rank} ({self.host}, {self.address}, process {self.pid})"


_MUST_AGREE = {
    "nodes": "number of hosts (--nnodes)",
    "code": "code of the program, as SHA-256",
    "software": "software",
    "threads": "threads per worker (--threads, OMP_NUM_THREADS)",
    "rules": "settings of the launcher",
}


def disagreement(mine: NodeInfo, first: NodeInfo) -> str:
    """Return in words where a newcomer differs from the host that came first, empty where they fit together."""
    lines = []
    for field, words in _MUST_AGREE.items():
        ours, theirs = getattr(mine, field), getattr(first, field)
        if ours != theirs:
            lines.append(f"{words}: {_short(ours)} on {mine.name}, {_short(theirs)} on {first.name}")
    if (mine.node_rank < 0) != (first.node_rank < 0):
        lines.append(f"--node-rank is given on one of {mine.name} and {first.name} only")
    if not lines:
        return ""
    return f"the hosts do not fit together: {'; '.join(lines)}. Hint: start the same command, code and software on all."


def skew(mine_s: float, theirs_s: float, mine: NodeInfo, first: NodeInfo) -> str:
    """Return in words that two clocks are too far apart, empty where they are not. Seconds since 1970 on the newcomer
    and, at the same moment but for a second, on the host that came first.
    """
    apart = mine_s - theirs_s
    if abs(apart) <= MOST_SKEW_S:
        return ""
    return (
        f"the clock of {mine.name} is {abs(apart):.0f} s {'ahead of' if apart > 0 else 'behind'} that of {first.name}: "
        "times in logs and timelines will not fit together. Hint: NTP or chrony on both."
    )


def check_roll(infos: Sequence[NodeInfo]) -> str:
    """Return in words what is wrong with those who have come, empty where nothing is."""
    by_rank: dict[int, NodeInfo] = {}
    for info in sorted(infos, key=lambda info: info.number):
        if info.node_rank < 0:
            continue
        if (other := by_rank.setdefault(info.node_rank, info)) is not info:
            return (
                f"two hosts say that they are node rank {info.node_rank}: {other.name} and {info.name}. "
                f"Hint: --node-rank 0 to {len(infos) - 1}, each once."
            )
    return ""


def order(infos: Sequence[NodeInfo]) -> list[int]:
    """Return the indices of `infos` in the order of their node ranks.

    As the user numbers them; else as they came, launchers of one machine side by side: ranks that share memory must be
    consecutive (see `hosts.group_by_host` of the collectives).
    """
    came: dict[str, int] = {}
    for info in sorted(infos, key=lambda info: info.number):
        came.setdefault(info.host, info.number)
    return sorted(
        range(len(infos)), key=lambda i: (infos[i].node_rank, came[infos[i].host], infos[i].host, infos[i].number)
    )


def first_ranks(infos: Sequence[NodeInfo]) -> list[int]:
    """Return each host's first rank, and last of all the world size, for hosts in the order of their node ranks."""
    firsts = [0]
    for info in infos:
        firsts.append(firsts[-1] + info.workers)
    return firsts


def unreached(infos: Sequence[NodeInfo], reports: Sequence[dict[str, str]]) -> str:
    """Return in words which hosts cannot talk to which, empty where all can. `reports` says of each host why it does
    not reach another, by that one's index.
    """
    pairs = [(infos[i], infos[int(j)], why) for i, report in enumerate(reports) for j, why in sorted(report.items())]
    if not pairs:
        return ""
    lines = [f"{one.name} cannot reach {other.name}: {why}" for one, other, why in pairs]
    one_way = [f"{i}-{j}" for i, report in enumerate(reports) for j in report if str(i) not in reports[int(j)]]
    hint = "the way back works" if one_way and len(one_way) == len(pairs) else "neither way works"
    return (
        "some hosts cannot talk to each other:\n  " + "\n  ".join(lines) + f"\nHint: {hint}; gloo and nccl need every "
        "pair, on all ports. Look for firewalls, or name the interface of the network they share with --interface."
    )


def check_counts(came: Sequence[NodeInfo], min_nodes: int, seconds: float) -> ConfigError:
    """Return the error for hosts that have not come in time."""
    ranks = {info.node_rank for info in came}
    missing = [str(rank) for rank in range(min_nodes) if rank not in ranks] if -1 not in ranks else []
    who = f" Missing: node rank {', '.join(missing)}." if missing else ""
    names = "; ".join(info.name for info in came) or "none"
    return ConfigError(
        f"expected {min_nodes} hosts (--nnodes) within {seconds:g} s (--rdzv-timeout), got {len(came)}: {names}.{who} "
        "Hint: start the same command on the others; look into their output if they have started."
    )


def _short(value: str) -> str:
    return value[:12] if len(value) == 64 else value
