"""What a launch finds in a run directory, and whether all of it is this run's: nothing is taken over unseen."""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from unisono.checkpoint import store
from unisono.checkpoint.manifest import Facts
from unisono.collectives.transport import Transport
from unisono.data.same_samples import EQUAL_DATA
from unisono.determinism.switches import drift
from unisono.errors import CheckpointError, EnvironmentDrift, RankDivergence, ScoreMismatch
from unisono.observe.compare import ALLOWED, MODULES, SAMPLES, diff, said_now
from unisono.system.directory import Directory
from unisono.train.run_directory.files import RunFiles

_OTHER_DATA = (
    "the data, its transform or a library that reads it is not what it was: bring it back, or choose another --out "
    "(out=) for a new run; --allow-drift (allow_drift=True) goes on with what is there"
)
_OTHER_MODEL = (
    "that run is of another model, perhaps of another program: choose another --out (out=), or remove its directory "
    "to train this one there"
)
_OTHER_MODULES = (
    "build the model of the same modules to resume it, or choose another --out (out=) for a new run. "
    "`unisono fork RUN --step N --out OTHER` goes on with others from the step N of RUN on. Where it is only a library "
    "that says otherwise what it builds, --allow-drift (allow_drift=True) goes on"
)


def check_score(where: Path | None, recorded: Mapping[str, Any], score: Mapping[str, Any]) -> None:
    """Refuse (`ScoreMismatch`) a directory of another score; list each differing field.

    Modules that are others are only told where drift is allowed.
    """
    _compare(
        f"{where} holds a run with another score", recorded, score,
        "repeat its settings to resume it, or choose another --out (out=) for a new run. "
        f"`unisono fork {where} --step N --out OTHER` changes settings from its step N on",
    )  # fmt: skip
    if lines := diff({MODULES: recorded.get(MODULES)}, {MODULES: score.get(MODULES + ALLOWED)}):
        told = "; ".join(_said(lines))
        warnings.warn(f"{where} goes on with other modules, since drift is allowed: {told}.", stacklevel=2)


def with_objective(score: Mapping[str, Any], objective: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a score with what its steps count, which is known with the first of them."""
    return {**score} if objective is None else {**score, "objective": {**objective}}


def refuse_objective(recorded: Mapping[str, Any] | None, given: Mapping[str, Any] | None) -> NoReturn:
    """Refuse (`ScoreMismatch`) a step that counts something else than those before it."""
    usual = {"weight": False, "reduction": "mean"}
    lines = diff({"objective": recorded or usual}, {"objective": given or usual})
    raise ScoreMismatch(
        f"all steps of a run count the same, but run.step() was called with another weight= or reduction=: "
        f"{'; '.join(lines)}. Hint: those of the first step (an update that counts samples beside one that does not: "
        "weight=lambda micro: len(micro.x)), or another --out (out=) for a new run."
    )


def compare_scores(transport: Transport, score: dict[str, Any]) -> None:
    """Compare the scores of all ranks (`RankDivergence`): the directory has but one; collective."""
    for rank, theirs in enumerate(transport.all_gather_json(score, of="run.steps, its score")):
        if lines := diff(score, theirs):
            if lines[0].startswith(("data.", SAMPLES)):
                raise RankDivergence(
                    f"rank {transport.rank} and rank {rank} have different data: {_said(lines)[0]}. Hint: {EQUAL_DATA}."
                )
            raise RankDivergence(
                f"rank {transport.rank} and rank {rank} run different scores: {'; '.join(lines[:3])}. "
                "Hint: the same settings and data on all hosts."
            )


def compare_environment(
    where: Path | None, recorded: Mapping[str, Any] | None, present: Mapping[str, Any], *, allow_drift: bool
) -> list[str] | None:
    """Return what has changed in a run's environment; None: there is nothing to record.

    Raises:
        EnvironmentDrift: Something has, and that is not allowed.
    """
    if recorded is None:
        return None
    lines = drift(dict(recorded), dict(present))
    if lines and not allow_drift:
        raise EnvironmentDrift(
            f"{where} was started in another environment, so its bits would change: {'; '.join(lines)}. "
            "Hint: --allow-drift (allow_drift=True) goes on and records it."
        )
    is_older = any(name in present and name not in recorded for name in ("flags", "probe"))
    return lines if lines or is_older else None


def drifted_from(step: int, environment: dict[str, Any], past: list[Any], lines: list[str]) -> dict[str, Any]:
    """Return the environment with what has changed in it before a launch that goes on from `step`, and then."""
    new = [[f"after step {step}: {line}" for line in lines]] if lines else []
    return environment | {"drifted": [*past, *new]}


def adopt_run(
    files: RunFiles,
    checkpoints: Directory,
    run: str,
    score: dict[str, Any],
    environment: dict[str, Any] | None,
    *,
    is_alone: bool,
) -> dict[str, Any]:
    """Write what a directory lacks, compare what it has, and return what is known of its newest valid checkpoint.

    Returns:
        Its ``name``, ``sha256``, ``step`` (-1 for none), ledger ``head``, what was ``spent``; the directory's
        ``result``; and ``hopeless``, why there is none that can be trusted.

    Raises:
        CheckpointError: No checkpoint can be trusted, and no other host has a directory of this run (`is_alone`).
        ScoreMismatch: A file or the checkpoint is of another run.
    """
    for name, content in (("run.json", {"run": run}), ("score.json", score)):
        there = files.read(name)
        if there is None:
            files.write(name, content)
        else:
            _demand_ours(files.directory.path / name, there, content)
    if environment is not None:
        files.write("environment.json", environment)
    hopeless: list[str] = []
    found: Path | None = None
    complaints: list[str] = []
    try:
        found, complaints = store.newest_valid(checkpoints, run)
    except CheckpointError as error:
        if is_alone:
            raise
        hopeless = [str(error)]  # another host may have a good one
    for complaint in [*complaints, *hopeless]:
        warnings.warn(f"checkpoint skipped: {complaint}", stacklevel=2)
    manifest = None if found is None else store.verify(found)
    facts = Facts() if manifest is None else manifest.facts
    if found is not None and facts.score:
        _demand_ours(found, facts.score, score)
    return {
        "name": "" if found is None else found.name,
        "sha256": "" if manifest is None else manifest.sha256,
        "step": -1 if manifest is None else manifest.step,
        "head": facts.ledger_head,
        "spent": facts.spent,
        "result": files.result(),
        "hopeless": hopeless,
    }


def _demand_ours(path: Path, there: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    what = f"{path} is of another run than this directory's"
    _compare(what, there, ours, "move away what was put there, or choose another --out (out=)")


def _compare(what: str, there: Mapping[str, Any], ours: Mapping[str, Any], hint: str) -> None:
    if lines := diff(said_now(there), ours):
        hint = _OTHER_DATA if lines[0].startswith(SAMPLES) else hint
        hint = _OTHER_MODULES if lines[0].startswith(f"{MODULES}.") else hint
        hint = _OTHER_MODEL if any(line.startswith(("model.class", "model.structure")) for line in lines) else hint
        raise ScoreMismatch("\n  ".join([f"{what}:", *_said(lines)]) + f"\nHint: {hint}.")


def _said(lines: list[str]) -> list[str]:
    lines = [line.replace(f"{SAMPLES}.", "hash of ") for line in lines]
    return [re.sub(rf"^{MODULES}\.(.*?): (.*) -> (.*)$", r"module \1: \2 then, \3 now", line) for line in lines]
