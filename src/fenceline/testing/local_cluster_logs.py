"""Keeps what a node writes to its log file from filling the disk.

Owns the size of `node.log` and the one older file beside it. A node writes by a descriptor of its own in append mode,
so its file is copied and emptied, not renamed; a line that is written at that very moment may be lost.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

LIMIT_BYTES: Final = 16 * 1024 * 1024


def older(log_file: Path) -> Path:
    """Where the lines before those of the log file are."""
    return log_file.with_name(log_file.name + ".1")


def trim(log_file: Path, *, limit_bytes: int = LIMIT_BYTES) -> bool:
    """Move everything into the older file, in place of what that held, once there is more than `limit_bytes`.

    Whether it was so. A disk that refuses leaves the file as it is.
    """
    with contextlib.suppress(OSError):
        if log_file.stat().st_size > limit_bytes:
            shutil.copyfile(log_file, older(log_file))
            os.truncate(log_file, 0)
            return True
    return False
