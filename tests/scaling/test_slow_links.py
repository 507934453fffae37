"""What to say of ways to train over slow links; they are measured in tests/cli and tests/cluster."""

import pytest

from unisono.scaling.slow_links import WAYS, WORTHWHILE, command, propose


@pytest.mark.parametrize(
    ("rates", "chosen", "why"),
    [
        ({"exact": [100.0, 110.0], "ddp": [90.0, 95.0]}, "exact", "nothing that was measured is faster"),
        ({"exact": [100.0], "ddp": [110.0]}, "exact", "(ddp) is 1.10 times as fast, which is not worth another result"),
        ({"exact": [100.0, 180.0], "bf16": [200.0, 210.0]}, "exact", "not worth"),  # within the scatter of exact
        ({"exact": [100.0, 100.0], "bf16": [90.0, 900.0]}, "exact", "not worth"),  # within its own
        ({"exact": [100.0], "bf16": [200.0], "local_sgd": [500.0]}, "local_sgd", "5.0 times as fast as exact; "),
        ({"exact": [100.0], "local_sgd": [500.0], "bf16": [460.0]}, "bf16", "8 significant bits"),  # costs less
        ({"exact": [10.0], "bf16": [40.0], "exact_bf16": [39.0]}, "exact_bf16", "the same on any number of workers"),
        ({"exact": [10.0]}, "exact", "nothing that was measured is faster"),
    ],
)
def test_what_is_proposed(rates, chosen, why):
    """Only what is clearly faster, and of that what changes the result least; the price is said."""
    found, reason = propose(rates)
    assert found == chosen
    assert why in reason


def test_just_enough():
    """The bar itself counts; a hair below it does not."""
    assert propose({"exact": [100.0], "ddp": [100.0 * WORTHWHILE]})[0] == "ddp"
    assert propose({"exact": [100.0], "ddp": [100.0 * WORTHWHILE - 0.01]})[0] == "exact"


def test_every_way_can_be_typed_and_has_its_price():
    """The exact step costs nothing, and everything else changes the result."""
    assert command("digits", "exact") == "unisono train digits"
    assert command("digits", "bf16") == "unisono train digits --strategy ddp --comm-hook bf16"
    assert command("digits", "exact_int8") == "unisono train digits --compress int8"
    assert command("digits", "local_sgd") == "unisono train digits --strategy allreduce --sync-every 8"
    assert [name for name, way in WAYS.items() if not way.price] == ["exact"]
