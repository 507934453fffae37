"""Components on many ranks: counts instead of averages of averages, functions for one rank, places that are checked.

    python examples/tour/components.py

It takes a second; all ranks run inside this process. A whole training in this style: examples/easytext_style.py.
"""

from typing import Any

import torch

import unisono
from unisono.metrics.exchange import merge_over_ranks

RIGHT = torch.tensor([1, 1, 1, 1, 0, 1, 1])  # seven samples, six of them classified right


def scores(transport: Any) -> tuple[float, float]:
    """Return the accuracy over all ranks, and this rank's own; the first rank has five samples, the second two."""
    mine = RIGHT[:5] if transport.rank == 0 else RIGHT[5:]
    metric = unisono.Accuracy()
    metric.update(torch.nn.functional.one_hot(mine, 2).float(), torch.ones(len(mine), dtype=torch.int64))
    own = metric.compute()
    return merge_over_ranks({"accuracy": metric}, transport)["accuracy"], own


def places(transport: Any) -> str:
    """Call a collective where only one rank is: an error says so; other programs wait for ever."""
    run = unisono.Run(transport=transport, replicas=2)

    @unisono.on_rank(1)
    def lonely() -> None:
        run.transport.barrier()

    try:
        return repr(lonely())
    except unisono.PlaceError as error:
        return str(error)
    finally:
        run.close()


class Careless:
    """A component that does not declare where it runs."""


def refused(transport: Any) -> str:
    """Components that cannot run on several ranks are refused before the first step."""
    run = unisono.Run(transport=transport, replicas=2)
    model = torch.nn.Linear(2, 2)
    try:
        unisono.Trainer(run, model, torch.optim.SGD(model.parameters(), lr=1), loss=torch.nn.MSELoss(), metrics={
            "mine": Careless(),  # type: ignore[dict-item]
        })  # fmt: skip
    except unisono.PlaceError as error:
        return str(error)
    finally:
        run.close()
    return "nothing was refused"


if __name__ == "__main__":
    merged, owns = zip(*unisono.run_ranks(scores, 2), strict=True)
    average = sum(owns) / 2
    print(f"by counts {merged[0]:.4f} on both ranks, average of averages {average:.4f}, truth {6 / 7:.4f}")
    assert merged == (6 / 7, 6 / 7) != (average, average)
    told = unisono.run_ranks(places, 2)
    print(told)
    assert told[0] == "NotHere()"
    assert "the other ranks would never answer" in told[1]
    told = unisono.run_ranks(refused, 2)
    print(told[0])
    assert "does not say where it runs" in told[0]
