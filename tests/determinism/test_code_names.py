"""Names that compiled functions read and set."""

from unisono.determinism.code_names import accessed, made_of_itself


class Tracker:
    def __init__(self):
        self.first = self.first_of_all = 0

    def update(self, value):
        self.ema = 0.9 * self.ema + value

    def put(self, value):
        self.last = value


class Longer(Tracker):
    def count(self):
        self.k += 1


def test_attributes_that_methods_make_of_what_they_were():
    """Also those of base classes; what is only set, or set when the object is made, is none."""
    assert made_of_itself(Tracker) == {"ema"}
    assert made_of_itself(Longer) == {"ema", "k"}


def test_what_a_loss_may_call_counts():
    """Methods by a name that is read, functions within functions, and the constants that may be keys."""

    def loss(tracker, state):
        def inner():
            return state["scale"]

        tracker.seen = inner()
        return tracker.update(1)

    read, written = accessed([(loss.__code__, False), (Tracker.update.__code__, True), (Tracker.put.__code__, True)])
    assert {"scale", "update", "ema"} <= read
    assert "last" not in read | written
    assert {"seen", "ema"} == written
