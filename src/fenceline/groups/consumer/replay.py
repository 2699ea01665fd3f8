"""The effect of one log record on a group of the consumer protocol.

Owns the step from a group to the next by a meaning (`consumer.records`), both for replay and for writes. Sends no
response, arms no timer.

A log may have been compacted: a record may come without the ones before it, and an old record of a member's partitions
may follow the record of their current owner. Neither is an error.
"""

from __future__ import annotations

from dataclasses import replace

from fenceline.groups.consumer import records
from fenceline.groups.consumer.model import (
    INITIAL_EPOCH,
    LEAVING_EPOCH,
    NONE_HELD,
    ConsumerGroup,
    ConsumerMember,
)


def applied(group: ConsumerGroup | None, meaning: records.ConsumerMeaning) -> ConsumerGroup | None:
    """The group after this change. None: no group exists before, or it is deleted after."""
    match meaning:
        case records.EpochStored(_, None):
            return None
        case records.EpochStored(group_id, value) if value is not None:
            return replace(group or ConsumerGroup(group_id), epoch=value.epoch, metadata_hash=value.metadata_hash)
        case records.OldMetadataStored(group_id, exists):
            return replace(_known(group, group_id), has_old_metadata=exists) if exists or group is not None else None
        case records.MemberStored(group_id, member_id, None):
            return None if group is None else group.without_member(member_id)
        case records.MemberStored(group_id, member_id, stored) if stored is not None:
            group = _known(group, group_id)
            member = group.members.get(member_id) or ConsumerMember(member_id)
            before = group.static_members
            if member.instance_id is not None and member.instance_id != stored.instance_id:
                before = before.delete(member.instance_id) if member.instance_id in before else before
            return replace(group, static_members=before).with_member(
                replace(
                    member,
                    instance_id=stored.instance_id,
                    rack_id=stored.rack_id,
                    client_id=stored.client_id,
                    client_host=stored.client_host,
                    subscribed_names=frozenset(stored.subscribed_topic_names),
                    subscribed_regex=stored.subscribed_topic_regex or "",
                    rebalance_timeout_ms=stored.rebalance_timeout_ms,
                    server_assignor=stored.server_assignor,
                    classic=records.classic_of(stored.classic_member_metadata),
                )
            )
        case records.TargetEpochStored(group_id, None):
            # The record of the group's epoch, which follows, deletes the group itself.
            return None if group is None else replace(group, assignment_epoch=INITIAL_EPOCH, assigned_at_ms=0)
        case records.TargetEpochStored(group_id, epoch) if epoch is not None:
            return replace(
                _known(group, group_id),
                assignment_epoch=epoch.assignment_epoch,
                assigned_at_ms=epoch.assignment_timestamp,
            )
        case records.TargetStored(group_id, member_id, None):
            if group is None or member_id not in group.target:
                return group
            return replace(group, target=group.target.delete(member_id))
        case records.TargetStored(group_id, member_id, target) if target is not None:
            group = _known(group, group_id)
            return replace(group, target=group.target.set(member_id, target))
        case records.CurrentStored(group_id, member_id, None):
            known = None if group is None else group.members.get(member_id)
            if group is None or known is None:
                return group
            return group.with_member(
                replace(
                    known, epoch=LEAVING_EPOCH, previous_epoch=LEAVING_EPOCH, assigned=NONE_HELD, revoking=NONE_HELD
                )
            )
        case records.CurrentStored(group_id, member_id, current) if current is not None:
            group = _known(group, group_id)
            member = group.members.get(member_id) or ConsumerMember(member_id)
            return group.with_member(
                replace(
                    member,
                    epoch=current.member_epoch,
                    previous_epoch=current.previous_member_epoch,
                    state=records.state_of(current.state),
                    assigned=records.held_of(current.assigned_partitions, current.member_epoch),
                    revoking=records.held_of(current.partitions_pending_revocation, current.member_epoch),
                )
            )
        case records.RegexStored(group_id, regex, None):
            if group is None or regex not in group.regexes:
                return group
            return replace(group, regexes=group.regexes.delete(regex))
        case records.RegexStored(group_id, regex, resolved) if resolved is not None:
            group = _known(group, group_id)
            return replace(group, regexes=group.regexes.set(regex, resolved))
    raise AssertionError("every meaning has its case")


def _known(group: ConsumerGroup | None, group_id: str) -> ConsumerGroup:
    return ConsumerGroup(group_id) if group is None else group
