"""Names that clients give to groups and members: which of them fit into a record. Owns that limit, nothing else.

Requests of flexible versions can carry longer strings than the keys of `__consumer_offsets` (`formats.md F7`), which
have a length of two bytes.
"""

from __future__ import annotations

from typing import Final

MOST_BYTES: Final = 2**15 - 1
_ID_SUFFIX_BYTES: Final = 37
"""The coordinator's suffix of a member id: a dash and a UUID."""
_MOST_BYTES_OF_CHARACTER: Final = 4


def can_be_stored(name: str | None, *, becomes_id: bool = False) -> bool:
    """Whether a record can hold the name; `becomes_id`: also as the prefix of a member id."""
    most = MOST_BYTES - _ID_SUFFIX_BYTES if becomes_id else MOST_BYTES
    return name is None or _MOST_BYTES_OF_CHARACTER * len(name) <= most or len(name.encode()) <= most
