"""Parses `cordoned.log.dirs`: the data directories that receive no new replicas (KIP-1066).

Owns the mapping of the key's text to the directories of one node. Decides nothing about replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fenceline.errors import ErrorCode, PeerError

CORDONED: Final = "cordoned.log.dirs"
ALL: Final = "*"


def cordoned_dirs(text: str | None, log_dirs: Sequence[Path]) -> tuple[Path, ...]:
    """The node's directories that the text names, in the order of `log.dirs`; `*` names all.

    Raises PeerError (INVALID_REQUEST), with Kafka's message, for an unknown directory.
    """
    named = [item.strip() for item in (text or "").split(",") if item.strip()]
    if ALL in named:
        if len(named) > 1:
            message = f"When {CORDONED} is set to {ALL}, it must not contain other values"
            raise PeerError(ErrorCode.INVALID_REQUEST, message)
        return tuple(log_dirs)
    wanted = {Path(item).expanduser().absolute(): item for item in named}
    if missing := [item for path, item in wanted.items() if path not in log_dirs]:
        raise PeerError(
            ErrorCode.INVALID_REQUEST,
            f"All entries in {CORDONED} must be present in log.dirs or log.dir. Missing entries : {', '.join(missing)}",
        )
    return tuple(path for path in log_dirs if path in wanted)
