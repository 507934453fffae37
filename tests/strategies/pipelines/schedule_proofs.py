"""What proves a pipeline schedule: it cannot hang, leaves nothing out, and is idle for a known share of the time."""

from collections.abc import Sequence

from unisono.strategies.pipelines.schedule import Action, Plan


class PlanError(ValueError):
    """A plan would hang, leaves something out, or mixes up what is sent."""


def check(actions: Plan, stages: int, micros: int) -> None:
    """Refuse a plan that would hang, leave something out, or mix up what is sent.

    Raises:
        PlanError: A move is missing or there twice; a stage's micro-batches are not in order, so that messages would
            be taken for others; or ranks wait for each other for ever (names the moves).
    """
    for rank, own in enumerate(actions):
        for direction in ("forward", "backward"):
            for stage in range(rank, stages, len(actions)):
                order = [action.micro for action in own if (action.direction, action.stage) == (direction, stage)]
                if order != list(range(micros)):
                    raise PlanError(
                        f"expected {micros} {direction} moves of stage {stage} on rank {rank}, in order; got {order}."
                    )
        if len(own) != 2 * micros * len(range(rank, stages, len(actions))):
            raise PlanError(f"rank {rank} has moves of stages that are not its own.")
    times = timeline(actions, stages)
    waiting = [f"rank {rank}: {own[len(done)]}" for rank, (own, done) in enumerate(zip(actions, times, strict=True))
               if len(done) < len(own)]  # fmt: skip
    if waiting:
        raise PlanError(f"the ranks would wait for each other for ever: {'; '.join(waiting)}.")


def needs(action: Action, stages: int) -> list[Action]:
    """Return the moves that must be done before this one."""
    if action.direction == "forward":
        return [Action("forward", action.stage - 1, action.micro)] if action.stage else []
    own = Action("forward", action.stage, action.micro)
    return [own] if action.stage == stages - 1 else [own, Action("backward", action.stage + 1, action.micro)]


def timeline(
    actions: Plan, stages: int, *, forward: float = 1.0, backward: float = 2.0
) -> list[list[tuple[float, float]]]:
    """Return when each move begins and ends if nothing but the moves takes time; shorter where a rank would hang.

    Args:
        actions: Of every rank.
        stages: Of all ranks.
        forward: Time of a forward move.
        backward: Time of a backward move.
    """
    ends: dict[Action, float] = {}
    times: list[list[tuple[float, float]]] = [[] for _ in actions]
    is_going = True
    while is_going:
        is_going = False
        for own, done in zip(actions, times, strict=True):
            while len(done) < len(own) and all(need in ends for need in needs(own[len(done)], stages)):
                action = own[len(done)]
                begin = max([done[-1][1] if done else 0.0, *(ends[need] for need in needs(action, stages))])
                ends[action] = begin + (forward if action.direction == "forward" else backward)
                done.append((begin, ends[action]))
                is_going = True
    return times


def idle_share(times: Sequence[Sequence[tuple[float, float]]]) -> float:
    """Return the share of all ranks' time, up to the last move's end, in which they do nothing."""
    span = max((end for row in times for _, end in row), default=0.0)
    busy = sum(end - begin for row in times for begin, end in row)
    return 1.0 - busy / (span * len(times)) if span else 0.0
