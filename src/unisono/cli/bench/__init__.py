"""``unisono bench``: measure scaling, collectives, strategies and links on this machine; one file a measurement."""

import click

from unisono.cli.options.lazy import LazyGroup

MEASUREMENTS = {
    "collectives": "Time collectives over message sizes, or explain one.",
    "links": "Measure what slow links cost; propose compression or local SGD.",
    "scaling": "Time a recipe or script on several numbers of workers.",
    "strategies": "Train a recipe with every strategy and compare.",
    "tune": "Propose workers, threads, loader processes and bucket size.",
}


@click.group(cls=LazyGroup, entries=MEASUREMENTS, module="unisono.cli.bench.{}", noun="measurement")
def bench() -> None:
    """Measure this machine.

    Exit code: 0 when everything was measured; see each command.
    """
