"""Background work of a simulated node, recognized by the first file that it touches.

Owns which disk call begins which operation. Nodes are neither queried nor changed: they make the same calls whether
they are observed or not.

| Operation | Begins when |
|---|---|
| retention | a segment is renamed for deletion (compaction uses links, a truncation moves files elsewhere) |
| compaction | the file for the compacted segment is created |
| metadata snapshot | the file for a snapshot is created, to be written or downloaded; or a snapshot is opened by a node that has no metadata yet |
"""  # noqa: E501 - a table

from __future__ import annotations

from typing import Final

from fenceline.log.core.file_names import CLEANED_SUFFIX, DELETED_SUFFIX, LOG_SUFFIX
from fenceline.node.metadata.snapshot_files import PART_SUFFIX
from fenceline.testing.simulation.operations import Operation

_SNAPSHOT: Final = ".checkpoint"
_METADATA: Final = "__cluster_metadata-0"
_CREATED: Final = (
    (LOG_SUFFIX + CLEANED_SUFFIX, Operation.COMPACTION),
    (_SNAPSHOT + PART_SUFFIX, Operation.METADATA_SNAPSHOT),
)
_RETIRED: Final = LOG_SUFFIX + DELETED_SUFFIX


def begun_by_creating(path: str) -> Operation | None:
    """The operation that begins with the creation of this file."""
    return next((operation for suffix, operation in _CREATED if path.endswith(suffix)), None)


def begun_by_renaming(target: str) -> Operation | None:
    """The operation that begins with a rename to this name."""
    return Operation.RETENTION if target.endswith(_RETIRED) and _METADATA not in target else None


def begun_by_opening(path: str) -> Operation | None:
    """The operation that begins when a node without metadata opens this file."""
    return Operation.METADATA_SNAPSHOT if path.endswith(_SNAPSHOT) and _METADATA in path else None


def topic_at(path: str) -> str | None:
    """The topic of the partition whose directory contains this file; None for the metadata log."""
    directory = path.split("/")[-2]
    return None if directory == _METADATA else directory.rpartition("-")[0]
