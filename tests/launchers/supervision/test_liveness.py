"""Silence and standstill, judged on made-up clocks."""

from unisono.launchers.supervision.liveness import Back, Liveness, Silent, Still
from unisono.system.heartbeat import JOINED, Reading


def watch(liveness, seconds, beat=lambda rank, now: now, tick=lambda now: now, ranks=(0, 1), state=JOINED):
    """Look every half second and return what was found, with the time."""
    found = []
    for half in range(seconds * 2):
        now = half / 2
        readings = {
            rank: Reading(beats=int(2 * beat(rank, now)), ticks=int(2 * tick(now)), state=state) for rank in ranks
        }
        found += [(now, finding) for finding in liveness.look(1000 + now, readings)]
    return found


def test_all_is_well():
    """Workers that beat and move are left alone."""
    assert watch(Liveness(10, 30), 100) == []


def test_silence_is_noticed_in_time():
    """A worker that stops beating is named after the heartbeat's time, and again after each further one."""
    found = watch(Liveness(10, 30), 40, beat=lambda rank, now: min(now, 5) if rank else now)
    assert found == [(now, Silent(1, now - 5, count)) for count, now in enumerate((15.0, 25.0, 35.0), start=1)]


def test_a_straggler_is_told_of():
    """A worker away for more than 3 seconds, though not long enough to act, is mentioned when it is back."""
    for back, told in ((9, [(9.0, Back(1, 4.0))]), (8.5, [(8.5, Back(1, 3.5))]), (8, [])):
        found = watch(Liveness(10, 30), 20, beat=lambda rank, now, back=back: 5 if rank and 5 <= now < back else now)
        assert found == told


def test_standstill_is_reported_ever_more_rarely():
    """All beat but nothing moves: said after the hang's time, then after twice, four times that."""
    found = watch(Liveness(10, 30), 250, tick=lambda now: min(now, 10))
    early, *reports = found
    assert early == (15.0, Still(5.0, is_early=True))
    assert reports == [(10 + after, Still(after)) for after in (30.0, 60.0, 120.0)]


def test_an_early_look_at_a_standstill():
    """It comes once a standstill, where the report comes later than it."""
    found = watch(Liveness(10, 30), 28, tick=lambda now: now // 14)
    assert found == [(5.0, Still(5.0, is_early=True)), (19.0, Still(5.0, is_early=True))]
    assert watch(Liveness(10, 5), 6, tick=lambda now: 0) == [(5.0, Still(5.0))]


def test_silence_explains_standstill():
    """While one worker is silent, that the others wait for it is no second finding."""
    found = watch(
        Liveness(100, 5), 60, beat=lambda rank, now: min(now, 5) if rank else now, tick=lambda now: min(now, 5)
    )
    assert found == []


def test_a_short_silence_does_not_hide_a_standstill():
    """Up to 3 seconds the clock of a standstill goes on; after a longer silence it starts anew."""
    for back, at in ((8.5, 30.0), (9.0, 39.0)):
        found = watch(
            *(Liveness(100, 30), 45),
            ranks=(1,),
            beat=lambda rank, now, back=back: 5 if 5 <= now < back else now,
            tick=lambda now: 0.5,
        )
        reports = [(now, each) for now, each in found if not (isinstance(each, Still) and each.is_early)]
        assert reports == [(back, Back(1, back - 5)), (at, Still(30.0))]


def test_zero_turns_both_off():
    """No heartbeat and no hang report where they are not wanted."""
    assert watch(Liveness(0, 0), 100, beat=lambda rank, now: 0, tick=lambda now: 0) == []


def test_programs_without_a_run_are_not_judged():
    """A plain script beats nothing and moves nothing, and that means nothing."""
    assert watch(Liveness(1, 1), 50, beat=lambda rank, now: 0, tick=lambda now: 0, state=0) == []


def test_our_own_absence_is_nobodys_fault():
    """A launcher that was itself stopped for a minute blames no worker for it."""
    liveness = Liveness(10, 30)
    reading = {0: Reading(beats=1, ticks=1, state=JOINED)}
    assert liveness.look(1000.0, reading) == []
    assert liveness.look(1060.0, reading) == []
    assert liveness.look(1061.0, reading) == []


def test_looks_may_be_as_rare_as_2_5_seconds():
    """So far apart they still count as watching; a little further, and the clock starts anew with each look."""
    for apart_s, found in ((2.5, [[], [], [Silent(0, 5.0, 1)]]), (2.75, [[], [], []])):
        liveness = Liveness(5, 0)
        reading = {0: Reading(beats=1, ticks=1, state=JOINED)}
        assert [liveness.look(1000 + number * apart_s, reading) for number in range(3)] == found
