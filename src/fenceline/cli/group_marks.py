"""Marks of a group's committed offsets, derived from requests that Apache Kafka answers, too.

Owns the sources of the data. The rule that detects a rewind is the coordinator's (`fenceline.groups.offsets.rewinds`).

| mark      | the group's committed offset                                                      | source               |
|-----------|-----------------------------------------------------------------------------------|----------------------|
| rewound   | was once moved back, because the log was truncated                                | `__consumer_offsets` |
| truncated | is above the end of its epoch in the log: the group has not detected it yet       | OffsetForLeaderEpoch |
| expired   | is below the log start offset, after retention or DeleteRecords                   | ListOffsets          |
| beyond    | is above the log end offset, and has no epoch that shows the cause                | ListOffsets          |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from fenceline.cli.group_epochs import ends_of
from fenceline.cli.output import client_settings
from fenceline.client.admin.admin import Admin
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.reader.reader import RangeReader
from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode
from fenceline.groups import records
from fenceline.groups.messages import CommittedRewind
from fenceline.groups.offsets.offsets import OffsetSlot
from fenceline.groups.offsets.offsets import StoredOffset as CommittedValue
from fenceline.groups.offsets.records import OffsetCommitted, group_of_key, is_offset_key
from fenceline.groups.offsets.rewinds import is_at_epoch_end, shows_truncation
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition


class Mark(StrEnum):
    REWOUND = "rewound"
    TRUNCATED = "truncated"
    EXPIRED = "expired"
    BEYOND = "beyond"


_MOST_STEPS: Final = 16
"""Backward moves of one offset that are checked, newest first."""


def rewinds_of(
    admin: Admin, bootstrap: str, groups: Collection[str]
) -> dict[str, dict[TopicPartition, CommittedRewind]]:
    """By group: the last rewind of each offset after a truncation, if the topic still has the commits.

    Reads the groups' partitions of `__consumer_offsets`. Raises PeerError if that is not authorized.
    """
    found: dict[str, dict[TopicPartition, CommittedRewind]] = {group: {} for group in groups}
    steps = _steps_back(admin, bootstrap, groups)
    while steps:
        newest = {slot: each.pop() for slot, each in steps.items()}
        # Groups may need different epochs of one partition: one request per group.
        for group in {slot.group_id for slot in newest}:
            mine = {TopicPartition(s.topic, s.partition): step for s, step in newest.items() if s.group_id == group}
            unproven = {where: step.from_epoch for where, step in mine.items() if not shows_truncation(step)}
            ends = ends_of(admin, unproven)
            found[group] |= {
                where: step
                for where, step in mine.items()
                if where not in unproven or (where in ends and is_at_epoch_end(step, ends[where].end_offset))
            }
        steps = {
            slot: each
            for slot, each in steps.items()
            if each and TopicPartition(slot.topic, slot.partition) not in found[slot.group_id]
        }
    return found


def _steps_back(admin: Admin, bootstrap: str, groups: Collection[str]) -> dict[OffsetSlot, list[CommittedRewind]]:
    """The backward moves of each committed offset, oldest first."""
    topic = admin.metadata([CONSUMER_OFFSETS_TOPIC]).topics.get(CONSUMER_OFFSETS_TOPIC)
    if topic is None or topic.error is not ErrorCode.NONE or not topic.partitions:
        return {}
    partitions = {
        TopicPartition(CONSUMER_OFFSETS_TOPIC, partition_for(group, len(topic.partitions))) for group in groups
    }
    starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
    ranges = {
        where: (starts[where].offset, ends[where].offset)
        for where in partitions
        if starts[where].offset < ends[where].offset
    }
    group_ids = {group.encode() for group in groups}
    last: dict[OffsetSlot, CommittedValue] = {}
    steps: dict[OffsetSlot, deque[CommittedRewind]] = {}
    with RangeReader(client_settings(bootstrap)) as reader:
        for read in reader.read(ranges, arrow=False) if ranges else ():
            for record in read:
                key = None if record.key is None else bytes(record.key)
                if key is None or not is_offset_key(key) or group_of_key(key) not in group_ids:
                    continue
                decoded = records.decode(key, None if record.value is None else bytes(record.value))
                if not isinstance(decoded, OffsetCommitted):
                    continue
                if decoded.value is None:
                    last.pop(decoded.slot, None)
                    steps.pop(decoded.slot, None)
                    continue
                step = decoded.value.step_from(last.get(decoded.slot))
                last[decoded.slot] = decoded.value
                if step is not None:
                    steps.setdefault(decoded.slot, deque(maxlen=_MOST_STEPS)).append(step)
    return {slot: list(each) for slot, each in steps.items()}


def epoch_ends(admin: Admin, committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """End offsets of the epochs of committed offsets in the current logs; empty if the brokers are too old."""
    found = ends_of(admin, {where: at.leader_epoch for where, at in committed.items() if at.leader_epoch >= 0})
    return {where: end.end_offset for where, end in found.items()}


def marks_of(
    at: CommittedOffset, *, log_start: int, log_end: int, epoch_end: int, rewind: CommittedRewind | None
) -> list[Mark]:
    """All marks that apply; rewound is last. `epoch_end` is -1 if unknown."""
    marks = []
    if 0 <= epoch_end < at.offset:
        marks.append(Mark.TRUNCATED)
    elif at.offset > log_end:
        marks.append(Mark.BEYOND)
    if at.offset < log_start:
        marks.append(Mark.EXPIRED)
    if rewind is not None:
        marks.append(Mark.REWOUND)
    return marks
