"""A machine with GPUs, as far as a launcher looks: a stand-in for nvidia-smi, and a torch that is not called CPU-only.

No GPU is used: what is seen is which ones the worker processes are told of.
"""

import os
import sys
from pathlib import Path

# Every Python that is a rank notes what it was told; loaded by site at its start.
_NOTE = """\
import os
if "RANK" in os.environ:
    with open(os.path.join({folder!r}, "rank-" + os.environ["RANK"]), "w") as file:
        file.write(os.environ.get("CUDA_VISIBLE_DEVICES", "unset") + " " + os.environ.get("UNISONO_SHARE_DEVICES", ""))
"""


def pretend_gpus(folder: Path, count: int, visible: str | None = None) -> dict[str, str]:
    """Return variables with which a launcher finds GPUs.

    Args:
        folder: For the stand-ins, and for what the ranks are told.
        count: Of the machine.
        visible: ``CUDA_VISIBLE_DEVICES``; None: all of them.
    """
    found = folder / "gpus"
    (found / "torch-2.13.0.dist-info").mkdir(parents=True)
    (found / "torch-2.13.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n")
    (found / "sitecustomize.py").write_text(_NOTE.format(folder=str(found)))
    tool = found / "nvidia-smi"
    lines = "\n".join(f"GPU {index}: Stand-in (UUID: GPU-{index}f00)" for index in range(count))
    tool.write_text(f"#!{sys.executable}\nprint({lines!r})\n")
    tool.chmod(0o755)
    everything = ",".join(map(str, range(count)))
    return {
        "PATH": f"{found}:{os.environ['PATH']}",
        "PYTHONPATH": str(found),
        "CUDA_VISIBLE_DEVICES": everything if visible is None else visible,
    }


def told(folder: Path) -> list[str]:
    """Return what the ranks were told, in their order: the visible GPUs, and 1 where they share."""
    return [path.read_text().strip() for path in sorted((folder / "gpus").glob("rank-*"))]


def forget(folder: Path) -> None:
    """Make ready for the next launch."""
    for path in (folder / "gpus").glob("rank-*"):
        path.unlink()
