"""What torch itself builds on process groups works on `shm`: meshes, DTensor, FSDP, distributed checkpoints."""

import pytest

from collectives.sharded_programs import USES, play_sharded
from forks import run_forked


@pytest.mark.slow
def test_what_torch_builds_on_groups(tmp_path):
    """Two ranks get what one process gets, and read back what they have saved, also in the background."""
    for seen in run_forked(play_sharded, 2, str(tmp_path)):
        assert seen == {name: [] for name in USES}
