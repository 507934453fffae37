"""A step's report: one message, after which all ranks know what each has found, to the last bit."""

import math

from ranks import run_threads
from unisono.collectives.loopback import LoopbackTransport
from unisono.strategies.parts.report import RankReport, StepReport

HUGE = 2**64 - 3


def test_all_ranks_know_what_each_has_found():
    """Losses keep their bits (NaN, a zero's sign), flags are set where one rank has set them, counters largest."""

    def program(transport):
        report = StepReport(4, parameters=3, buffers=2, counted=2)
        if transport.rank == 0:
            report.note(0, -0.0)
            report.note(1, math.nan)
        else:
            report.note(2, 0.1, is_finite=False)
            report.note(3, 1e-300)
            report.counted[:] = -5, 2**62
        report.present[transport.rank] = report.changed[1] = True
        told = report.merge(transport, RankReport(7, HUGE + transport.rank, is_stop_asked=transport.rank == 1))
        losses, counted = [value.hex() for value in report.losses.tolist()], report.counted.tolist()
        return losses, report.bad_replicas(), report.present.tolist(), report.changed.tolist(), told, counted

    first, second = run_threads(program, 2)
    assert first == second
    losses, bad, present, changed, told, counted = first
    assert counted == [-5, 2**62]  # the other rank knows nothing
    assert losses == ["-0x0.0p+0", "nan", (0.1).hex(), (1e-300).hex()]
    assert (bad, present, changed) == ([1, 2], [True, True, False], [False, True])
    assert told == [[7, HUGE, 0, 1, 1, 0, 0, 0, 1], [7, HUGE + 1, 0, 1, 1, 1, 0, 0, 1]]


def test_a_step_leaves_nothing_for_the_next_one():
    """`clear` forgets everything; one rank alone keeps what it has noted."""
    report = StepReport(2, parameters=1)
    report.note(1, math.inf)
    report.present[0] = True
    own = RankReport(1, 5)
    assert report.merge(LoopbackTransport(), own) == [own]
    assert (report.bad_replicas(), report.present.tolist(), own.head) == ((1,), [True], (1, 5, 1))
    report.clear()
    assert (report.bad_replicas(), report.present.tolist(), report.losses.tolist()) == ((), [False], [0.0, 0.0])
