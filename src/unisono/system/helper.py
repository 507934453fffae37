"""A thread that does jobs for another one."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import final


@final
class Helper:
    """A thread that does one job after the other, and keeps nobody from ending the process."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def begin(self, job: Callable[[], None]) -> Future[None]:
        """Do a job; what it returns says when it is done, and raises what the job has raised."""
        done: Future[None] = Future()
        self._jobs.put((done, job))
        return done

    def end(self) -> None:
        """End the thread when its jobs are done."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (found := self._jobs.get()) is not None:
            done, job = found
            try:
                job()
                done.set_result(None)
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                done.set_exception(error)
            del found, done, job
