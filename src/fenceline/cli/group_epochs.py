"""Leader epochs of offsets, derived from the end offsets of epochs in the current logs.

Owns the two epoch lookups of `fenceline groups`. Works with Apache Kafka; brokers that do not support the request yield
no epochs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.client.admin.admin import Admin
from fenceline.client.core.offsets import CommittedOffset, EpochEnd
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition

_MOST_STEPS: Final = 64
"""Epochs that are checked, newest first."""


def ends_of(admin: Admin, epochs: Mapping[TopicPartition, int]) -> dict[TopicPartition, EpochEnd]:
    """For each existing partition, the largest epoch not above the requested one, and its end offset."""
    known = admin.metadata({where.topic for where in epochs}).topics if epochs else {}
    wanted = {where: epoch for where, epoch in epochs.items() if where.partition in known[where.topic].partitions}
    try:
        return admin.offsets_for_leader_epoch(wanted) if wanted else {}
    except PeerError as error:
        if error.code is ErrorCode.UNSUPPORTED_VERSION:
            return {}
        raise


def with_epochs(admin: Admin, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, CommittedOffset]:
    """Add to each offset the epoch of the record before it, if the log has one."""
    starts = admin.list_offsets(dict.fromkeys(offsets, "earliest"))
    latest = admin.list_offsets(dict.fromkeys(offsets, "latest"))
    found = {where: CommittedOffset(offset) for where, offset in offsets.items()}
    epochs = {
        where: latest[where].leader_epoch
        for where, offset in offsets.items()
        if offset > starts[where].offset and latest[where].leader_epoch >= 0
    }
    for _ in range(_MOST_STEPS):
        before = ends_of(admin, {where: epoch - 1 for where, epoch in epochs.items() if epoch > 0})
        earlier: dict[TopicPartition, int] = {}
        for where, epoch in epochs.items():
            begins = before.get(where)
            if epoch == 0 or (begins is not None and 0 <= begins.end_offset < offsets[where]):
                found[where] = CommittedOffset(offsets[where], epoch)
            elif begins is not None and begins.end_offset >= 0:
                earlier[where] = begins.leader_epoch
        epochs = {where: epoch for where, epoch in earlier.items() if epoch >= 0}
        if not epochs:
            break
    return found
