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
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from fenceline.client.admin import Admin
from fenceline.client.offsets import CommittedOffset, EpochEnd
from fenceline.client.reader import RangeReader
from fenceline.errors import ErrorCode, PeerError
from fenceline.groups import records
from fenceline.groups.offsets import OffsetStore
from fenceline.groups.partitioning import partition_for
from fenceline.groups.rewinds import Rewind
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition


class Mark(StrEnum):
    REWOUND = "rewound"
    TRUNCATED = "truncated"
    EXPIRED = "expired"
    BEYOND = "beyond"


_KEY_HEAD: Final = struct.Struct(">hh")


def rewinds_of(admin: Admin, bootstrap: str, group_id: str) -> dict[TopicPartition, Rewind]:
    """The last time that each of the group's positions went back, as far as its commits are still in the topic.

    Reads one partition of `__consumer_offsets`. Raises PeerError where that is not allowed.
    """
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
    store, slots = OffsetStore(), set()
    with RangeReader({"bootstrap.servers": bootstrap}) as reader:
        for read in reader.read({where: (start, end)}, arrow=False):
            for record in read:
                if record.key is None or not bytes(record.key).startswith(prefix):
                    continue
                meaning = records.decode(bytes(record.key), None if record.value is None else bytes(record.value))
                if isinstance(meaning, records.OffsetCommitted):
                    store.put(meaning.slot, meaning.value)
                    slots.add(meaning.slot)
    found = {}
    for slot in slots:
        stored = store.latest(slot)
        if stored is not None and stored.rewound is not None:
            found[TopicPartition(slot.topic, slot.partition)] = stored.rewound
    return found


def epoch_ends(admin: Admin, committed: Mapping[TopicPartition, CommittedOffset]) -> dict[TopicPartition, EpochEnd]:
    """Where the epochs of committed positions end in the logs as they are now; empty where the brokers are too old."""
    wanted = {where: at.leader_epoch for where, at in committed.items() if at.leader_epoch >= 0}
    try:
        return admin.offsets_for_leader_epoch(wanted) if wanted else {}
    except PeerError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise


def marks_of(
    at: CommittedOffset, *, log_start: int, log_end: int, epoch_end: EpochEnd | None, rewind: Rewind | None
) -> list[Mark]:
    """All that apply, what the group has not noticed yet first."""
    marks = []
    if epoch_end is not None and 0 <= epoch_end.end_offset < at.offset:
        marks.append(Mark.TRUNCATED)
    elif at.offset > log_end:
        marks.append(Mark.BEYOND)
    if at.offset < log_start:
        marks.append(Mark.EXPIRED)
    if rewind is not None:
        marks.append(Mark.REWOUND)
    return marks
