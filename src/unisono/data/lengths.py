"""Batches of texts of similar length, as a pure function of (lengths, seed, epoch, step) (pure).

An epoch's random order is cut into pools of some batches. Within a pool the samples are sorted by length and cut into
batches, and the batches change places at random. Each sample still comes exactly once per epoch, and any step is known
from its number alone: only its pool is ever looked at. Imports NumPy only.
"""

import numpy as np
import numpy.typing as npt

from unisono.collectives.placement import cut

Indices = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.int64]


def arrange_pool(pool: Indices, lengths: Lengths, batch_size: int, rank_of_batch: Indices) -> Indices:
    """Return `pool` in batches of similar length.

    Args:
        pool: int64 (n,): samples, in their random order, which decides between equal lengths.
        lengths: int64, by sample number.
        batch_size: Samples per batch; the last batch may be short and keeps its place.
        rank_of_batch: int64 (n // batch_size,): a permutation; batch i of the sorted pool goes to this place.

    Returns:
        int64 (n,): the same samples.
    """
    ordered = pool[np.argsort(lengths[pool], kind="stable")]
    num_full = len(pool) // batch_size
    # What does not fill a batch is taken from the middle: the short batch is neither of the shortest nor the longest.
    rest = len(pool) - num_full * batch_size
    middle = (len(pool) - rest) // 2
    tail = ordered[middle : middle + rest]
    full = np.concatenate([ordered[:middle], ordered[middle + rest :]]).reshape(num_full, batch_size)
    placed = np.empty_like(full)
    placed[rank_of_batch] = full
    return np.concatenate([placed.reshape(-1), tail])


def deal(batch: Indices, lengths: Lengths, replicas: int) -> Indices:
    """Return `batch` so that its contiguous micro-batches (`placement.cut`) have about equal total lengths.

    The longest is dealt first, there and back over the replicas, like cards.
    """
    ordered = batch[np.argsort(-lengths[batch], kind="stable")]
    rounds = [ordered[start : start + replicas] for start in range(0, len(ordered), replicas)]
    # A round that is not full goes to the first replicas, whose micro-batches are one longer.
    turned = [row if number % 2 == 0 or len(row) < replicas else row[::-1] for number, row in enumerate(rounds)]
    parts = cut(len(batch), replicas)
    dealt = np.empty_like(batch)
    for replica, part in enumerate(parts):
        dealt[part.start : part.stop] = [row[replica] for row in turned if replica < len(row)]
    return dealt


def evaluation_order(lengths: Lengths, batch_size: int) -> Indices:
    """Return an order whose consecutive batches hold samples of similar length, shared out evenly over ranks.

    Ranks take contiguous runs of batches; so the sorted batches stand in bit-reversed order, in which every run holds
    short and long ones alike. A short last batch holds the longest samples.
    """
    ordered = np.argsort(lengths, kind="stable")
    num_full = len(ordered) // batch_size
    full = ordered[: num_full * batch_size].reshape(num_full, batch_size)
    bits = max(1, num_full - 1).bit_length()
    turned = [int(f"{number:0{bits}b}"[::-1], 2) for number in range(1 << bits)]
    places = np.array([number for number in turned if number < num_full], dtype=np.int64)
    return np.concatenate([full[places].reshape(-1), ordered[num_full * batch_size :]])
