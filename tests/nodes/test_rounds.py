"""When a round begins and who runs it: decided from requests, signs of life and one steady clock."""

from unisono.nodes.rounds import LAST_CALL_S, Gathering, RecentBeats, Told


def requests(*numbers, request=1):
    return [(number, request) for number in numbers]


def test_fixed_hosts():
    """One number of hosts: nothing begins with fewer, and the round begins with the last one, without a last call."""
    gathering = Gathering(3, 3, 0, Told())
    assert gathering.look(0.0, requests(0, 1)) is None
    assert gathering.look(1000.0, requests(0, 1)) is None
    assert gathering.look(1000.1, requests(0, 2, 1)) == Told(0, ((0, 1), (1, 1), (2, 1)))


def test_a_last_call():
    """MIN:MAX: enough hosts wait for more for so long; one that goes meanwhile begins the call anew; MAX ends it."""
    gathering = Gathering(2, 3, 0, Told())
    assert gathering.look(0.0, requests(0, 1)) is None
    assert gathering.look(LAST_CALL_S - 0.1, requests(0)) is None
    assert gathering.look(LAST_CALL_S, requests(0, 1)) is None
    assert gathering.look(2 * LAST_CALL_S - 0.1, requests(0, 1)) is None
    assert gathering.look(2 * LAST_CALL_S, requests(0, 1)).members == ((0, 1), (1, 1))
    assert Gathering(2, 3, 0, Told()).look(0.0, requests(0, 1, 2)).members == ((0, 1), (1, 1), (2, 1))


def test_those_of_the_last_round_come_first():
    """A spare does not take the place of a host that is on its way back, but that of one that stays away."""
    before = Told(4, ((0, 1), (3, 1)))
    gathering = Gathering(1, 2, 0, before)
    assert gathering.look(0.0, [(0, 2), (1, 1)]) is None
    assert gathering.look(1.0, [(0, 2), (1, 1), (3, 2)]) == Told(5, ((0, 2), (3, 2)), answered=((0, 1), (3, 1)))
    other = Gathering(1, 2, 0, before)
    assert other.look(0.0, [(0, 2), (1, 1)]) is None
    assert other.look(LAST_CALL_S, [(0, 2), (1, 1)]) == Told(5, ((0, 2), (1, 1)), answered=((0, 1), (3, 1)))


def test_the_keeper_is_in_every_round():
    """Without it nothing begins; with more hosts than places it has one."""
    gathering = Gathering(1, 2, 7, Told())
    assert gathering.look(0.0, requests(1, 2, 3)) is None
    assert gathering.look(0.1, requests(1, 2, 7)).members == ((7, 1), (1, 1))


def test_what_is_told():
    """It survives JSON's types; a request that was answered or taken back does not wait."""
    told = Told(2, ((0, 3), (5, 1)), is_gathering=True)
    assert Told.unpacked(told.packed()) == told
    assert Told.unpacked(None) == Told()
    assert (told.place_of(5, 1), told.place_of(5, 2), told.place_of(1, 1)) == (1, None, None)
    assert told.waiting([(0, 3), (5, 2), (6, 0), (7, 1)]) == [(5, 2), (7, 1)]


def test_who_was_lost_is_no_newcomer():
    """A host that sat in a round and is silent since has no open request, however many rounds have followed."""
    first = Gathering(2, 3, 0, Told()).look(0.0, requests(0, 1, 2))
    alone = Gathering(1, 3, 0, first)
    assert alone.look(0.0, [(0, 2)]) is None
    second = alone.look(LAST_CALL_S, [(0, 2)])
    third = Gathering(1, 1, 0, second).look(0.0, [(0, 3)])
    for told in (second, third, Told.unpacked(third.packed())):
        assert told.waiting([(0, 3 if told is second else 4), (1, 1), (2, 1), (3, 1)])[1:] == [(3, 1)]
    assert second.waiting([(1, 2)]) == [(1, 2)]  # it has come back


def test_signs_of_life():
    """A beat that changes is life; the first one alone is not yet; silence is told apart from not having listened."""
    pulse = RecentBeats(10.0)
    assert not pulse.is_silent(1, 100.0)
    pulse.hear(1, None, 0.0)
    assert not pulse.is_alive(1, 1.0) and not pulse.is_silent(1, 10.0)
    assert pulse.is_silent(1, 10.1)
    pulse.hear(1, [1, 5.0], 20.0)
    pulse.hear(1, [1, 5.0], 29.0)
    assert pulse.is_alive(1, 30.0) and not pulse.is_alive(1, 30.1)
    pulse.forget()
    assert not pulse.is_silent(1, 99.0)
    patient = RecentBeats(0.0)
    patient.hear(1, 1, 0.0)
    assert not patient.is_silent(1, 1e9)
