"""Saving beside the training: one checkpoint in flight, its error raised at the next step, its files shared by ranks.

A rank holds its share of the state (`Snapshot`); a thread copies and writes it. Ranks that share the writing leave a
receipt beside their files; the leader's thread waits for all receipts, commits, reads back, and only then calls the
checkpoint saved. No collective is called in a thread.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import final

from unisono.checkpoint import store
from unisono.checkpoint.draft import Draft
from unisono.checkpoint.files import FileSum, safetensors_chunks
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import Facts
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.checkpoint.snapshot import Snapshot
from unisono.checkpoint.staging import Files
from unisono.errors import CheckpointError
from unisono.system.directory import Directory
from unisono.system.disk import is_lasting

_POLL_S = 0.02  # how often the leader looks for receipts: no file system tells another machine's ranks
_GRACE_S = 10.0  # how long it still looks once the run is being closed


@final
class Saver:
    """Runs one save at a time in a thread of its own."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._closing_at: float | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a save is in flight."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight and nothing is left to be reported."""
        return self._thread is None

    def start(self, save: Callable[[], None]) -> None:
        """Run `save` in a thread; the one before must have been waited for."""
        assert self._thread is None

        def run() -> None:
            try:
                save()
            except BaseException as error:  # noqa: BLE001 - raised in the training thread
                self._failure = error

        self._thread = threading.Thread(target=run, name="unisono-checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise the `CheckpointError` of a save that has ended in the meantime; never waits."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Return when no save is in flight; raise once the `CheckpointError` of the last one."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is None:
            return
        if isinstance(failure, CheckpointError):
            raise failure
        text = f"saving failed: {type(failure).__name__}: {failure}"
        raise CheckpointError(text, is_final=is_lasting(failure)) from failure

    def close(self) -> None:
        """As `wait`, but do not wait long for ranks that may be gone."""
        self._closing_at = time.monotonic()
        try:
            self.wait()
        finally:
            self._closing_at = None

    def is_hopeless(self, deadline: float) -> bool:
        """Whether a save should give up waiting for other ranks."""
        now = time.monotonic()
        if self._closing_at is None and not threading.main_thread().is_alive():
            self._closing_at = now
        return now > deadline or (self._closing_at is not None and now > self._closing_at + _GRACE_S)


def write_share(draft: Draft, files: Files) -> dict[str, FileSum]:
    """Write one rank's safetensors files into a draft."""
    return {file: draft.put(file, safetensors_chunks(tensors)) for file, tensors in files.items()}


def write_alone(
    home: Directory, step: int, state: State, facts: Facts, policy: CheckpointPolicy, guard: store.Guard | None
) -> Callable[[bool], None]:
    """Write a checkpoint from one process; return what commits it, with True, or drops it; see `store.write`."""
    draft, files = store.prepare(home, step, state)

    def end(is_kept: bool) -> None:
        try:
            if is_kept:
                store.commit(draft, files, facts, guard)
        finally:
            store.discard(draft)  # nothing is left where it was committed
        if is_kept:
            store.settle(home, draft.name, policy)

    return end


def leave_receipt(draft: Draft, rank: int, source: Files | Snapshot) -> None:
    """Write a rank's share, then tell the leader what was written, or why not (and raise that here)."""
    try:
        files = write_share(draft, source.copied() if isinstance(source, Snapshot) else source)
        with draft.opened() as place:
            place.sync()
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError), draft.opened() as place:  # where the leader still waits
            told = {"error": str(error), "is_final": is_lasting(error)}
            place.replace(_receipt(rank), json.dumps(told).encode(), sync=False)
        raise
    recorded = source.checksum if isinstance(source, Snapshot) else 0
    content = {"files": {name: asdict(entry) for name, entry in files.items()}, "recorded": recorded}
    with draft.opened() as place:
        place.replace(_receipt(rank), json.dumps(content).encode(), sync=False)


def collect_receipts(draft: Draft, ranks: range, is_hopeless: Callable[[], bool]) -> tuple[dict[str, FileSum], int]:
    """Wait for the receipts of `ranks` and return what they have written; the receipts are removed.

    Returns:
        The files, and the checksum of what the ledger records of their shares.

    Raises:
        CheckpointError: A rank could not write its share, or has left none when `is_hopeless` says to stop.
    """
    missing, files, failed, is_final, recorded = set(ranks), dict[str, FileSum](), "", False, 0
    pause = threading.Event()
    with draft.opened() as place:
        while missing:
            for rank in sorted(missing):
                receipt = place.read(_receipt(rank))
                if receipt is None:
                    continue
                content = json.loads(receipt)
                if "error" in content:  # the others are heard out: nobody shall be writing when the draft is discarded
                    failed = failed or f"rank {rank} could not write its share of step {draft.step}: {content['error']}"
                    is_final |= content.get("is_final", False)
                files |= {name: FileSum(**entry) for name, entry in content.get("files", {}).items()}
                recorded += content.get("recorded", 0)
                missing.discard(rank)
                place.remove(_receipt(rank))
            if missing and is_hopeless():
                raise CheckpointError(
                    f"the checkpoint of step {draft.step} is not committed: ranks {sorted(missing)} have not written "
                    "their share. What was committed before is untouched. Hint: look for the first failure of a rank."
                )
            if missing:
                pause.wait(_POLL_S)
    if failed:
        raise CheckpointError(failed, is_final=is_final)
    return files, recorded


def _receipt(rank: int) -> str:
    return f"receipt-{rank}.json"
