"""The first segment and the number of segments of each log at the last clean shutdown: this node did not delete files
that have been missing since.

Owns `fenceline-first-segments`, next to the checkpoints. Kafka's log-start checkpoint omits a start that equals the
first segment's base offset. The file is valid for one clean shutdown, identified by its broker epoch: after Apache
Kafka has used the directory, or after a crash, retention may have moved the starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from fenceline.ids import TopicPartition
from fenceline.log.core.disk import Disk, read_file, replace_file

FIRST_SEGMENTS: Final = "fenceline-first-segments"


class SegmentsAtStop(NamedTuple):
    """The segment files of one log: the first base offset and their number (None: not recorded)."""

    first_base: int
    files: int | None


def read_first_segments(disk: Disk, path: str, broker_epoch: int) -> dict[TopicPartition, SegmentsAtStop]:
    """Of the shutdown with this broker epoch in its clean mark; empty if that is unknown. Raises OSError."""
    content = read_file(disk, f"{path}/{FIRST_SEGMENTS}")
    if content is None or broker_epoch < 0:
        return {}
    try:
        fields = json.loads(content)
        if int(fields["brokerEpoch"]) != broker_epoch:
            return {}
        return {
            TopicPartition(str(topic), int(index)): SegmentsAtStop(int(base), int(files[0]) if files else None)
            for topic, index, base, *files in fields["firstSegments"]
        }
    except (ValueError, KeyError, TypeError):
        return {}


def write_first_segments(
    disk: Disk, path: str, broker_epoch: int, segments: Mapping[TopicPartition, SegmentsAtStop]
) -> None:
    """Durable on return; call it before the clean mark is written. Raises OSError."""
    rows = [
        [topic, index, base] if files is None else [topic, index, base, files]
        for (topic, index), (base, files) in sorted(segments.items())
    ]
    fields = {"version": 0, "brokerEpoch": broker_epoch, "firstSegments": rows}
    replace_file(disk, f"{path}/{FIRST_SEGMENTS}", json.dumps(fields, separators=(",", ":")).encode())
