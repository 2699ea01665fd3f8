"""Where a query's sources stand once a batch is through, as Spark's checkpoint tells it.

Owns the reading of one file of the offset log, `offsets/<batch id>`, which Spark has written before the batch runs and
does not change any more (`pyspark.md` S8): the next batch begins at exactly these positions, after a crash too. Only
answers where all of the query's sources are known to be logs; else None, and nobody may conclude anything. Never writes
to a checkpoint.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import NamedTuple

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.checkpoint_files import NO_OFFSET, open_checkpoint, read_text, source_lines
from pyspark_fenceline.delta_options import DeltaOptions
from pyspark_fenceline.offsets import SourceOffset, decode

_log = logging.getLogger("pyspark_fenceline")


class Place(NamedTuple):
    """`offset`: the next one to read. `leader_epoch`: of the record before it (-1: none or unknown)."""

    offset: int
    leader_epoch: int
    topic_id: str | None = None


Places = Mapping[TopicPartition, tuple[Place, ...]]
"""One place for each of the query's sources that reads the partition."""


def places_after(options: DeltaOptions, query_id: str, batch_id: int) -> Places | None:
    """The places after a batch; None where the checkpoint can not be read, or names sources that are no logs."""
    if not options.checkpoint:
        return None
    try:
        root = open_checkpoint(options.checkpoint, options.storage)
        if json.loads(read_text(root, "metadata").split("\n")[0]).get("id") != query_id:
            return None
        return parse(read_text(root, f"offsets/{batch_id}"))
    except Exception as error:
        # Whatever an object store, a moved directory or a newer Spark makes of it: it only means that less is known.
        _log.info("where the query stands can not be read from %s: %s", options.checkpoint, error)
        return None


def parse(text: str) -> Places | None:
    """An entry of Spark's offset log: its version, a line about the batch, a line for each source."""
    lines = source_lines(text)
    if lines is None:
        return None
    found: dict[TopicPartition, tuple[Place, ...]] = {}
    for line in lines:
        if line == NO_OFFSET:
            # Nothing of this source was read yet.
            continue
        try:
            offset = decode(json.loads(line))
        except (OperatorError, ValueError):
            return None
        if not isinstance(offset, SourceOffset):
            return None
        for tp, position in offset.positions.items():
            place = Place(position.offset, position.leader_epoch, offset.topic_ids.get(tp.topic))
            found[tp] = (*found.get(tp, ()), place)
    return found
