"""A pipeline in evaluation: every process has a batch of its own, and all batches go through all stages."""

from typing import Any, final

import torch
from torch import Tensor

from unisono.collectives.messages import Messages
from unisono.errors import StepError
from unisono.strategies.parts.streams import capture, restore
from unisono.strategies.pipelines.executor import autocast_now, cached_plan, under
from unisono.strategies.pipelines.parts import Mesh
from unisono.strategies.pipelines.stage import Stage
from unisono.strategies.pipelines.wire import Parcel, Wire, parcel_of

_INPUT_TAG, _OUTPUT_TAG = 1 << 17, 1 << 18


@final
class Reader:
    """Calls the model without gradients."""

    def __init__(self, stages: dict[int, Stage], mesh: Mesh, device: torch.device, messages: Messages | None) -> None:
        self._stages, self._mesh, self._device = stages, mesh, device
        self._wire = None if messages is None else Wire(messages, device)

    @torch.no_grad()
    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model returns for this rank's input; collective among the processes of a pipeline.

        Random streams go with the batch, so that what the model draws does not depend on which rank computes it.

        Raises:
            StepError: Inputs that are not tensors by position, where they must travel.
        """
        if self._wire is None or self._mesh.width == 1:
            value = self._stages[0].run(*args, **kwargs)
            for index in range(1, self._mesh.num_stages):
                value = self._stages[index].run_on(parcel_of(value, index - 1))
            return value
        if kwargs or not args or not all(isinstance(value, Tensor) for value in args):
            raise StepError(
                "strategy pipeline: in evaluation the model's inputs travel to the first stage, so they must be "
                f"tensors, given by position; got {', '.join(type(value).__name__ for value in args)}"
                f"{' and keywords ' + ', '.join(kwargs) if kwargs else ''}."
            )
        own = Parcel(tensors=args, is_single=False, streams=capture(self._device), autocast=autocast_now(self._device))
        answer = self._execute(own)
        self._wire.flush()
        restore(answer.streams, self._device)
        return answer.tensors[0] if answer.is_single else answer.tensors

    def _execute(self, own: Parcel) -> Parcel:
        """Do this rank's forward moves for the inputs of all processes, and return the output for its own."""
        assert self._wire is not None
        mesh, last, answer = self._mesh, self._mesh.num_stages - 1, None
        if mesh.process:
            self._wire.send(own, mesh.rank_of(0, mesh.pipeline), _INPUT_TAG + mesh.process)
        for action in cached_plan("gpipe", mesh.width, mesh.chunks, mesh.width)[mesh.process]:
            if action.direction == "backward":
                continue
            asker = mesh.rank_of(action.micro, mesh.pipeline)
            if action.stage:
                arrived = self._wire.receive(mesh.neighbour(action.stage - 1), 2 * action.stage)
            else:
                arrived = self._wire.receive(asker, _INPUT_TAG + action.micro) if action.micro else own
            stage = self._stages[action.stage]
            restore(arrived.streams, self._device)
            with under(arrived.autocast, self._device):
                output = stage.run_on(arrived) if action.stage else stage.run(*arrived.tensors)
            parcel = parcel_of(output, action.stage, streams=capture(self._device), autocast=arrived.autocast)
            if action.stage < last:
                self._wire.send(parcel, mesh.neighbour(action.stage + 1), 2 * (action.stage + 1))
            elif action.micro == mesh.process:
                answer = parcel
            else:
                self._wire.send(parcel, asker, _OUTPUT_TAG)
        return answer or self._wire.receive(mesh.neighbour(last), _OUTPUT_TAG)
