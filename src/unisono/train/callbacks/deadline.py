"""A deadline for callbacks: one that hangs on one rank ends the run with its name, instead of a wait without end."""

import ctypes
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, final

from unisono.errors import CallbackTimeout, ConfigError

_SIGNAL = signal.SIGVTALRM  # hardly a program uses it; SIGINT may be ignored, in background jobs for instance


@final
class CallbackDeadline:
    """Calls functions and interrupts one that takes too long.

    A thread looks at the clock now and then; a call in time costs two assignments. In the main thread a late call is
    interrupted by a signal, even while it sleeps or waits; in another thread as soon as it runs Python code again.
    """

    def __init__(self, deadline_s: float) -> None:
        if not deadline_s > 0:
            raise ConfigError(f"expected a deadline for callbacks above 0 s, got {deadline_s}.")
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._busy: tuple[str, float, int] | None = None  # what, since when, in which thread
        self._is_late = False
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._handles_signal = False

    def call(self, what: str, step: int, function: Callable[..., None], *args: Any) -> None:
        """Call ``function(*args)``; raise `CallbackTimeout` where it took too long and was interrupted."""
        if self._thread is None:
            self._start()
        self._busy = (what, time.monotonic(), threading.get_ident())
        try:
            function(*args)
            with self._lock:  # never between the look at the clock and the interruption
                self._busy = None
            if self._is_late:
                self._await_interruption()
        except CallbackTimeout:
            if not self._is_late:
                raise
            self._is_late = False
            raise CallbackTimeout(
                f"callback {what} at step {step} took longer than {self._deadline_s:g} s. "
                "Hint: callback_deadline_s= of the trainer allows more."
            ) from None
        finally:
            self._busy = None

    def close(self) -> None:
        """End the thread; safe to call twice. The next call starts another."""
        if self._thread is not None:
            self._is_closed.set()
            self._thread.join()
            self._thread = None
            self._is_closed.clear()
        if self._handles_signal:
            signal.signal(_SIGNAL, signal.SIG_DFL)
            self._handles_signal = False

    def _start(self) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(_SIGNAL) is signal.SIG_DFL:
            signal.signal(_SIGNAL, _interrupted)
            self._handles_signal = True
        self._thread = threading.Thread(target=self._look, name="callback-deadline", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_closed.wait(min(1.0, self._deadline_s / 4)):
            with self._lock:
                busy = self._busy
                if busy is None or self._is_late or time.monotonic() - busy[1] < self._deadline_s:
                    continue
                self._is_late = True
                if self._handles_signal:
                    signal.pthread_kill(busy[2], _SIGNAL)
                else:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(
                        ctypes.c_ulong(busy[2]), ctypes.py_object(CallbackTimeout)
                    )

    def _await_interruption(self) -> None:
        """Let the interruption, which is under way, arrive here and nowhere else."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            time.sleep(0.001)
        raise CallbackTimeout


def _interrupted(*_: object) -> None:
    raise CallbackTimeout
