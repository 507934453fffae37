"""What can be told to ``unisono forecast`` about a job and a machine (pure); times and rates are texts."""

from dataclasses import dataclass
from typing import final

from unisono.options.fields import option
from unisono.options.quantities import BATCH, ELEMENT_BYTES, FRACTION, JITTER, PARAMETERS, RANKS, RATE, REPLICAS, STEPS

TIME, BANDWIDTH = "TIME", "RATE"
"""What ``--help`` calls a time such as 12ms and a rate such as 400Gb/s; they are read as such."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ForecastOptions:
    """Options of a forecast; each field says what it is."""

    parameters: float | None = option(
        None, "Of the model; 4 bytes each unless --parameter-bytes.", of=PARAMETERS, word="P"
    )
    parameter_bytes: float = option(4, "Of a gradient's element.", of=ELEMENT_BYTES, word="B")
    sample_time: str | None = option(None, "Forward and backward of a sample on one rank: 12ms.", word=TIME)
    batch_size: int | None = option(
        None, "Samples per step over all ranks; with --weak, of each rank.", of=BATCH, word="B"
    )
    replicas: int | None = option(None, "Micro-batches of a step.", of=REPLICAS, word="V", usual="one for each rank")
    update_time: str | None = option(None, "Optimizer.", word=TIME, usual="0")
    jitter: float | None = option(None, "Spread of a rank's compute time over its mean.", of=JITTER, usual="0")
    overlap: float | None = option(
        None, "Part of the backward pass beside which communication goes on.", of=FRACTION, usual="0"
    )
    data_rate: float | None = option(None, "Samples a second that storage gives to all ranks.", of=RATE)
    servers: int | None = option(None, "Parameter servers.", of=RANKS, usual="1")
    steps: int | None = option(None, "Steps of the whole run: adds its time, launch and failures.", of=STEPS)
    launch_time: str | None = option(None, "Until the first step.", word=TIME, usual="0")
    launch_rank_time: str | None = option(None, "More of it for each rank.", word=TIME, usual="0")
    weak: bool = option(False, "The batch grows with the ranks.")
    node_size: int | None = option(None, "Ranks of a node.", of=RANKS, word="L", usual="8")
    nics: int | None = option(None, "Network cards of a node.", of=RANKS, usual="one for each rank")
    inside: str | None = option(None, "Of a rank inside its node.", word=BANDWIDTH, usual="450GB/s")
    inside_latency: str | None = option(None, word=TIME, usual="3us")
    between: str | None = option(
        None, "Of a network card: 400Gb/s (bits) or 50GB/s (bytes).", word=BANDWIDTH, usual="400Gb/s"
    )
    between_latency: str | None = option(None, word=TIME, usual="5us")
    overhead: str | None = option(None, "Of a port for each message.", word=TIME, usual="1us")
    add_rate: str | None = option(None, "Gradients added on a rank.", word=BANDWIDTH, usual="1000GB/s")
    mtbf: str | None = option(None, "Mean time between failures of one rank: 50000h.", word=TIME)
    checkpoint_time: str | None = option(None, "Training time that a checkpoint costs.", word=TIME, usual="10s")
    restart_time: str | None = option(None, "From a failure to the next step.", word=TIME, usual="60s")
    data: str | None = option(None, "RECIPE's data.", is_path=True)
