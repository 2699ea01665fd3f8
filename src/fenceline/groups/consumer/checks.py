"""Validation of requests to groups of the consumer protocol: codes and messages as in Kafka 4.3.1.

Owns the checks of a heartbeat by itself and against its member, and of the members that commit and fetch offsets.
Changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.consumer.model import (
    JOINING_EPOCH,
    LEAVING_EPOCH,
    STATIC_LEAVING_EPOCH,
    ConsumerGroup,
    ConsumerMember,
    Held,
)
from fenceline.groups.consumer.settings import ConsumerSettings
from fenceline.groups.messages import ConsumerHeartbeatRequest, Partitions
from fenceline.groups.names import can_be_stored


def check_request(request: ConsumerHeartbeatRequest, settings: ConsumerSettings) -> None:
    """Raises PeerError INVALID_REQUEST or UNSUPPORTED_ASSIGNOR, in Kafka's order."""
    epoch = request.member_epoch
    if request.must_bring_member_id or epoch > 0 or epoch == LEAVING_EPOCH:
        _check_not_blank(request.member_id, "MemberId can't be empty.")
    _check_not_blank(request.group_id, "GroupId can't be empty.")
    _check_not_blank(request.instance_id, "InstanceId can't be empty.")
    _check_not_blank(request.rack_id, "RackId can't be empty.")
    if epoch == JOINING_EPOCH:
        if request.rebalance_timeout_ms == -1:
            raise _invalid("RebalanceTimeoutMs must be provided in first request.")
        if request.owned is None or request.owned:
            raise _invalid("TopicPartitions must be empty when (re-)joining.")
        if request.subscribed_names is None and request.subscribed_regex is None:
            raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")
    elif epoch == STATIC_LEAVING_EPOCH:
        if request.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVING_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    for text, what in (
        (request.member_id, "MemberId"),
        (request.instance_id, "InstanceId"),
        (request.subscribed_regex, "SubscribedTopicRegex"),
    ):
        if not can_be_stored(text):
            raise _invalid(f"{what} is too long.")
    assignor = request.server_assignor
    if assignor is not None and assignor not in settings.assignors:
        raise PeerError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {assignor} is not supported. Supported assignors: {', '.join(settings.assignors)}.",
        )


def _check_not_blank(text: str | None, why: str) -> None:
    if text is not None and not text.strip():
        raise _invalid(why)


def _invalid(why: str) -> PeerError:
    return PeerError(ErrorCode.INVALID_REQUEST, why)


def unknown_member(group_id: str, member_id: str) -> PeerError:
    return PeerError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def check_not_fenced(member: ConsumerMember, member_id: str, instance_id: str) -> None:
    """Raises PeerError if another member has this instance id now."""
    if member.member_id != member_id:
        raise PeerError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {member.member_id}.",
        )


def check_member_epoch(member: ConsumerMember, epoch: int, owned: Partitions | None) -> None:
    """Raises PeerError FENCED_MEMBER_EPOCH if the member cannot be at this epoch and own the partitions it reports."""
    if epoch in (JOINING_EPOCH, member.epoch):
        return
    if epoch == member.previous_epoch and epoch < member.epoch and _is_part(owned, member.assigned):
        return  # the response with the newer epoch may have been lost
    size = "greater" if epoch > member.epoch else "smaller"
    raise PeerError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the group coordinator"
        f" ({member.epoch}). The member must abandon all its partitions and rejoin.",
    )


def _is_part(owned: Partitions | None, held: Held) -> bool:
    if owned is None:
        return False
    return all(partition in held.get(topic_id, {}) for topic_id, used in owned.items() for partition in used) and all(
        topic_id in held for topic_id in owned
    )


# --- offsets ----------------------------------------


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    epoch: int,
    partitions: Sequence[tuple[UUID, int]],
    *,
    may_be_member: bool,
) -> None:
    """Raises PeerError if these offsets must not be committed. A member may commit with an older epoch the
    partitions it got before (KIP-1251). `may_be_member`: from OffsetCommit v9 on."""
    if epoch < 0 and group.is_empty:
        return
    member = group.members.get(member_id)
    if member is None:
        raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
    if not member.uses_classic and not may_be_member:
        raise PeerError(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.epoch:
        return
    stale = ErrorCode.ILLEGAL_GENERATION if member.uses_classic else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > member.epoch:
        raise PeerError(stale)
    for topic_id, partition in partitions:
        since = member.epoch_of(topic_id, partition)
        if since is None or epoch < since:
            raise PeerError(stale)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """Raises PeerError if this member must not fetch offsets."""
    if member_id is None and epoch < 0:
        return
    member = None if member_id is None else group.members.get(member_id)
    if member is None:
        raise PeerError(ErrorCode.UNKNOWN_MEMBER_ID)
    if epoch != member.epoch:
        raise PeerError(ErrorCode.ILLEGAL_GENERATION if member.uses_classic else ErrorCode.STALE_MEMBER_EPOCH)
