"""Handles of operations that are under way, and the lanes in which operations follow one another.

A lane runs its jobs in the order they were given: at once in the calling thread where the caller waits anyway and
nothing else is under way, else in a thread of its own. Whoever waits for the next job in the line while the thread has
not begun it runs it himself: to wake a thread and be woken by it costs more than a small operation. After a failure
that leaves ranks at different points no further job runs: each gets the same error.
"""

import collections
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor

from unisono.errors import ConfigError, PeerLost, RankDivergence

Task = Callable[[], None]


@final
class ShmWork(dist.Work):
    """The handle of one operation; torch waits for it, or attaches to its future."""

    def __init__(self, name: str, tensors: list[Tensor]) -> None:
        super().__init__()
        self.name = name
        self._tensors = tensors
        self._error: BaseException | None = None
        self._has_ended = False
        self._running = threading.Lock()  # held until the end; an Event would cost as much as a small operation
        self._running.acquire()
        self._guard = threading.Lock()
        self._start: torch.futures.Future[None] | None = None
        self._future: torch.futures.Future[list[Tensor]] | None = None
        self.run_now: Callable[[], None] | None = None
        """Runs the operation in the calling thread, if no one has begun it and nothing comes before it."""

    def finish(self, error: BaseException | None = None) -> None:
        """Say that the operation has ended, well or with an error."""
        with self._guard:
            self._error = error
            self._has_ended = True
            self._running.release()
            start = self._start
        if start is not None:
            start.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Wait for the end; raises the operation's error. A timeout of zero or less means none."""
        if not self._has_ended:
            seconds = timeout.total_seconds()
            if self.run_now is not None and seconds <= 0:
                self.run_now()
            if not self._running.acquire(timeout=seconds if seconds > 0 else -1):
                raise PeerLost(f"{self.name} has not ended within {seconds:g} s.")
            self._running.release()  # for the next who waits
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait for the end."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the operation has ended, well or not."""
        return self._has_ended

    def is_success(self) -> bool:
        """Whether the operation has ended well."""
        return self._has_ended and self._error is None

    def exception(self) -> BaseException | None:
        """Return the operation's error."""
        return self._error

    def result(self) -> list[Tensor]:
        """Wait, and return the tensors."""
        self.wait()
        return self._tensors

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        """Return a future of the tensors; after a failure it holds a RuntimeError with the error's text."""
        with self._guard:
            if self._future is None:
                # Only a callback's error is an error for torch's C++ code too, which DDP waits in.
                self._start = torch.futures.Future()
                self._future = self._start.then(self._outcome)
            has_ended, start, future = self._has_ended, self._start, self._future
        if has_ended and start is not None and not start.done():
            start.set_result(None)
        return future

    def _outcome(self, _: torch.futures.Future[None]) -> list[Tensor]:
        if self._error is not None:
            raise self._error
        return self._tensors


@final
class Lane:
    """Runs jobs one after the other, in the order given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._guard = (
            threading.Lock()
        )  # taken as itself where nobody is woken: a Condition's with costs three times as much
        self._change = threading.Condition(self._guard)
        self._line: collections.deque[tuple[Task, ShmWork, bool]] = collections.deque()
        self._is_busy = self._is_closed = False
        self._thread: threading.Thread | None = None
        self._failure: PeerLost | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way or waits for its turn."""
        return not (self._is_busy or self._line)

    def do(self, job: Task, work: ShmWork, *, in_background: bool) -> ShmWork:
        """Run a job: in the background, or to its end before this returns; its error is raised here or by `work`."""
        with self._guard:
            is_at_once = not (in_background or self._is_busy or self._line)
            if is_at_once:
                self._is_busy = True
        if is_at_once:
            self._run_task(job, work)
        else:
            self._put(job, work)
        if not in_background:
            work.wait()
        return work

    def _put(self, job: Task, work: ShmWork) -> None:
        item = (job, work, torch.is_inference_mode_enabled())
        work.run_now = lambda: self._run_now(item)
        with self._change:
            self._line.append(item)
            self._start_thread()
            self._change.notify()

    def close(self) -> None:
        """Let the thread end after the jobs it has."""
        with self._change:
            self._is_closed, self._thread = True, None
            self._change.notify()

    def _start_thread(self) -> None:
        if self._thread is None:
            self._is_closed = False
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._change:
                while self._is_busy or not self._line:
                    if self._is_closed and self.is_idle:
                        return
                    self._change.wait()
                item = self._line.popleft()
                self._is_busy = True
            self._run_item(item)
            del item  # a tensor must not live until the next job

    def _run_now(self, item: tuple[Task, ShmWork, bool]) -> None:
        with self._change:
            if self._is_busy or not self._line or self._line[0] is not item:
                return
            self._line.popleft()
            self._is_busy = True
        self._run_item(item)

    def _run_item(self, item: tuple[Task, ShmWork, bool]) -> None:
        job, work, is_inference = item
        work.run_now = None  # it refers to the work
        with torch.inference_mode(is_inference):
            self._run_task(job, work)

    def _run_task(self, job: Task, work: ShmWork) -> None:
        error: BaseException | None = self._failure
        try:
            if error is None:
                job()
        except (RankDivergence, ConfigError) as refused:  # all ranks know, and are at the same point
            error = refused
        except PeerLost as lost:
            error = self._failure = lost
        except BaseException as other:  # noqa: BLE001 - raised where the work is waited for
            error = other
            self._failure = PeerLost(
                f"{work.name} was cut short by {type(other).__name__}: this group is of no more use."
            )
        finally:
            with self._guard:
                self._is_busy = False
                if self._line or self._is_closed:
                    self._change.notify()
        work.finish(error)


def is_in_backward() -> bool:
    """Whether this thread is inside a backward pass, as when DDP reduces its buckets."""
    current: Any = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1
