"""Names that compiled functions read and set."""

import ast

import pytest

from unisono.determinism.source.code_names import accessed, made_of_itself, rates_of_workers


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


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("n = dist.get_world_size()\nrate = 0.1 * n\nSGD(p, lr=rate)", [3]),
        ("SGD(p, lr=0.1 * math.sqrt(int(os.environ.get('WORLD_SIZE', 1))))", [1]),
        ("self.n = run.world.size\nSGD([], lr=self.n / 10)", [2]),
        ("SGD(p, lr=scaled(0.1, run.world.world_size))", [1]),
        ("n = n + 1\nSGD(p, lr=0.1 * n)", []),  # it is made of itself alone
        ("args = load(run.world.rank)\nSGD(p, lr=args.lr)", []),  # of what is loaded there, nothing is known
        ("n = run.world.size\nSGD(p, lr=0.1 * (n if args.scale else 1))", []),  # nobody knows which
        ("n = run.replicas\nSGD(p, lr=0.1 * n)\nDataLoader(x, batch_size=run.world.size)", []),
    ],
)
def test_learning_rates_of_the_number_of_workers(source, lines):
    """By arithmetic and by names; what is only read in the same way is none."""
    assert [*rates_of_workers(ast.parse(source))] == lines
