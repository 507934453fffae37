"""The process-wide random streams as bytes: so that a model cut in two draws what it draws in one piece."""

import random

import numpy as np
import torch
from torch import nn

from unisono.determinism import devices

_NUMPY_BYTES = 624 * 4 + 4 + 4 + 8
_PYTHON_BYTES = 625 * 4 + 1 + 8


def capture(device: torch.device) -> bytes:
    """Return the states of torch's, NumPy's and Python's generators, and of the device's own."""
    _, keys, place, has_gauss, cached = np.random.get_state(legacy=True)
    _, words, gauss = random.getstate()
    parts = [
        np.asarray(keys, dtype="<u4").tobytes(),
        np.array([place, has_gauss], dtype="<i4").tobytes(),
        np.array([cached], dtype="<f8").tobytes(),
        np.array(words, dtype="<u4").tobytes(),
        bytes([gauss is not None]),
        np.array([gauss or 0.0], dtype="<f8").tobytes(),
        torch.get_rng_state().numpy().tobytes(),
    ]
    if devices.is_gpu(device):
        parts.append(devices.generator_state(device).numpy().tobytes())
    return b"".join(parts)


def restore(streams: bytes, device: torch.device) -> None:
    """Put back what `capture` has returned, here or in another process."""
    keys = np.frombuffer(streams, "<u4", 624)
    place, has_gauss = np.frombuffer(streams, "<i4", 2, 624 * 4).tolist()
    cached = float(np.frombuffer(streams, "<f8", 1, 624 * 4 + 8)[0])
    np.random.set_state(("MT19937", keys, place, has_gauss, cached))
    rest = streams[_NUMPY_BYTES:]
    words = tuple(np.frombuffer(rest, "<u4", 625).tolist())
    gauss = float(np.frombuffer(rest, "<f8", 1, 625 * 4 + 1)[0]) if rest[625 * 4] else None
    random.setstate((3, words, gauss))
    states = torch.frombuffer(bytearray(rest[_PYTHON_BYTES:]), dtype=torch.uint8)
    size = torch.get_rng_state().numel()
    torch.set_rng_state(states[:size].clone())
    if devices.is_gpu(device):
        devices.set_generator_state(device, states[size:].clone())


def key_rnns(model: nn.Module) -> None:
    """Let every RNN with dropout draw by those streams alone on GPUs, however many others have been called before."""
    for part in model.modules():
        if isinstance(part, nn.RNNBase) and part.dropout and _begin_anew not in part._forward_pre_hooks.values():
            part.register_forward_pre_hook(_begin_anew)


def _begin_anew(rnn: nn.Module, _: object) -> None:
    weights = rnn.weight_hh_l0
    if rnn.training and isinstance(weights, torch.Tensor) and devices.is_gpu(weights.device):
        devices.begin_rnn_anew(weights.device)
