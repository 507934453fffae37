"""Parquet shards: row groups are read whole, since that is what can be read by itself; some are kept (pyarrow)."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from unisono.errors import DataError
from unisono.system.loading import needing

_NUMBERS = "iufb"  # NumPy's kinds of numbers


def scan_parquet(path: Path, columns: Sequence[str] | None) -> list[int]:
    """Return the rows of each row group, as the file's end tells them.

    Raises:
        DataError: It is no Parquet file, cut short, or lacks a column.
        ConfigError: pyarrow is missing.
    """
    opened = open_parquet(path)
    found = opened.schema_arrow.names
    missing = [name for name in columns or () if name not in found]
    if missing:
        raise DataError(f"{path}: expected a column {missing[0]!r}, found {', '.join(map(repr, found[:12]))}.")
    return [opened.metadata.row_group(number).num_rows for number in range(opened.metadata.num_row_groups)]


def open_parquet(path: Path) -> Any:
    """Return a ``pyarrow.parquet.ParquetFile``."""
    with needing("shards", f"{path} cannot be read: "):
        parquet, arrow = importlib.import_module("pyarrow.parquet"), importlib.import_module("pyarrow")
    try:
        return parquet.ParquetFile(path)
    except (arrow.ArrowException, OSError) as error:
        raise DataError(
            f"{path}: expected a whole Parquet file, found: {str(error).rstrip('.')}. Hint: fetch or write it again."
        ) from None


def row_of(table: Any, row: int) -> dict[str, Any]:
    """Return a row as a dictionary; lists of numbers become NumPy arrays, all else is as ``as_py`` gives it."""
    return {name: _value(table.column(name)[row]) for name in table.column_names}


def _value(scalar: Any) -> Any:
    values = getattr(scalar, "values", None)
    if values is not None and hasattr(values, "to_numpy"):
        array = values.to_numpy(zero_copy_only=False)
        if array.dtype.kind in _NUMBERS and not values.null_count:
            return np.array(array)
    return scalar.as_py()
