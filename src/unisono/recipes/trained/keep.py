"""The callback by which every recipe's run tells how its model is used."""

import sys
from typing import final

import unisono
from unisono import callbacks
from unisono.recipes.trained.model_file import ModelFile


@final
class KeepModelFile(unisono.Callback):
    """Write ``model.json`` as soon as the run directory is this run's; with `is_told`, show the classes."""

    runs_on, draws = "leader", False

    def __init__(self, file: ModelFile, *, is_told: bool) -> None:
        self._file, self._is_told = file, is_told

    def on_run_start(self, loop: callbacks.Loop) -> None:
        self.keep(loop.run)
        if self._is_told:
            sys.stderr.write(f"{len(self._file.classes)} classes: {self._file.listed_classes()}\n")

    def keep(self, run: unisono.Run) -> None:
        """Write the file, where a directory is kept and this is the leader."""
        if run.directory is not None and run.world.is_leader:
            self._file.save(run.directory)
