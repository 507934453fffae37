"""Ranks as actors of a Ray placement group: all of them or none, each with a process of its own for the program.

In: a `RayJob`. Out: the exit code. Ray finds the machines, keeps their resources and says when one is lost; who is
which rank is decided in `ray_places`. Ray is imported only when a job runs. Must not import torch.
"""

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from unisono.errors import LaunchError, RunStopped
from unisono.launchers.engines.following import write_to_stdout
from unisono.launchers.engines.ray_job import RayJob
from unisono.launchers.engines.ray_places import RankPlace, assign
from unisono.launchers.supervision.restarts import ANYWHERE
from unisono.store.secret import given_secret, new_secret
from unisono.system.messages import tell

_GRACE_S = 10.0
_LOST = 255
_FINAL_CODES = (0, 2, RunStopped.exit_code)  # starting again would end in the same way


@dataclass(frozen=True, slots=True)
class _Ended:
    rank: int
    code: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class _Asked:
    signum: int


def run_on_ray(job: RayJob) -> int:
    """Run one job to its end; return its exit code.

    Raises:
        LaunchError: Ray is not installed, there is no room for the job, or a node lacks the working directory.
    """
    try:
        import ray
    except ImportError as error:
        raise LaunchError(f"expected Ray, got {error}. Hint: pip install ray.") from error
    was_running = ray.is_initialized()
    if not was_running:
        runtime = {"working_dir": job.working_dir} if job.working_dir else {}
        where = {"address": job.address} if job.address else {"include_dashboard": False}
        ray.init(runtime_env=runtime, log_to_driver=False, **where)
    try:
        code = _attempt(ray, job)
        for restart in range(1, job.max_restarts + 1):
            if code in _FINAL_CODES or code > 128 + signal.SIGKILL:
                break
            tell(f"Restart {restart} of {job.max_restarts} {ANYWHERE}.")
            code = _attempt(ray, job)
        return code
    finally:
        if not was_running:
            ray.shutdown()


def _attempt(ray: Any, job: RayJob) -> int:
    with _group(ray, job) as group:
        actors = _actors(ray, job, group)
        placements = ray.get([actor.place.remote() for actor in actors])
        places = assign(placements, given_secret(os.environ) or new_secret())
        events: queue.SimpleQueue[_Ended | _Asked] = queue.SimpleQueue()
        with _signals(events):
            cwd = None if job.working_dir else os.getcwd()  # noqa: PTH109 - as a text for other machines
            for place in places:
                stream = actors[place.actor].run_program.options(num_returns="streaming").remote(job, place, cwd)
                threading.Thread(target=_pass_on, args=(ray, place, stream, events), daemon=True).start()
            return _supervise(ray, [actors[place.actor] for place in places], events)


def _supervise(ray: Any, actors: list[Any], events: "queue.SimpleQueue[_Ended | _Asked]") -> int:
    """Wait for all ranks; stop the rest when one fails or a signal comes; return the code of the first to fail."""
    running = set(range(len(actors)))
    result = 0
    impatient = False
    while running:
        try:
            event = events.get(timeout=_GRACE_S if impatient else None)
        except queue.Empty:  # they had their time
            for rank in running:
                ray.kill(actors[rank])
            return result
        if isinstance(event, _Asked):
            _signal(ray, actors, running, event.signum)
            continue
        running.discard(event.rank)
        if event.code and not result:
            result = event.code
            if event.code != RunStopped.exit_code:
                tell(f"rank {event.rank} of {len(actors)} ended with code {event.code}. {event.why}".rstrip())
                impatient = True
                _signal(ray, actors, running, signal.SIGTERM)
    return result


def _signal(ray: Any, actors: list[Any], ranks: set[int], signum: int) -> None:
    # An actor whose node is lost answers with an error, which its stream tells too.
    for answer in [actors[rank].signal.remote(signum) for rank in ranks]:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(answer)


def _pass_on(ray: Any, place: RankPlace, stream: Any, events: "queue.SimpleQueue[_Ended | _Asked]") -> None:
    """Write what a rank writes, line by line, and tell how it ended."""
    rank = place.world.rank
    prefix = b"" if place.world.world_size == 1 else b"[rank %d] " % rank
    code, why = _LOST, "Its output ended without an exit code."
    try:
        for reference in stream:
            piece = ray.get(reference)
            if isinstance(piece, int):
                code, why = piece, ""
            else:
                write_to_stdout(prefix + piece)
    except ray.exceptions.RayError as error:
        why = f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    events.put(_Ended(rank, code, why))


@contextlib.contextmanager
def _group(ray: Any, job: RayJob) -> Iterator[Any]:
    from ray.util.placement_group import placement_group, remove_placement_group

    group = placement_group([job.bundle] * job.workers, strategy=job.strategy)
    try:
        if not group.wait(timeout_seconds=job.wait_s):
            there = {name: ray.cluster_resources().get(name, 0.0) for name in job.bundle}
            needed = {name: amount * job.workers for name, amount in job.bundle.items()}
            raise LaunchError(
                f"expected room for {job.workers} ranks ({job.strategy}) within {job.wait_s:g} s: {_text(needed)}; the "
                f"cluster has {_text(there)} in all. Hint: fewer workers, --cpus-per-worker 0.5, or more nodes."
            )
        yield group
    finally:
        remove_placement_group(group)


def _text(resources: dict[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())


def _actors(ray: Any, job: RayJob, group: Any) -> list[Any]:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from unisono.launchers.engines.ray_actor import RankActor

    made = ray.remote(RankActor)
    return [
        made.options(
            num_cpus=job.cpus,
            num_gpus=job.gpus,
            max_concurrency=2,  # one runs, the other passes on signals
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote()
        for index in range(job.workers)
    ]


@contextlib.contextmanager
def _signals(events: "queue.SimpleQueue[_Ended | _Asked]") -> Iterator[None]:
    """Turn the signals that ask us to stop into events; ranks that can stop between two steps do so."""
    before = {
        signum: signal.signal(signum, lambda number, _: events.put(_Asked(number)))
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
