"""How all hosts go on after an attempt: one pure rule over how it ended on each.

In: an `Ending` from every host, and what came before. Out: a `Verdict`, the same whoever computes it. Knows no process,
no store and no clock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, final

from unisono.launchers.supervision.restarts import ANYWHERE, Ending, GiveUp, Restarts

Kind = Literal["done", "stopped", "ended", "interrupted", "failed", "lost"]
What = Literal["done", "again", "stopped", "interrupted", "failed"]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class NodeEnding:
    """How an attempt ended on one host."""

    #: ``done``: all workers ended well. ``stopped``: between two steps, saved. ``ended``: stopped for the sake of other
    #: hosts. ``interrupted``: by a signal, nothing saved. ``failed``: a worker failed. ``lost``: the host does not
    #: answer any more.
    kind: Kind
    message: str = ""  #: What its launcher would say.
    exit_code: int = 0  #: And return.
    signum: int = 0  #: The signal that this host's launcher has received, 0 for none: it wants to leave.
    step: int = 0  #: Of the stop.
    ending: Ending | None = None  #: Of a failed worker, for `Restarts`; its rank is -1 where it only blames others.

    @property
    def is_root(self) -> bool:
        """Whether it has a failure of its own, which explains those that blame others."""
        return self.kind == "failed" and self.ending is not None and self.ending.rank >= 0

    @classmethod
    def unpacked(cls, value: Mapping[str, Any]) -> "NodeEnding":
        """Return what `asdict` has made JSON's types of."""
        ending = value["ending"]
        return cls(**{**value, "ending": ending and unpack_ending(ending)})


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What all hosts do next."""

    #: ``again``: meet again and go on from the last commit. ``done``, ``stopped`` (saved), ``interrupted``, ``failed``:
    #: all launchers end.
    what: What
    text: str = ""  #: To tell.
    exit_code: int = 0  #: Of ``failed`` and ``interrupted``.
    rank: int = -1  #: That failed first.
    step: int = 0  #: Of the stop.
    #: Hosts that do not come to the next rendezvous, because they were asked to stop.
    leaving: list[int] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)  #: Failures so far, for the next verdict.


def unpack_ending(value: Mapping[str, Any]) -> Ending:
    """Return an `Ending` from JSON's types."""
    return Ending(**{**value, "samples": tuple(value["samples"])})


def judge(
    endings: Sequence[NodeEnding],
    names: Sequence[str],
    history: Sequence[Mapping[str, Any]],
    *,
    min_nodes: int,
    is_elastic: bool,
    max_restarts: int,
    keeper: int,
) -> Verdict:
    """Return what follows.

    A worker's failure counts against the restarts, as on one host. A host that is lost, or asked to leave, does not
    where hosts may come and go: the others go on.

    Args:
        endings: By node rank.
        names: Of the hosts.
        history: Of the verdict before.
        min_nodes: Fewest hosts to go on with.
        is_elastic: Whether hosts may come and go.
        max_restarts: In a row without progress.
        keeper: The host that keeps the store: without it, no rendezvous.
    """
    past = [dict(line) for line in history]
    indices = range(len(endings))
    lost = [i for i in indices if endings[i].kind == "lost"]
    if all(ending.kind == "done" for ending in endings):
        return Verdict(what="done", history=past)
    roots = [ending for ending in endings if ending.is_root]
    if roots:
        # A wrong setting is what the person must read; else the host numbered first speaks.
        first = min(roots, key=lambda ending: (not (ending.ending and ending.ending.is_final), endings.index(ending)))
        return _after_failure(first, endings, past, max_restarts)
    if lost:
        who = ", ".join(names[i] for i in lost)
        is_one = len(lost) == 1
        text = f"{who} {'does' if is_one else 'do'} not answer any more."
        if is_elastic:
            left = len(endings) - len(lost)
            wait = "" if left >= min_nodes else f" {min_nodes - left} more must come first (--nnodes)."
            return Verdict(what="again", text=f"{text}{wait} The others go on {ANYWHERE}.", history=past)
        hint = " Hint: --nnodes MIN:MAX lets the others go on alone; --max-restarts waits for it to come back."
        message = text if max_restarts else text + hint
        failed = NodeEnding(kind="failed", message=message, exit_code=1, ending=Ending(rank=-1, what=text))
        return _after_failure(failed, endings, past, max_restarts)
    leaving = [i for i in indices if endings[i].signum]
    if leaving:
        return _after_signal(endings, names, leaving, past, keeper, min_nodes if is_elastic else len(endings))
    failed_ones = [ending for ending in endings if ending.kind == "failed"]
    if failed_ones:
        return _after_failure(failed_ones[0], endings, past, max_restarts)
    if any(ending.kind == "ended" for ending in endings) or not is_elastic:
        return Verdict(what="again", text="the hosts meet again.", history=past)
    return Verdict(what="again", text="a host has come; all go on together.", history=past)


def _after_failure(
    failed: NodeEnding, endings: Sequence[NodeEnding], past: list[dict[str, Any]], max_restarts: int
) -> Verdict:
    assert failed.ending is not None
    # Slots are given up on one host only: here a slot that keeps failing ends by the restarts. So there is one.
    known = [each.ending for each in endings if each.ending]
    done, saved = (max((getattr(each, name) for each in known), default=0) for name in ("done", "saved"))
    merged = replace(failed.ending, rank=min(failed.ending.rank, 0), done=done, saved=saved)
    restarts = Restarts(max_restarts, 1, sees_all=False)
    for line in past:
        restarts.judge(unpack_ending(line))
    decision = restarts.judge(merged)
    if isinstance(decision, GiveUp):
        text = failed.message + (f"\n{decision.reason}" if decision.reason else "")
        return Verdict(what="failed", text=text, exit_code=failed.exit_code or 1, rank=failed.ending.rank)
    told = f"{merged.what} Restart {restarts.num_restarts} on all hosts {restarts.start}{restarts.spent()}."
    return Verdict(what="again", text=told, history=[*past, asdict(merged)])


def _after_signal(
    endings: Sequence[NodeEnding], names: Sequence[str], leaving: list[int], past: list[dict[str, Any]], keeper: int,
    min_nodes: int,
) -> Verdict:  # fmt: skip
    who = ", ".join(names[i] for i in leaving)
    stays = [i for i in range(len(endings)) if i not in leaving]
    if keeper in stays and len(stays) >= min_nodes:
        return Verdict(what="again", text=f"{who} was asked to stop and leaves.", leaving=leaving, history=past)
    saved = [ending.step for ending in endings if ending.kind == "stopped"]
    if saved and all(ending.kind in ("stopped", "done", "ended") for ending in endings):
        return Verdict(what="stopped", text=f"{who} was asked to stop.", step=max(saved), leaving=leaving)
    signum = endings[leaving[0]].signum
    return Verdict(
        what="interrupted", text=f"{who} was asked to stop (signal {signum}).", exit_code=128 + signum, leaving=leaving
    )
