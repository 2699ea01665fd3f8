"""A shard's state out of the records of its partition of `__consumer_offsets`.

Owns what each record means; how it is encoded is `records`'s. Answers nobody and arms no timer: that begins when the
replay is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fenceline.errors import InternalError
from fenceline.groups import records
from fenceline.groups.clock import Now
from fenceline.groups.model import Group, Member
from fenceline.groups.states import GroupState

if TYPE_CHECKING:
    from fenceline.groups.shard import Shard


def replay_record(shard: Shard, key: bytes | None, value: bytes | None, now: Now, transaction_of: int | None) -> None:
    """Apply one record of the log; `transaction_of` is the producer id of a transactional batch.

    Raises InternalError on a record that can not be read: the state behind it would be wrong.
    """
    match records.decode(key, value):
        case records.OffsetCommitted(slot, committed):
            if committed is None:
                shard.offsets.put(slot, None)
                return
            if slot.group_id not in shard.groups and slot.group_id not in shard.foreign_groups:
                shard.groups[slot.group_id] = Group(slot.group_id, now.wall_ms)
            if transaction_of is None:
                shard.offsets.put(slot, committed)
            else:
                shard.offsets.put_open(transaction_of, slot, committed)
        case records.GroupStored(group_id, stored):
            if stored is None:
                shard.groups.pop(group_id, None)
            else:
                shard.groups[group_id] = _restored(group_id, stored)
        case records.ForeignGroup(group_id, exists):
            shard.skipped_record_count += 1
            if exists:
                shard.foreign_groups.add(group_id)
                shard.groups.pop(group_id, None)
            else:
                shard.foreign_groups.discard(group_id)
        case records.Unserved():
            shard.skipped_record_count += 1


def _restored(group_id: str, stored: records.GroupMetadataValue) -> Group:
    group = Group(
        group_id,
        stored.current_state_timestamp,
        state=GroupState.STABLE if stored.members else GroupState.EMPTY,
        previous_state=GroupState.EMPTY,
        generation=stored.generation,
        protocol_type=stored.protocol_type or None,
        protocol_name=stored.protocol,
    )
    for each in stored.members:
        if stored.protocol is None:
            raise InternalError(f"group {group_id} was stored with members but without a protocol")
        group.add(
            Member(
                each.member_id,
                each.group_instance_id,
                each.client_id,
                each.client_host,
                each.session_timeout if each.rebalance_timeout == -1 else each.rebalance_timeout,
                each.session_timeout,
                ((stored.protocol, each.subscription),),
                each.assignment,
            )
        )
    group.leader_id = stored.leader
    group.subscribed_topics = group.read_subscriptions()
    return group
