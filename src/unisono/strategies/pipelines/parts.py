"""Who has which stage: the mesh of ranks, the model cut into stages, and what a rank keeps of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import nn
from torch.optim import Optimizer

from unisono.collectives.loopback import LoopbackTransport
from unisono.collectives.messages import Messages
from unisono.collectives.sub_transport import SubTransport
from unisono.errors import ConfigError
from unisono.strategies.parts.replica_buffers import num_counted
from unisono.strategies.pipelines.layers import costs_of, cut_layers, layers_of
from unisono.strategies.pipelines.options import PipelineOptions
from unisono.strategies.pipelines.stage import Stage

_ROW_TAG = 1 << 16


@final
@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks as processes of pipelines."""

    rank: int  #: This rank.
    width: int  #: Processes of one pipeline.
    pipelines: int  #: Pipelines side by side.
    num_stages: int  #: Stages of the model.

    @property
    def process(self) -> int:
        """The place of this rank in its pipeline."""
        return self.rank // self.pipelines

    @property
    def pipeline(self) -> int:
        """The pipeline of this rank."""
        return self.rank % self.pipelines

    def rank_of(self, process: int, pipeline: int) -> int:
        """Return the rank at a place."""
        return process * self.pipelines + pipeline

    def neighbour(self, stage: int) -> int:
        """Return the rank that has a stage of this rank's pipeline."""
        return self.rank_of(stage % self.width, self.pipeline)

    def columns(self) -> list[list[int]]:
        """Return, for each process of a pipeline, the ranks that have the same stages."""
        return [
            [self.rank_of(process, pipeline) for pipeline in range(self.pipelines)] for process in range(self.width)
        ]

    @property
    def chunks(self) -> int:
        """Stages of each process."""
        return self.num_stages // self.width


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One stage as every rank knows it."""

    layers: dict[str, nn.Module]  #: By name, in order.
    #: Of these layers, by their names in the model; the first stage also has those that nobody calls.
    parameters: dict[str, nn.Parameter]
    num_buffers: int  #: Of these layers.
    num_counted: int  #: Elements of those that travel in a step's report.

    def trainable(self) -> list[str]:
        """Return the names of the trainable parameters."""
        return [name for name, parameter in self.parameters.items() if parameter.requires_grad]


def cut_model(model: nn.Module, options: PipelineOptions) -> list[Part]:
    """Return the stages of a model.

    Raises:
        ConfigError: The model is no row of layers, has fewer layers than stages, or shares a parameter or buffer
            between stages.
    """
    layers = layers_of(model)
    names = list(layers)
    cuts = cut_layers(names, costs_of(layers), options.num_stages, options.cuts)
    owners: dict[int, int] = {}
    for stage, cut in enumerate(cuts):
        for name in names[cut.start : cut.stop]:
            for tensor in [*layers[name].parameters(), *layers[name].buffers()]:
                if owners.setdefault(id(tensor), stage) != stage:
                    raise ConfigError(
                        f"strategy pipeline: a parameter or buffer of {name!r} (stage {stage}) is also in stage "
                        f"{owners[id(tensor)]}; stages cannot share. Hint: --cuts that leave both in one stage."
                    )
    parameters: list[dict[str, nn.Parameter]] = [{} for _ in cuts]
    for name, parameter in model.named_parameters():
        parameters[owners.get(id(parameter), 0)][name] = parameter
    found = [{id(b): b for name in names[cut.start : cut.stop] for b in layers[name].buffers()} for cut in cuts]
    return [
        Part(
            layers={name: layers[name] for name in names[cut.start : cut.stop]},
            parameters=parameters[stage],
            num_buffers=len(found[stage]),
            num_counted=num_counted(found[stage].values()),
        )
        for stage, cut in enumerate(cuts)
    ]


def claim(parts: Sequence[Part], mesh: Mesh, messages: Messages | None) -> dict[int, Stage]:
    """Return the stages of this rank, by index."""
    row: LoopbackTransport | SubTransport = LoopbackTransport()
    if messages is not None and mesh.pipelines > 1:
        row = SubTransport(messages, mesh.columns()[mesh.process], _ROW_TAG)
    return {
        index: Stage(index, parts[index].layers, parts[index].parameters, row)
        for index in range(mesh.process, len(parts), mesh.width)
    }


def release(parameters: Sequence[nn.Parameter], optimizer: Optimizer) -> None:
    """Give the memory of parameters and of their optimizer state back; what is left has their shapes, and is NaN."""
    for parameter in parameters:
        is_float = parameter.is_floating_point() or parameter.is_complex()
        nothing = torch.full((), math.nan if is_float else 0, dtype=parameter.dtype, device=parameter.device)
        parameter.grad = None
        parameter.data = nothing.expand(parameter.shape)
        optimizer.state.pop(parameter, None)
