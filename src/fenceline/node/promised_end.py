"""What a node had acknowledged of its metadata log before that began anew or was cut at a hole (gaps.md G24).

Owns the file `promised-end` beside the log: `{"version":0,"epoch":E,"end_offset":N}`, replaced as a whole, and durable
before the log it speaks of is given up. While it is there, votes are given as if the log still ended there, and this
node does not stand: a majority may have counted what it acknowledged. Why: `docs/decisions/010`.
"""

from __future__ import annotations

import contextlib
import json
from typing import Final

from fenceline.errors import OperatorError
from fenceline.log.disk import Disk, read_file, replace_file
from fenceline.quorum.log_view import NOTHING, LogEnd

FILE_NAME: Final = "promised-end"


def read(disk: Disk, directory: str) -> LogEnd:
    """`NOTHING` where nothing is owed. Raises OperatorError: an end that can not be read must not be guessed."""
    path = f"{directory}/{FILE_NAME}"
    content = read_file(disk, path)
    if content is None:
        return NOTHING
    try:
        fields = json.loads(content)
        if fields["version"] != 0:
            raise ValueError(f"version {fields['version']} is not known")
        return LogEnd(int(fields["epoch"]), int(fields["end_offset"]))
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"{path} can not be read: {error}",
            "It says what this node had acknowledged before it lost its metadata log, so it must not be guessed. With a"
            " majority of the other voters alive, remove this voter, format this node anew and add it again.",
        ) from None


def write(disk: Disk, directory: str, end: LogEnd) -> None:
    """Durable when it returns. Raises OSError."""
    content = json.dumps({"version": 0, "epoch": end.epoch, "end_offset": end.offset}, separators=(",", ":"))
    replace_file(disk, f"{directory}/{FILE_NAME}", content.encode())


def forget(disk: Disk, directory: str) -> None:
    """The log has it again. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(f"{directory}/{FILE_NAME}")
