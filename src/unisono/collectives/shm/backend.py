"""``shm``: a torch.distributed backend for CPU ranks of one host, over shared memory.

Importing this module is enough for ``dist.init_process_group("shm")``. DDP and the functions of `torch.distributed`
work on it unchanged; `operations` says what is computed and in which order. Synchronous operations run in the calling
thread; asynchronous ones follow one another in a thread of the group, and messages in one thread for each peer and
direction. Inside a backward pass (DDP's buckets) an operation runs at once: on a CPU it needs the same cores, and its
error reaches the user as it is.

torch 2.13 takes a process group written in Python for all devices: `_new_process_group_helper` returns the first one
and makes none for the other devices; and its own groups dispatch in C++ to backends that Python cannot subclass. So
``"cpu:shm,cuda:nccl"`` is refused at the first operation.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from unisono.collectives.shm.autotune import settle_plan
from unisono.collectives.shm.board import as_bytes
from unisono.collectives.shm.join import share_memory
from unisono.collectives.shm.operations import Collectives, describe, flat_of, store_into
from unisono.collectives.shm.transport import SLOT_BYTES, ShmTransport
from unisono.collectives.shm.work import Lane, ShmWork, Task, is_in_backward
from unisono.environment import default_cache
from unisono.errors import ConfigError

NAME = "shm"
# torch's stub lists several ways to call each method; torch.distributed and DDP use the one with options.
# mypy: disable-error-code="override"

_OPERATORS = tuple(
    (name, getattr(dist.ReduceOp, name)) for name in ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
)


@final
class ShmProcessGroup(dist.ProcessGroup):
    """Joins the ranks of one host; made by torch through `register`, on all ranks at the same time.

    Raises:
        WorldError: The ranks share no memory.
        PeerLost: The other ranks did not come in time.
    """

    def __init__(self, store: Store, rank: int, world_size: int, timeout_s: float, name: str = "") -> None:
        super().__init__(rank, world_size)  # type: ignore[call-arg]  # the one way for Python's subclasses
        # torch's own groups keep these in C++, in the backends that a group written in Python does not have.
        self._store, self._name = store, name
        self._board, self._mailbox = share_memory(store, rank, world_size, timeout_s, SLOT_BYTES)
        if world_size > 1:
            settle_plan(ShmTransport(self._board, None), default_cache())
        self._operations = Collectives(self._board)
        self._lane = Lane("shm-collectives")
        self._mail_lanes: dict[tuple[str, int], Lane] = {}
        self._is_checked = False

    @property
    def group_name(self) -> str:
        """Return the name that torch has given the group; it outlives the group, whose destruction asks for it."""
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        """Return the devices whose tensors the group carries: torch's checkpoints ask before they begin."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        """Return what carries a device's tensors: for the CPU the group itself."""
        return self if torch.device(device).type == "cpu" else super()._get_backend(device)

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return NAME

    def get_group_store(self) -> Store:
        """Return the store that the ranks of the group share."""
        return self._store

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> ShmWork:
        """Combine tensors of all ranks on all ranks."""
        opts = opts or dist.AllreduceOptions()
        op, operations = _operator(opts), self._operations

        def job() -> None:
            for tensor in tensors:
                operations.all_reduce(tensor, op)

        return self._run("all_reduce", job, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> ShmWork:
        """Combine tensors of all ranks on the root."""
        op, root = _operator(opts), opts.rootRank
        return self._run("reduce", _each(self._operations.reduce, tensors, root=root, op=op), tensors, opts)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> ShmWork:
        """Give all ranks the root's tensors."""
        root = opts.rootRank
        return self._run("broadcast", _each(self._operations.broadcast, tensors, root=root), tensors, opts)

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> ShmWork:
        """Give all ranks the tensors of all ranks."""
        done = [tensor for out in outputs for tensor in out]
        return self._run("all_gather", _each(self._operations.all_gather, outputs, inputs), done, opts, inputs)

    def allgather_coalesced(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> ShmWork:
        """See `allgather`; torch's lists are the other way round: one list for each rank."""
        return self.allgather([list(of_input) for of_input in zip(*outputs, strict=True)], inputs, opts)

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> ShmWork:
        """Give all ranks the tensors of all ranks, each set in one tensor."""
        act = _each(self._operations.all_gather_single, outputs, inputs)
        return self._run("all_gather_single", act, outputs, opts, inputs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ShmWork:
        """Give all ranks the tensors of all ranks in one tensor."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> ShmWork:
        """Give the root the tensors of all ranks."""
        outs, root = outputs[0] if outputs else [], opts.rootRank
        return self._run("gather", lambda: self._operations.gather(inputs[0], outs, root), outs, opts, inputs)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> ShmWork:
        """Give each rank its part of the root's list."""
        parts, root = inputs[0] if inputs else [], opts.rootRank
        return self._run("scatter", lambda: self._operations.scatter(outputs[0], parts, root), outputs, opts, parts)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> ShmWork:
        """Combine the lists of all ranks, and give each rank its part."""
        opts = opts or dist.ReduceScatterOptions()
        used = [tensor for parts in inputs for tensor in parts]
        act = _each(self._operations.reduce_scatter, outputs, inputs, op=_operator(opts))
        return self._run("reduce_scatter", act, outputs, opts, used)

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> ShmWork:
        """Combine the tensors of all ranks, and give each rank its part."""
        opts = opts or dist.ReduceScatterOptions()
        act = _each(self._operations.reduce_scatter_single, outputs, inputs, op=_operator(opts))
        return self._run("reduce_scatter_single", act, outputs, opts, inputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> ShmWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> ShmWork:
        """Send part j to rank j."""
        return self._run("all_to_all", lambda: self._operations.all_to_all(outputs, inputs), outputs, opts, inputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_splits: list[int], input_splits: list[int], opts: Any = None
    ) -> ShmWork:
        """Send part j of the first dimension to rank j; no splits mean equal parts."""
        parts, targets = _cut(input, input_splits, self.size()), _cut(output, output_splits, self.size())
        return self._run("all_to_all", lambda: self._operations.all_to_all(targets, parts), [output], opts, [input])

    # As torch called them before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]
    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def barrier(self, opts: Any = None) -> ShmWork:
        """Wait for all ranks."""
        return self._run("barrier", self._operations.barrier, [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """Wait for all ranks, at most `timeout`; the error names all that have not come, and ends the group's use."""
        board = self._board

        def wait() -> None:
            usual = board.timeout_s
            board.timeout_s = timeout.total_seconds() if timeout else usual
            try:
                self._operations.barrier()
            finally:
                board.timeout_s = usual

        self._lane.do(wait, ShmWork("monitored_barrier", []), in_background=False)

    def send(self, tensors: list[Tensor], target: int, tag: int) -> ShmWork:
        """Send a tensor to one rank; at once where it has room, else in the background."""
        self._check(tensors)
        flat, lane = as_bytes(flat_of(tensors[0])), self._mail_lane("send", target)
        what = describe(tensors)
        fits = lane.is_idle and self._mailbox.can_send(target, len(flat))
        work = ShmWork(f"send to rank {target}", tensors)
        return lane.do(lambda: self._mailbox.send(flat, target, tag, what), work, in_background=not fits)

    def recv(self, tensors: list[Tensor], source: int, tag: int) -> ShmWork:
        """Receive a tensor from one rank; at once where it lies there, else in the background."""
        self._check(tensors)
        flat, lane = flat_of(tensors[0]), self._mail_lane("recv", source)
        what = describe(tensors)

        def receive() -> None:
            self._mailbox.receive(as_bytes(flat), source, tag, what)
            store_into(flat, tensors[0])

        work = ShmWork(f"recv from rank {source}", tensors)
        # To hand a small message to a thread and back costs more than to wait for it for a moment.
        has_come = lane.is_idle and self._mailbox.can_receive_soon(source, flat.nbytes)
        return lane.do(receive, work, in_background=not has_come)

    def recv_anysource(self, tensors: list[Tensor], tag: int) -> ShmWork:
        """Refuse: messages lie in one ring for each sender, and are waited for there."""
        raise ConfigError("shm cannot receive from any source. Hint: name it, as in dist.recv(tensor, src=0).")

    def shutdown(self) -> None:
        """Leave the group: end its threads after what they have been given."""
        lanes = [self._lane, *self._mail_lanes.values()]
        for lane in lanes:
            lane.close()
        # A thread that still waits for a peer looks at what would be closed; the process's end closes it then.
        if all(lane.is_idle for lane in lanes):
            self._board.close()
            self._mailbox.close()

    def abort(self) -> None:
        """Leave the group without waiting; see `shutdown`."""
        self.shutdown()

    def _run(self, name: str, job: Task, outputs: list[Tensor], opts: Any, inputs: Sequence[Tensor] = ()) -> ShmWork:
        self._check([*outputs, *inputs] if inputs else outputs)
        is_asynchronous = getattr(opts, "asyncOp", True) and not is_in_backward()
        return self._lane.do(job, ShmWork(name, outputs), in_background=is_asynchronous)

    def _mail_lane(self, direction: str, peer: int) -> Lane:
        if not 0 <= peer < self.size() or peer == self.rank():
            raise ConfigError(f"expected another rank from 0 to {self.size() - 1}, got {direction} with rank {peer}.")
        lane = self._mail_lanes.get((direction, peer))
        if lane is None:
            lane = self._mail_lanes[direction, peer] = Lane(f"shm-{direction}-{peer}")
        return lane

    def _check(self, tensors: Sequence[Tensor]) -> None:
        if not self._is_checked:
            self._check_alone()
        for tensor in tensors:
            if not tensor.is_cpu or tensor.layout is not torch.strided:
                raise ConfigError(
                    f"shm carries dense tensors on the CPU, got {tensor.layout} on {tensor.device}. Hint: for other "
                    'devices make a group of its own, as in dist.new_group(backend="nccl").'
                )

    def _check_alone(self) -> None:
        """Refuse to be one of several backends: torch has not made the others, see above."""
        config = dist.distributed_c10d._world.pg_backend_config.get(self, "")
        others = [part for part in str(config).split(",") if part and not part.startswith("cpu:")]
        if others:
            raise ConfigError(
                f"the process group was asked for as {config!r}, but torch makes none for {', '.join(others)} beside "
                'a backend written in Python. Hint: dist.init_process_group("nccl") for CUDA tensors, and '
                'dist.new_group(backend="shm") for a group of CPU tensors.'
            )
        self._is_checked = True


def register() -> None:
    """Make ``shm`` known to torch.distributed; importing this module does it."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> ShmProcessGroup:
    rank, world_size, timeout_s = options.group_rank, options.group_size, options.timeout.total_seconds()
    return ShmProcessGroup(options.store, rank, world_size, timeout_s, name=str(options.group_id))


def _each(act: Callable[..., None], *lists: Sequence[Any], **same: Any) -> Task:
    def job() -> None:
        for arguments in zip(*lists, strict=True):
            act(*arguments, **same)

    return job


def _operator(opts: Any) -> str:
    wanted = opts.reduceOp
    for name, operator in _OPERATORS:
        if wanted == operator:
            return name
    raise ConfigError(
        f"expected one of the operators {', '.join(name for name, _ in _OPERATORS)}, got {opts.reduceOp!r}."
    )


def _cut(tensor: Tensor, splits: list[int], world_size: int) -> list[Tensor]:
    if splits:
        return list(tensor.split(splits))
    if tensor.dim() == 0 or len(tensor) % world_size:
        raise ConfigError(
            f"expected a first dimension that {world_size} ranks can share equally, got {tuple(tensor.shape)}."
        )
    return list(tensor.split(len(tensor) // world_size)) if len(tensor) else [tensor] * world_size


register()
