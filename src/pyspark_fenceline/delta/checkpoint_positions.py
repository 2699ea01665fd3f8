"""The positions of a query's sources after a batch, from Spark's checkpoint.

Owns the reading of one file of the offset log, `offsets/<batch id>`, which Spark writes before the batch runs and does
not change afterwards (`pyspark.md` S8): the next batch begins at exactly these positions, also after a crash. If not
all of the query's sources are known to be logs the result is None, and the caller must conclude nothing. Never writes
to a checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import NamedTuple

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.checkpoint_files import NO_OFFSET, open_checkpoint, read_text, source_lines
from pyspark_fenceline.common.offsets import SourceOffset, decode
from pyspark_fenceline.delta.options import DeltaOptions

_log = logging.getLogger("pyspark_fenceline")


class SourcePosition(NamedTuple):
    """`offset`: the next one to read. `leader_epoch`: of the record before it (-1: none or unknown)."""

    offset: int
    leader_epoch: int
    topic_id: str | None = None


SourcePositions = Mapping[TopicPartition, tuple[SourcePosition, ...]]
"""One position for each of the query's sources that reads the partition."""


def positions_after(options: DeltaOptions, query_id: str, batch_id: int) -> SourcePositions | None:
    """The positions after a batch; None if the checkpoint cannot be read, or has sources that are no logs."""
    if not options.checkpoint:
        return None
    try:
        root = open_checkpoint(options.checkpoint, options.storage)
        if json.loads(read_text(root, "metadata").split("\n")[0]).get("id") != query_id:
            return None
        return parse_positions(read_text(root, f"offsets/{batch_id}"))
    except Exception as error:
        # An object store, a moved directory, a newer Spark: in each case the positions are unknown.
        _log.info("the query's positions cannot be read from the checkpoint %s: %s", options.checkpoint, error)
        return None


def parse_positions(text: str) -> SourcePositions | None:
    """An entry of Spark's offset log: its version, a line about the batch, a line for each source."""
    lines = source_lines(text)
    if lines is None:
        return None
    found: dict[TopicPartition, tuple[SourcePosition, ...]] = {}
    for line in lines:
        if line == NO_OFFSET:
            # This source has not been read yet.
            continue
        try:
            offset = decode(json.loads(line))
        except (OperatorError, ValueError):
            return None
        if not isinstance(offset, SourceOffset):
            return None
        for tp, position in offset.positions.items():
            after = SourcePosition(position.offset, position.leader_epoch, offset.topic_ids.get(tp.topic))
            found[tp] = (*found.get(tp, ()), after)
    return found
