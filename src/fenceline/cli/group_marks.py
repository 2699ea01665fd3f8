"""What happened to the positions of a group: found out by asking the cluster, which may be Apache Kafka's.

Owns where the facts come from. The rule that tells a rewind is the coordinator's (`fenceline.groups.rewinds`).

| mark      | the group's committed position                                                    | found by             |
|-----------|-----------------------------------------------------------------------------------|----------------------|
| rewound   | went back once, because the log was truncated                                     | `__consumer_offsets` |
| truncated | is beyond where the log has its epoch end: the group has not noticed yet          | OffsetForLeaderEpoch |
| expired   | is below the log's start: retention or DeleteRecords were faster than the group   | ListOffsets          |
| beyond    | is beyond the log's end, and has no epoch that would say why                      | ListOffsets          |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Final

from fenceline.cli.group_epochs import ends_of
from fenceline.client.admin import Admin
from fenceline.client.offsets import CommittedOffset
from fenceline.client.reader import RangeReader
from fenceline.errors import ErrorCode
from fenceline.groups import records
from fenceline.groups.offsets import CommittedOffset as CommittedValue
from fenceline.groups.offsets import OffsetSlot
from fenceline.groups.partitioning import partition_for
from fenceline.groups.rewinds import Rewind, is_at_epoch_end, shows_truncation
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition


class Mark(StrEnum):
    REWOUND = "rewound"
    TRUNCATED = "truncated"
    EXPIRED = "expired"
    BEYOND = "beyond"


_MOST_STEPS: Final = 16
"""Steps back of one position that are looked at, newest first."""


def rewinds_of(admin: Admin, bootstrap: str, groups: Collection[str]) -> dict[str, dict[TopicPartition, Rewind]]:
    """By group: the last time that each of its positions went back because its log was truncated, as far as the commits
    are still in the topic.

    Reads the groups' partitions of `__consumer_offsets`. Raises PeerError where that is not allowed.
    """
    found: dict[str, dict[TopicPartition, Rewind]] = {group: {} for group in groups}
    steps = _steps_back(admin, bootstrap, groups)
    while steps:
        newest = {slot: each.pop() for slot, each in steps.items()}
        # Several groups may ask for one partition, each for an epoch of its own.
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


def _steps_back(admin: Admin, bootstrap: str, groups: Collection[str]) -> dict[OffsetSlot, list[Rewind]]:
    """By what a group has an offset for: its steps back, oldest first."""
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
    names = {group.encode() for group in groups}
    last: dict[OffsetSlot, CommittedValue] = {}
    steps: dict[OffsetSlot, deque[Rewind]] = {}
    with RangeReader({"bootstrap.servers": bootstrap}) as reader:
        for read in reader.read(ranges, arrow=False) if ranges else ():
            for record in read:
                key = None if record.key is None else bytes(record.key)
                if key is None or not records.is_offset_key(key) or records.group_of_key(key) not in names:
                    continue
                meaning = records.decode(key, None if record.value is None else bytes(record.value))
                if not isinstance(meaning, records.OffsetCommitted):
                    continue
                if meaning.value is None:
                    last.pop(meaning.slot, None)
                    steps.pop(meaning.slot, None)
                    continue
                step = meaning.value.step_from(last.get(meaning.slot))
                last[meaning.slot] = meaning.value
                if step is not None:
                    steps.setdefault(meaning.slot, deque(maxlen=_MOST_STEPS)).append(step)
    return {slot: list(each) for slot, each in steps.items()}


def epoch_ends(admin: Admin, committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """Where the epochs of committed positions end in the logs as they are now; empty where the brokers are too old."""
    found = ends_of(admin, {where: at.leader_epoch for where, at in committed.items() if at.leader_epoch >= 0})
    return {where: end.end_offset for where, end in found.items()}


def marks_of(at: CommittedOffset, *, log_start: int, log_end: int, epoch_end: int, rewind: Rewind | None) -> list[Mark]:
    """All that apply, what the group has not noticed yet first. `epoch_end` is -1 where it is not known."""
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
