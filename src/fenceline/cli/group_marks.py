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

import struct
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fenceline.client.admin import Admin
from fenceline.client.offsets import CommittedOffset
from fenceline.client.reader import RangeReader
from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import records
from fenceline.groups.offsets import CommittedOffset as CommittedValue
from fenceline.groups.partitioning import partition_for
from fenceline.groups.rewinds import Rewind, is_where_the_epoch_ends, shows_truncation
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition


class Mark(StrEnum):
    REWOUND = "rewound"
    TRUNCATED = "truncated"
    EXPIRED = "expired"
    BEYOND = "beyond"


_KEY_HEAD: Final = struct.Struct(">hh")
_MOST_STEPS: Final = 16
"""Steps back of one position that are looked at, newest first."""


def rewinds_of(admin: Admin, bootstrap: str, group_id: str) -> dict[TopicPartition, Rewind]:
    """The last time that each of the group's positions went back because its log was truncated, as far as the commits
    are still in the topic.

    Reads one partition of `__consumer_offsets`. Raises PeerError where that is not allowed.
    """
    found: dict[TopicPartition, Rewind] = {}
    steps = _steps_back(admin, bootstrap, group_id)
    while steps:
        newest = {where: each.pop() for where, each in steps.items()}
        unproven = {where: step.from_epoch for where, step in newest.items() if not shows_truncation(step)}
        ends = _ends_of(admin, unproven)
        found |= {
            where: step
            for where, step in newest.items()
            if where not in unproven or is_where_the_epoch_ends(step, ends.get(where, -1))
        }
        steps = {where: each for where, each in steps.items() if each and where not in found}
    return found


def _steps_back(admin: Admin, bootstrap: str, group_id: str) -> dict[TopicPartition, list[Rewind]]:
    """By partition that the group has an offset for: its steps back, oldest first."""
    topic = admin.metadata([CONSUMER_OFFSETS_TOPIC]).topics.get(CONSUMER_OFFSETS_TOPIC)
    if topic is None or topic.error is not ErrorCode.NONE or not topic.partitions:
        return {}
    where = TopicPartition(CONSUMER_OFFSETS_TOPIC, partition_for(group_id, len(topic.partitions)))
    start = admin.list_offsets({where: "earliest"})[where].offset
    end = admin.list_offsets({where: "latest"})[where].offset
    if start >= end:
        return {}
    name = group_id.encode()
    prefix = _KEY_HEAD.pack(records.OFFSET_KEY, len(name)) + name
    last: dict[TopicPartition, CommittedValue] = {}
    steps: dict[TopicPartition, deque[Rewind]] = {}
    with RangeReader({"bootstrap.servers": bootstrap}) as reader:
        for read in reader.read({where: (start, end)}, arrow=False):
            for record in read:
                if record.key is None or not bytes(record.key).startswith(prefix):
                    continue
                meaning = records.decode(bytes(record.key), None if record.value is None else bytes(record.value))
                if not isinstance(meaning, records.OffsetCommitted):
                    continue
                at = TopicPartition(meaning.slot.topic, meaning.slot.partition)
                if meaning.value is None:
                    last.pop(at, None)
                    steps.pop(at, None)
                    continue
                step = meaning.value.step_from(last.get(at))
                last[at] = meaning.value
                if step is not None:
                    steps.setdefault(at, deque(maxlen=_MOST_STEPS)).append(step)
    return {at: list(each) for at, each in steps.items()}


def epoch_ends(admin: Admin, committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, int]:
    """Where the epochs of committed positions end in the logs as they are now; empty where the brokers are too old."""
    return _ends_of(admin, {where: at.leader_epoch for where, at in committed.items() if at.leader_epoch >= 0})


def _ends_of(admin: Admin, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    known = admin.metadata({where.topic for where in epochs}).topics if epochs else {}
    wanted = {where: epoch for where, epoch in epochs.items() if where.partition in known[where.topic].partitions}
    try:
        found = admin.offsets_for_leader_epoch(wanted) if wanted else {}
    except PeerError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise
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
