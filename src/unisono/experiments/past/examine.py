"""Compute past steps again, and look into them: what single samples did, or with a debugger."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.experiments.past.replay import Replay, read_score, replay
from unisono.launchers.scratch import scratch_directory
from unisono.observe.damage import read_steps
from unisono.system.directory import Directory


@dataclass(frozen=True, kw_only=True, slots=True)
class Examined:
    """What came of looking at steps."""

    replay: Replay  #: How they compare with the ledger.
    #: Of each step, as ``unisono replay --detail --json`` prints it; empty where a step is another than the run's.
    steps: list[dict[str, Any]]


def examine(
    directory: str, args: Sequence[str] = (), *, step: int | None = None, first: int | None = None,
    without: Sequence[int] = (), show: int = 0, by: str = "suspect", **how: Any,
) -> Examined:  # fmt: skip
    """Compute steps again, compare them with the ledger, and say what their samples, modules and parameters did.

    Each is looked at after it was done, from what it began with: its passes again, then each sample by itself.

    Args:
        directory: The run directory; nothing in it is touched.
        args: As `replay` takes them.
        step: The last one; None: the run's last.
        first: The first one; None: `step` alone.
        without: Samples, by index, without which the steps' gradients are computed too.
        show: Of so many samples of each step, the first ones in the order `by`, what they are: a picture, or tokens.
        by: See `unisono.observe.suspects.order`.
        **how: As `replay` takes it: ``script``, ``data``, ``allow_drift``, ``tell``.

    Raises:
        ConfigError: As `replay`; another strategy than ``exact``; steps whose samples have no loss of their own.
        WorkerFailed: As `replay`.
    """
    score = read_score(Path(directory))
    name = score.get("strategy", {}).get("name", "exact")
    if name != "exact":
        raise ConfigError(f"expected a run with the strategy exact, got {name}: only there samples are looked at.")
    lines = read_steps(Path(directory) / "ledger.jsonl")
    step = lines[-1]["step"] if step is None and lines else step
    first = step if first is None else first
    asked: dict[str, Any] = {"first": first, "last": step, "without": [*without], "show": show, "by": by}
    done, told = _asking(directory, args, asked, step=step, first=first, **how)
    if done.first_other is not None:
        return Examined(replay=done, steps=[])
    if not told:
        raise ConfigError(
            f"no step of {directory} was computed by run.step(): the program's own loop does the passes, as under "
            "accelerate's interface, and there is no loss function to be called for a sample."
        )
    there = {sample["index"] for each in told for sample in each["samples"]}
    if missing := [index for index in without if index not in there]:
        few = ", ".join(map(str, sorted(there)[:8]))
        raise ConfigError(
            f"expected --without-sample as one of the samples of step {step}, got {missing[0]}. "
            f"Hint: its samples are {few}{', ...' * (len(there) > 8)}; all: --top 0."
        )
    _read_tokens(Path(directory), told)
    return Examined(replay=done, steps=told)


def debug(
    directory: str, args: Sequence[str] = (), *, step: int | None = None, replica: int = 0, **how: Any
) -> Replay | None:
    """Compute a step again, and stop in the loss function of a replica; None where the debugger was left there.

    This process's terminal is the debugger's. Arguments as `examine` takes them.

    Raises:
        ConfigError: As `replay`; no such replica, or one that has no sample in the step.
        WorkerFailed: As `replay`.
    """
    score, lines = read_score(Path(directory)), read_steps(Path(directory) / "ledger.jsonl")
    step = lines[-1]["step"] if step is None and lines else step
    if not 0 <= replica < score["replicas"]:
        raise ConfigError(f"expected --replica from 0 to {score['replicas'] - 1}, got {replica}.")
    asked: dict[str, Any] = {"first": step, "last": step, "without": [], "replica": replica}
    launch: dict[str, Any] = {"output": "leader", "hang_s": 0.0, "heartbeat_s": 0.0}
    done, told = _asking(directory, args, asked, step=step, **how, **launch)
    if not told:
        size = next(line["num_samples"] for line in lines if line["step"] == step)
        raise ConfigError(f"replica {replica} has called no loss function in step {step}, which has {size} samples.")
    return None if told[-1]["is_left"] else done


def _asking(
    directory: str, args: Sequence[str], asked: dict[str, Any], **how: Any
) -> tuple[Replay, list[dict[str, Any]]]:
    """Replay with a question; return what came of it, and the answers; of a debugger that was left, only these."""
    if how.setdefault("workers", "1") != "1":
        raise ConfigError(f"steps are looked at by one process, got --workers {how['workers']}. Hint: --workers 1.")
    with scratch_directory("examine") as scratch:
        out = Path(scratch) / "examined.jsonl"
        question = json.dumps(asked | {"out": str(out)})
        try:
            done = replay(directory, args, env={"UNISONO_EXAMINE": question}, **how)
        except ConfigError:
            if not (told := _read(out)) or not told[-1].get("is_left"):
                raise
            done = Replay(start=0, step=0, first_other=None, differing=[])
        return done, _read(out)


def _read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _read_tokens(home: Path, steps: list[dict[str, Any]]) -> None:
    """Add ``text`` to what is shown of samples, where the run keeps what its tokens stand for."""
    with Directory.open(home) as there:
        words, tokeniser = there.read("vocabulary.json"), there.read("tokeniser.json")
    shown = [each for step in steps for each in step["shown"].values() if "tokens" in each]
    if words is not None:
        known = json.loads(words)
        for each in shown:
            tokens = [token for token in each["tokens"] if token]
            each["text"] = " ".join(known[token] if 0 <= token < len(known) else "?" for token in tokens)
    elif tokeniser is not None and shown:
        from tokenizers import Tokenizer

        whole = Tokenizer.from_str(tokeniser.decode())
        for each in shown:
            each["text"] = whole.decode(each["tokens"])


def epoch_of(directory: str, epoch: int, step: int | None) -> tuple[int, int]:
    """Return the first and the last step of an epoch, counted from 1 (`ConfigError`: no run, or none in its ledger)."""
    if step is not None:
        raise ConfigError("expected --step or --epoch, got both.")
    read_score(Path(directory))
    lines = read_steps(Path(directory) / "ledger.jsonl")
    steps = [line["step"] for line in lines if line["epoch"] == epoch - 1]
    if not steps:
        there = f"1 to {lines[-1]['epoch'] + 1}" if lines else "none"
        raise ConfigError(f"expected --epoch as one of those in {directory}/ledger.jsonl, {there}, got {epoch}.")
    return steps[0], steps[-1]
