"""Work that a simulated node begins by itself, recognized by the first file that it touches.

Owns which call of the disk begins which operation. Nodes are not asked and not changed: the same calls are made whether
they are looked at or not.

| Operation | Begins with |
|---|---|
| retention | a segment gets the name of one that is to be deleted (compaction links, a cut moves it elsewhere) |
| compaction | the file for the compacted segment is created |
| metadata snapshot | the file for a snapshot is created, to be written or to be downloaded; or a snapshot is opened by a node that has no metadata yet |
"""  # noqa: E501 - a table

from __future__ import annotations

from typing import Final

from fenceline.log.file_names import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX
from fenceline.node.snapshot_files import PART_SUFFIX
from fenceline.testing.simulation.operations import Operation

_SNAPSHOT: Final = ".checkpoint"
_METADATA: Final = "__cluster_metadata-0"
_CREATED: Final = (
    (LOG_SUFFIX + CLEANED_SUFFIX, Operation.COMPACTION),
    (_SNAPSHOT + PART_SUFFIX, Operation.METADATA_SNAPSHOT),
)
_RETIRED: Final = LOG_SUFFIX + DELETED_SUFFIX


def begun_by_creating(path: str) -> Operation | None:
    """What a node begins that creates this file."""
    return next((operation for suffix, operation in _CREATED if path.endswith(suffix)), None)


def begun_by_renaming(target: str) -> Operation | None:
    """What a node begins that gives a file this name."""
    return Operation.RETENTION if target.endswith(_RETIRED) and _METADATA not in target else None


def begun_by_opening(path: str) -> Operation | None:
    """What a node begins that opens this file and has no metadata yet."""
    return Operation.METADATA_SNAPSHOT if path.endswith(_SNAPSHOT) and _METADATA in path else None


def topic_at(path: str) -> str | None:
    """The topic of the partition in whose directory this file is; None in the metadata log's."""
    directory = path.split("/")[-2]
    return None if directory == _METADATA else directory.rpartition("-")[0]
