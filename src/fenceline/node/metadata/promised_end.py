"""The promised end: the log end that a node had acknowledged before its metadata log was reset or truncated at a hole
(gaps.md G24).

Owns the file `promised-end` next to the log: `{"version":0,"epoch":E,"end_offset":N}`, replaced atomically, and durable
before the log is given up. While it exists, the node votes as if its log still ended there, and does not become a
candidate: a majority may have counted the records it acknowledged. Why: `docs/decisions/010`.
"""

from __future__ import annotations

import contextlib
import json
from typing import Final

from fenceline.errors import OperatorError
from fenceline.log.core.disk import Disk, read_file, replace_file
from fenceline.quorum.log_view import NO_PROMISED_END, LogEnd

FILE_NAME: Final = "promised-end"


def read(disk: Disk, directory: str) -> LogEnd:
    """The promised end, `NO_PROMISED_END` if there is none. Raises OperatorError: an unreadable file must not be
    ignored."""
    path = f"{directory}/{FILE_NAME}"
    content = read_file(disk, path)
    if content is None:
        return NO_PROMISED_END
    try:
        fields = json.loads(content)
        if fields["version"] != 0:
            raise ValueError(f"version {fields['version']} is not supported")
        return LogEnd(int(fields["epoch"]), int(fields["end_offset"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"Cannot read {path}: {error}",
            "The file holds the log end that this node had acknowledged before it lost its metadata log; it must not be"
            " deleted or recreated by hand. If a majority of the other voters is running, remove this voter, reformat"
            " this node and add it again.",
        ) from None


def write(disk: Disk, directory: str, end: LogEnd) -> None:
    """Durable when it returns. Raises OSError."""
    content = json.dumps({"version": 0, "epoch": end.epoch, "end_offset": end.offset}, separators=(",", ":"))
    replace_file(disk, f"{directory}/{FILE_NAME}", content.encode())


def forget(disk: Disk, directory: str) -> None:
    """Delete the file: the log has reached the promised end again. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(f"{directory}/{FILE_NAME}")
