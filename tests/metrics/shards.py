"""One data set dealt out to ranks in uneven, contiguous runs of batches, and what a metric says of it on each."""

import json
from itertools import pairwise

from unisono.collectives.loopback import run_ranks
from unisono.metrics.exchange import merge_over_ranks

# Where the ranks' runs of batches end, as shares of all batches: uneven, and a rank without any.
CUTS = {1: [1.0], 2: [0.7, 1.0], 3: [0.1, 0.1, 1.0], 4: [0.5, 0.6, 0.95, 1.0]}
WORLDS = sorted(CUTS)


def batches(outputs, targets, batch_size=7):
    """Return the batches of a data set, the last one short."""
    return [
        (outputs[first : first + batch_size], targets[first : first + batch_size])
        for first in range(0, len(targets), batch_size)
    ]


def over_ranks(make, outputs, targets, world_size, batch_size=7):
    """Return what every rank computes together with the others: (states, values as exact text), in rank order."""
    everything = batches(outputs, targets, batch_size)
    bounds = [0, *(round(share * len(everything)) for share in CUTS[world_size])]

    def program(transport):
        metric = make()
        metric.reset()
        first, last = list(pairwise(bounds))[transport.rank]
        for output, target in everything[first:last]:
            metric.update(output, target)
        found = merge_over_ranks({"it": metric}, transport)
        return metric.state, json.dumps({name: value.hex() for name, value in found.items()})

    return run_ranks(program, world_size)


def same_everywhere(make, outputs, targets, batch_size=7):
    """Return a metric's value after checking that state and value are one on every rank of every world."""
    expected = over_ranks(make, outputs, targets, 1, batch_size)[0]
    for world_size in WORLDS[1:]:
        assert over_ranks(make, outputs, targets, world_size, batch_size) == [expected] * world_size
    metric = make()
    metric.state = expected[0]
    return metric.compute()
