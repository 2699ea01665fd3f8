"""When a batch of Spark's Kafka source was planned and committed, according to its checkpoint.

Owns the search for the batch that first ended at a position: entries of later batches that read nothing of the
partition have the same position. The planning time is in the entry, by the clock of Spark's driver. The commit time is
the modification time of the file `commits/<batch id>`; copying a checkpoint makes it later, never earlier. Never
writes.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.checkpoint_files import (
    FORMAT,
    batch_timestamp_ms,
    numbered,
    open_checkpoint,
    read_text,
    source_lines,
)
from pyspark_fenceline.common.offsets import SourceOffset, decode
from pyspark_fenceline.common.query_state import StateHint
from pyspark_fenceline.source.adoption_evidence import Times

_log = logging.getLogger("pyspark_fenceline")


def times_of(hint: StateHint, held: SourceOffset) -> dict[TopicPartition, Times] | str:
    """Times for each partition of an offset that Spark's Kafka source wrote, or a sentence if they are unknown."""
    place = hint.checkpoint
    if place is None:
        return "the times of the checkpoint are unknown, because the source has no option checkpointLocation"
    try:
        root = open_checkpoint(place, hint.storage)
        return _times(root, held) or f"checkpointLocation {place} has no batch that ends at these positions"
    except Exception as error:
        # An object store, credentials, a newer Spark: in each case the times are unknown.
        _log.info("the checkpoint %s cannot be read", place, exc_info=True)
        return f"checkpointLocation {place} cannot be read ({type(error).__name__}: {error})"


def _times(root: Any, held: SourceOffset) -> dict[TopicPartition, Times]:
    line: int | None = None
    first: dict[TopicPartition, tuple[int, int]] = {}
    unbroken = set(held.positions)
    for batch, planned_ms, lines in _entries(root):
        if line is None:
            line = next((number for number, text in enumerate(lines) if _decoded(text) == held), None)
            if line is None:
                continue
        before = _decoded(lines[line]) if line < len(lines) else None
        positions = {} if before is None else before.positions
        unbroken = {tp for tp in unbroken if positions.get(tp) == held.positions[tp]}
        if not unbroken:
            break
        first |= dict.fromkeys(unbroken, (batch, planned_ms))
    return {tp: Times(planned_ms, _committed_ms(root, batch)) for tp, (batch, planned_ms) in first.items()}


def _entries(root: Any) -> Iterator[tuple[int, int, list[str]]]:
    """Batch id, planning time and the sources' lines, newest first. Raises ValueError for an unknown format."""
    for batch in reversed(numbered(root, "offsets")):
        text = read_text(root, f"offsets/{batch}")
        lines, planned_ms = source_lines(text), batch_timestamp_ms(text)
        if lines is None or planned_ms is None:
            raise ValueError(f"offsets/{batch} is not in the supported format {FORMAT}")
        yield batch, planned_ms, lines


def _decoded(line: str) -> SourceOffset | None:
    try:
        found = decode(json.loads(line))
    except (OperatorError, ValueError):
        return None
    return found if isinstance(found, SourceOffset) else None


def _committed_ms(root: Any, batch: int) -> int | None:
    (found,) = root.get_file_info([f"commits/{batch}"])
    return None if found.mtime_ns is None else found.mtime_ns // 1_000_000
