"""What a run directory says now: read line by line as it grows, by whoever may read it; the run notices nothing."""

import json
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, final

from unisono.errors import ConfigError
from unisono.observe.damage import is_record, is_step
from unisono.observe.phases import FOLDER, is_line
from unisono.observe.run_json import read_object
from unisono.observe.speed import WINDOW, WITHIN, Slow, Speed, rates, seconds_within, speed_in, speed_of, spell_sharing
from unisono.observe.tail import Tail
from unisono.report.content import thin
from unisono.report.run_view import check_run, damage_of, holder_of, newest_checkpoint, resumed_after, state_of
from unisono.report.watch.ranks import RankState, left_behind, slowest

MOST_POINTS = 2000


def plain(text: str) -> str:
    """Return text without what moves the cursor or turns lines round."""
    return "".join(char if char.isprintable() else "\N{WHITE SQUARE}" for char in text)


@final
class WatchedRun:
    """A run directory; `poll` reads what has come since.

    Attributes:
        losses: (step, mean loss of its batch); of a long run every k-th step and the last, some `MOST_POINTS` of them.
        metrics: The last value of each, by name.
        history: (step, value) of each metric, at most `MOST_POINTS` of them.
        launches: For each launch in order (number, world size, first step, the last step of the one before).
        began_s: When each of them began, by its number, in seconds since 1970.
        ranks: By rank, of the newest launch.
        died: By (launch, rank) in which step it has died, as the launcher tells it, and when, in seconds since 1970.
        sharing: That the workers of a host take turns on its cores, in words; empty where they do not.
        damaged: By file how many of its lines are no JSON, or lack what such a line has.

    Raises:
        ConfigError: It is no run directory.
    """

    def __init__(self, path: Path) -> None:
        if not (path / "run.lock").exists():  # where one is, it has at least begun
            check_run(path)
        self.path, self.name = path, plain(path.resolve().name)
        self._ledger, self._logged = Tail(path / "ledger.jsonl"), Tail(path / "metrics.jsonl")
        self._phases: dict[str, Tail] = {}
        self._heads: dict[str, dict[str, Any]] = {}
        self.losses: list[tuple[float, float]] = []
        self._every = 1
        self._sizes: dict[int, int] = {}
        self.step, self.epoch = 0, 0
        self.damaged: Counter[str] = Counter()
        self.metrics: dict[str, float] = {}
        self.history: dict[str, list[tuple[float, float]]] = {}
        self.ranks: dict[int, RankState] = {}
        self.died: dict[tuple[int, int], tuple[int, float]] = {}
        self.launches: list[tuple[int, int, int, int]] = []
        self.began_s: dict[int, float] = {}
        self.score, self.result = {}, {}  # type: dict[str, Any], dict[str, Any]
        self.num_steps: int | None = None
        self.sharing = ""
        self._looked_at, self._damage = [], None  # type: list[tuple[int, int] | None], str | None
        self.poll()

    def poll(self) -> bool:
        """Read on; say whether anything has come."""
        self.score = self.score or read_object(self.path / "score.json")
        before = self.step, self.state, len(self.ranks), self.metrics
        try:
            self.result = read_object(self.path / "result.json")
        except ConfigError:  # it is being written
            self.result = {}
        self._poll_ledger()
        self._poll_logged()
        self._poll_phases()
        return before != (self.step, self.state, len(self.ranks), self.metrics)

    def _poll_ledger(self) -> None:
        again, lines = self._ledger.poll()
        if again:
            self.losses, self._sizes, self._every = [], {}, 1
        for line in self._entries("ledger.jsonl", lines, is_step):
            self.step, self.epoch = line["step"], line["epoch"]
            self._add_loss(self.step, float.fromhex(line["loss"]))
            self._sizes[self.step] = line["num_samples"]
        while len(self._sizes) > 4 * WINDOW:
            del self._sizes[next(iter(self._sizes))]

    def _add_loss(self, step: int, loss: float) -> None:
        """Keep the first step, each `_every`-th after it and the last, whatever their losses are."""
        if len(self.losses) > 1 and (self.losses[-1][0] - 1) % self._every:
            self.losses.pop()
        self.losses.append((step, loss))
        if len(self.losses) > 2 * MOST_POINTS:
            self._every *= 2
            self.losses = [point for point in self.losses[:-1] if (point[0] - 1) % self._every == 0] + self.losses[-1:]

    def _poll_logged(self) -> None:
        again, lines = self._logged.poll()
        self.metrics, self.history = ({}, {}) if again else (dict(self.metrics), self.history)
        for line in self._entries("metrics.jsonl", lines, is_record):
            logged = {plain(name): float(value) for name, value in line["values"].items()}
            logged.pop("train/loss", None)  # the ledger has it for every step
            self.metrics.update(logged)
            for name, value in logged.items():
                found = self.history.setdefault(name, [])
                found.append((line.get("step", len(found)), value))
                if len(found) > 2 * MOST_POINTS:
                    self.history[name], _ = thin(found, MOST_POINTS)

    def _poll_phases(self) -> None:
        for file in sorted((self.path / FOLDER).glob("rank-*.jsonl")):
            tail = self._phases.setdefault(file.name, Tail(file))
            for line in self._entries(f"{FOLDER}/{file.name}", tail.poll()[1], is_line):
                try:
                    self._take(file.name, line)
                except ValueError:  # of other phases than its launch has named
                    self.damaged[f"{FOLDER}/{file.name}"] += 1

    def _take(self, name: str, line: dict[str, Any]) -> None:
        """Take in a line of a rank's phases."""
        if "phases" in line:
            self._heads[name] = line
            self._launch(line)
        elif "last" in line:
            self.num_steps = line["last"]
        elif (head := self._heads.get(name)) is not None:
            if "lost" in line:
                self.died.setdefault((head["launch"], line["lost"]), (line["step"], line["wall_ns"] / 1e9))
            else:
                self._step_of(head, line)

    def _launch(self, head: Mapping[str, Any]) -> None:
        """A launch that does no step, of a run that is complete, leaves the ranks of the one before as they are."""
        is_newest = bool(self.launches) and head["launch"] == self.launches[-1][0]
        if is_newest or not any(rank.steps for rank in self.ranks.values()):
            self._open(head)

    def _open(self, head: Mapping[str, Any]) -> None:
        number = head["launch"]
        if not self.launches or number > self.launches[-1][0]:
            self.launches.append((number, head["world_size"], 0, max((r.step for r in self.ranks.values()), default=0)))
            self.ranks, self.began_s[number], self.sharing = {}, head["wall_ns"] / 1e9, ""
        if number == self.launches[-1][0]:
            if "reached" in head:  # the leader's; the dead ranks had not written their last second
                self.launches[-1] = (*self.launches[-1][:3], head["reached"])
            self.sharing = self.sharing or spell_sharing(head.get("local_workers", 0), head.get("cores", 0))
            opened_s = head["wall_ns"] / 1e9
            self.ranks[head["rank"]] = RankState(launch=number, world_size=head["world_size"], opened_s=opened_s)

    def _step_of(self, head: Mapping[str, Any], line: Mapping[str, Any]) -> None:
        number = head["launch"]
        if number > self.launches[-1][0] or (number == self.launches[-1][0] and head["rank"] not in self.ranks):
            self._open(head)
        rank = self.ranks.get(head["rank"])
        if rank is None or head["launch"] != rank.launch:
            return
        seconds = {phase: ns / 1e9 for phase, ns in zip(head["phases"], line["ns"], strict=True)}
        began = (head["wall_ns"] + line["at_ns"]) / 1e9
        rank.add(line["step"], began, seconds, line.get("replicas", 0))
        number, world_size, first, before = self.launches[-1]
        if not first:
            self.launches[-1] = number, world_size, line["step"], before

    def _entries(self, name: str, lines: list[bytes], is_ours: Callable[[Any], bool]) -> Iterator[dict[str, Any]]:
        for line in filter(None, lines):
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if isinstance(entry, dict) and is_ours(entry):
                yield entry
            else:
                self.damaged[name] += 1

    @property
    def state(self) -> str:
        """As `state_of` says."""
        return state_of(self.path, self.result, self.step, self.num_steps, self.silent_s)

    @property
    def resumed_after(self) -> int:
        """After which step the launch that trains now has gone on; 0: it began at the first one, or none trains."""
        number, _, first, _ = self.launches[-1] if self.launches else (0, 0, 0, 0)
        return resumed_after(self.path, number, first) if self.state == "training" else 0

    @property
    def silent_s(self) -> float:
        """Seconds since a step was written; infinite where none was."""
        return time.time() - max((rank.ended_s for rank in self.ranks.values() if rank.steps), default=-math.inf)

    @property
    def speed(self) -> Speed | None:
        """Now, over the last steps of the rank that is ahead; of a run that has ended the mean of its last launch."""
        if self.speed_is == "mean":
            return speed_in(self.result)
        return speed_of(
            (self._sizes[step], sum(seconds.values()), seconds_within(seconds))
            for step, _, seconds, _ in self._ahead().steps
            if step in self._sizes
        )

    @property
    def speed_is(self) -> str:
        """``now`` or ``mean``."""
        return "mean" if speed_in(self.result) and self.state in {"finished", "stopped"} else "now"

    def _ahead(self) -> RankState:
        return max(self.ranks.values(), key=lambda rank: rank.step, default=RankState())

    @property
    def eta_s(self) -> float | None:
        """Seconds until the last step, where its number is known, by the clock: the last steps and what was between."""
        steps = self._ahead().steps
        if not (self.num_steps and len(steps) > 1) or self.state != "training":
            return None
        return (self.num_steps - self.step) * (self._ahead().ended_s - steps[0][1]) / len(steps)

    def lost(self) -> list[int]:
        """Return the ranks that have died, or that the others have left behind."""
        launch = self.launches[-1][0] if self.launches else 0
        return sorted({*left_behind(self.ranks), *(rank for number, rank in self.died if number == launch)})

    def died_in(self, rank: int) -> tuple[int, float] | None:
        """Return in which step a rank of the newest launch has died, and when; None where nobody has told."""
        return self.died.get((self.launches[-1][0], rank)) if self.launches else None

    def joined(self) -> list[int]:
        """Return the ranks that were not there at the launch's beginning, and have done a step."""
        return [number for number, rank in sorted(self.ranks.items()) if number >= rank.world_size and rank.first]

    def slowest(self) -> Slow | None:
        """Return the rank that the others wait for, if there is one; None where workers share cores."""
        if self.sharing:
            return None
        lost = self.lost()
        return slowest({number: rank for number, rank in self.ranks.items() if number not in lost})

    def outside(self) -> dict[str, float]:
        """Return the shares of the time, 0 to 1, that are not within steps, by phase: as `speed` counts."""
        seconds = self._ahead().phases()
        if self.speed_is == "mean" and isinstance(told := self.result.get("phases_s"), dict):
            seconds = {phase: ranks[0] for phase, ranks in told.items() if ranks}
        whole = sum(seconds.values())
        return {phase: took / whole for phase, took in seconds.items() if phase not in WITHIN and took}

    def elapsed_s(self) -> float | None:
        """Return for how many seconds the newest launch has been running; None where none does."""
        if self.state not in {"training", "starting"} or not self.began_s:
            return None
        return max(0.0, time.time() - max(self.began_s.values()))

    def checkpoint(self) -> tuple[int, float] | None:
        """Return the step of the newest checkpoint, and how many seconds ago it was written; None: there is none."""
        step = newest_checkpoint(self.path)
        try:
            (place,) = (self.path / "checkpoints").glob(f"step-{step:08d}.*")
            return step, max(0.0, time.time() - place.stat().st_mtime)
        except (ValueError, FileNotFoundError):  # none, or it goes while we look
            return None

    def facts(self) -> dict[str, Any]:
        """Return what there is to tell, as plain values: for ``--json`` and the page."""
        free = shutil.disk_usage(self.path).free
        lost, slow, saved = self.lost(), self.slowest(), self.checkpoint()
        live = {number: rank for number, rank in sorted(self.ranks.items()) if number not in lost}
        return {
            "run": str(self.path), "state": self.state, "step": self.step, "steps": self.num_steps,
            "epoch": self.epoch + 1, "loss": self.losses[-1][1] if self.losses else None, "metrics": self.metrics,
            **rates(self.speed), "speed_is": self.speed_is, "eta_s": self.eta_s,
            "elapsed_s": self.elapsed_s(), "outside_steps": self.outside(), "workers": len(live), "lost": lost,
            "slowest": slow.rank if slow else None, "slow_in": slow.phase if slow else None,
            "checkpoint_step": saved[0] if saved else None, "checkpoint_age_s": saved[1] if saved else None,
            "launches": len(self.launches), "disk_free_bytes": free,
            "damage": self.damage(), "leader_memory_bytes": self._memory(),
            "phases_s": {str(n): r.phases() for n, r in live.items()},
        }  # fmt: skip

    def damage(self) -> str | None:
        """Return where ledger or metrics are damaged, and what to do; None: nowhere, or they are being written."""
        if self.state in {"training", "starting"}:
            return None
        files = (self.path / name for name in ("ledger.jsonl", "metrics.jsonl"))
        found = [(file.stat().st_size, file.stat().st_mtime_ns) if file.exists() else None for file in files]
        if found[0] is not None and self._looked_at != found:
            self._looked_at, self._damage = found, damage_of(self.path)
        return self._damage

    def _memory(self) -> int | None:
        """Return the memory of the process that holds the directory: the leader, where it runs on this machine."""
        try:
            lines = Path(f"/proc/{int(holder_of(self.path)['pid'])}/status").read_text().splitlines()
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))
        except (OSError, KeyError, ValueError, StopIteration):
            return None
