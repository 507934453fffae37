"""A look inside a few steps: torch's profiler on every rank, all of them on one time line."""

import os
import socket
import time
import warnings
from pathlib import Path
from typing import Any, final

from torch.profiler import ProfilerActivity, profile

from unisono.determinism import devices
from unisono.errors import ConfigError
from unisono.observe.trace import Event, join_traces
from unisono.options.quantities import STEPS
from unisono.train.callbacks.base import Callback, Loop


@final
class Profiler(Callback):
    """Record what all ranks do in a window of steps, as one trace for Perfetto or ``chrome://tracing``.

    Each rank writes its own part into ``profile/`` of the run directory; then the leader joins them to
    ``profile/steps-FIRST-LAST.json`` and removes the parts. Ranks are processes of the trace; their clocks are those
    of their hosts, so hosts should keep time. Changes no bit. Between two windows, steps cost nothing.

    A run that ends within the window keeps what was recorded; one that fails keeps nothing. A trace that cannot be
    written is a warning: nothing but the trace is lost.

    Args:
        first_step: First step of the window, counted from the run's start; later ones warm up, the first few do not.
        num_steps: Length of the window; files grow by some megabytes a step.
        folder: In place of ``profile/`` in the run directory; all ranks must see it.
        with_stack: Record Python's lines too; much slower.
        record_shapes: Record the shapes of inputs.
        profile_memory: Record what is allocated.
    """

    def __init__(
        self,
        first_step: int = 10,
        num_steps: int = 3,
        *,
        folder: str | Path | None = None,
        with_stack: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = False,
    ) -> None:
        first_step, num_steps = STEPS.take("first_step", first_step), STEPS.take("num_steps", num_steps)
        self._window = range(first_step, first_step + num_steps)
        self._folder = None if folder is None else Path(folder)
        self._how: dict[str, Any] = {
            "with_stack": with_stack,
            "record_shapes": record_shapes,
            "profile_memory": profile_memory,
        }
        self._profile: Any = None
        self._steps: list[Event] = []
        self._began_ns = 0

    def on_run_start(self, loop: Loop) -> None:
        """Refuse (`ConfigError`) to profile without a folder, or ranks that share a process and so one profiler."""
        self._folder = self._folder or (loop.run.directory and loop.run.directory / "profile")
        if self._folder is None:
            raise ConfigError("expected a folder for traces, got none. Hint: Profiler(folder=...), or Run(out=).")
        processes = loop.run.transport.all_gather_json([socket.gethostname(), os.getpid()])
        if len({tuple(each) for each in processes}) < len(processes):
            raise ConfigError(
                f"expected a process for each rank to profile, got {len(processes)} ranks in fewer. "
                "Hint: unisono run -n N instead of run_ranks, or one rank alone."
            )

    def on_step_start(self, loop: Loop) -> None:
        if loop.step not in self._window:
            return
        if self._profile is None:
            gpu = devices.profiled(loop.run.device)
            started = profile(activities=[ProfilerActivity.CPU, *gpu], **self._how)
            started.start()
            self._profile = started  # only now is there something to stop
        self._began_ns = time.time_ns()

    def on_step_end(self, loop: Loop) -> None:
        if self._profile is None:
            return
        about = {"step": loop.step, "epoch": loop.epoch, "loss": loop.loss, "samples": len(loop.indices)}
        span = {"name": f"step {loop.step}", "began_ns": self._began_ns, "ended_ns": time.time_ns(), "args": about}
        self._steps.append(span)
        if loop.step == self._window[-1]:
            self._write(loop)

    def on_run_end(self, loop: Loop) -> None:
        if self._profile is not None:
            self._write(loop)

    def close(self) -> None:
        if self._profile is not None:
            self._profile.stop()
            self._profile = None

    def _write(self, loop: Loop) -> None:
        """Write this rank's part; on the leader, join all of them."""
        finished, steps = self._profile, self._steps
        self.close()
        self._steps = []
        assert self._folder is not None  # seen to when the run started
        part = self._folder / f"rank-{loop.run.world.rank}.json"
        failure = None
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            finished.export_chrome_trace(str(part))
        except (OSError, RuntimeError) as error:
            failure = f"rank {loop.run.world.rank}: {error}"
        transport = loop.run.transport
        everyone = transport.again(lambda: transport.all_gather_json([str(part), steps, failure]))
        if not loop.run.world.is_leader:
            return
        parts = [Path(each[0]) for each in everyone]
        failures = [each[2] for each in everyone if each[2]]
        trace = self._folder / f"steps-{steps[0]['args']['step']}-{steps[-1]['args']['step']}.json"
        if not failures:
            try:
                join_traces(parts, [each[1] for each in everyone], trace)
                for each in parts:
                    each.unlink()
            except (OSError, ValueError) as error:
                failures.append(str(error))
        if failures:
            warnings.warn(
                f"no trace of steps {steps[0]['args']['step']} to {steps[-1]['args']['step']} in {trace}: {failures}. "
                "Nothing but the trace is lost. Hint: the folder must be writable and seen by all ranks.", stacklevel=2,
            )  # fmt: skip
