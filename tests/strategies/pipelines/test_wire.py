"""Parcels between stages: every shape, layout and dtype comes as it was."""

import pytest
import torch

from unisono.collectives.loopback import run_ranks
from unisono.errors import StepError
from unisono.strategies.pipelines.wire import Parcel, Wire, parcel_of

TENSORS = [
    torch.randn(3, 4, 5, 6).to(memory_format=torch.channels_last), torch.randn(4, 6).t(), torch.randn(8, 8)[:, ::2],
    torch.tensor(2.5, dtype=torch.float64), torch.arange(5), torch.tensor([True, False]), torch.empty(0, 3),
    torch.randn(3, dtype=torch.complex64).conj(), torch.randn(7, dtype=torch.bfloat16), torch.randn(5)[2:], None,
]  # fmt: skip


def test_tensors_come_with_their_bits_shapes_strides_and_wish_for_gradients():
    """Dense layouts are kept, others become contiguous; several parcels with one tag come in order."""
    sent = [None if t is None else t.detach().clone(memory_format=torch.preserve_format) for t in TENSORS]
    sent[0].requires_grad_()
    parcels = [
        Parcel(tensors=tuple(sent), is_single=False, streams=b"abc", autocast="bfloat16"), Parcel(tensors=(sent[1],)),
    ]  # fmt: skip

    def program(transport):
        wire = Wire(transport.messages(), torch.device("cpu"))
        if transport.rank == 0:
            for parcel in parcels:
                wire.send(parcel, 1, 5)
            wire.flush()
            return wire.bytes_sent
        return [wire.receive(0, 5) for _ in parcels]

    num_bytes, arrived = run_ranks(program, 2)
    assert num_bytes > sum(t.nbytes for t in sent if t is not None)
    for parcel, expected in zip(arrived, parcels, strict=True):
        assert (parcel.is_single, parcel.streams, parcel.autocast) == (
            expected.is_single, expected.streams, expected.autocast,
        )  # fmt: skip
        for found, tensor in zip(parcel.tensors, expected.tensors, strict=True):
            if tensor is None:
                assert found is None
                continue
            assert torch.equal(found, tensor) and found.dtype == tensor.dtype
            assert found.requires_grad == tensor.requires_grad and found.is_leaf
    assert arrived[0].tensors[0].is_contiguous(memory_format=torch.channels_last)
    assert arrived[0].tensors[1].stride() == sent[1].stride() == (1, 6)


def test_only_tensors_travel():
    """One, or a tuple of them; anything else is named."""
    assert parcel_of(torch.ones(2), 0).is_single
    assert not parcel_of((torch.ones(2), torch.ones(3)), 0).is_single
    with pytest.raises(StepError, match=r"stage 2 of the pipeline returns dict \(dict\).*--cuts elsewhere"):
        parcel_of({"x": torch.ones(1)}, 2)
    with pytest.raises(StepError, match=r"returns tuple \(Tensor, int\)"):
        parcel_of((torch.ones(1), 3), 1)
    many = Parcel(tensors=tuple(torch.ones(1) for _ in range(99)))
    with pytest.raises(StepError, match="99 tensors"):
        run_ranks(lambda t: Wire(t.messages(), torch.device("cpu")).send(many, 1 - t.rank, 0), 2)
