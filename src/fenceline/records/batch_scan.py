"""Chooses the batch scan: Cython if a matching build exists, else the pure-Python twin. Owns nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.compiled import compiled
from fenceline.records import _batch_scan_py
from fenceline.records._batch_scan_py import COLUMNS, TOTALS

if TYPE_CHECKING:
    from fenceline.records._batch_scan_py import scan_plain
else:
    scan_plain = (compiled("fenceline.records._batch_scan", _batch_scan_py.ABI) or _batch_scan_py).scan_plain

__all__ = ["COLUMNS", "TOTALS", "scan_plain"]
