"""Limits the size of a node's log file.

Owns the size of `node.log` and of the one older file beside it. A node writes through its own descriptor in append
mode, so its file is copied and truncated, not renamed; a line written at that moment may be lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 16 * 1024 * 1024


def older(log_file: Path) -> Path:
    """The file with the lines before those of the log file."""
    return log_file.with_name(log_file.name + ".1")


def trim(log_file: Path, *, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Move everything into the older file, replacing its content, once there is more than `limit_bytes`.

    Returns whether it was moved. If the disk fails, the file is left unchanged."""
    with contextlib.suppress(OSError):
        if log_file.stat().st_size > limit_bytes:
            shutil.copyfile(log_file, older(log_file))
            os.truncate(log_file, 0)
            return True
    return False
