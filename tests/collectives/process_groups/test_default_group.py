"""The default process group: ended by whom it belongs to, and its errors in our words."""

import re

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from unisono.collectives.process_groups.default_group import GroupOwner, lost_peers_named
from unisono.errors import PeerLost


def test_only_the_owner_ends_the_group():
    """Whoever has joined a group leaves it as it is; whoever has made it ends it, once."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    owner, guest = GroupOwner(owns_group=True), GroupOwner(owns_group=False)
    try:
        guest.close()
        assert dist.is_initialized()
    finally:
        owner.close()
    assert not dist.is_initialized()
    owner.close()


def test_errors_of_the_group_name_rank_operation_and_culprit():
    """The last line of torch's error stays; other errors are not ours to translate."""
    words = r"\[rank 1/4\] recv failed: that rank has died.*\(connection reset\)"
    with pytest.raises(PeerLost, match=words) as caught, lost_peers_named(1, 4, "recv", "that rank"):
        raise RuntimeError("long\nconnection reset\n")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(KeyError), lost_peers_named(1, 4, "recv"):
        raise KeyError("mine")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), torch.AcceleratorError("illegal access"),
              RuntimeError("NCCL error: invalid usage (run with NCCL_DEBUG=WARN for details)")],
)  # fmt: skip
def test_what_is_this_ranks_own_is_not_blamed_on_others(error):
    """Out of memory, a kernel that failed before, a call that NCCL refuses: the error itself comes through."""
    with pytest.raises(type(error), match=re.escape(str(error))), lost_peers_named(0, 2, "all_gather"):
        raise error
    with pytest.raises(PeerLost, match="all_gather failed"), lost_peers_named(0, 2, "all_gather"):
        raise RuntimeError("Connection closed by peer")
