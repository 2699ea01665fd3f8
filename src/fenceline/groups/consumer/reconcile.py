"""A member's next step towards the target: partitions it keeps, has to revoke, gets, and waits for.

Owns the rule that a partition is assigned to a member only when no other member owns it: it is first revoked from its
owner, which confirms that by no longer reporting it, then assigned to the other. A pure function of a group's values.

| state                 | still reports partitions to revoke | otherwise                                       |
|-----------------------|------------------------------------|-------------------------------------------------|
| STABLE                | -                                  | at the target's epoch: nothing; else towards it |
| UNREVOKED_PARTITIONS  | unchanged                          | towards the target                              |
| UNRELEASED_PARTITIONS | -                                  | towards the target                              |
| UNKNOWN               | fenced                             | towards the target, from nothing                |

Towards the target: a member with partitions to revoke keeps its epoch until it has revoked them. Otherwise it reaches
the target's epoch with all partitions that no other member owns, and waits (UNRELEASED_PARTITIONS) for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.consumer.model import NONE_HELD, ConsumerMember, Held, MemberState
from fenceline.groups.messages import Partitions


@dataclass(frozen=True, slots=True)
class StepContext:
    """A member's target, and what must hold for a step towards it."""

    epoch: int
    target: Partitions
    subscribed: Callable[[], set[UUID]]
    """The existing topics that it subscribes to now: the target may be older."""
    is_held: Callable[[UUID, int], bool]
    """Whether any member owns a partition."""
    owned: Partitions | None
    """The partitions that the member reports as owned; None if it did not report them."""
    subscription_changed: bool = False


def next_step(member: ConsumerMember, context: StepContext) -> ConsumerMember:
    """The member after this step; unchanged if there is none. Raises PeerError FENCED_MEMBER_EPOCH."""
    if not context.subscription_changed and member.is_reconciled_to(context.epoch):
        return member
    match member.state:
        case MemberState.STABLE if member.epoch == context.epoch:
            return _unsubscribed(member, context)
        case MemberState.UNREVOKED_PARTITIONS if _names_any(context.owned, member.revoking):
            return _unsubscribed(member, context) if context.subscription_changed else member
        case MemberState.UNKNOWN if context.owned is None or context.owned:
            raise PeerError(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its partitions and"
                " rejoin.",
            )
        case MemberState.UNKNOWN:
            return _towards(member, context, context.epoch)
        case _:
            return _towards(member, context, member.epoch)


def _names_any(owned: Partitions | None, held: Held) -> bool:
    """Whether the member still uses some of these; it does until it reports otherwise."""
    if owned is None:
        return True
    return any(partition in held.get(topic_id, {}) for topic_id, used in owned.items() for partition in used)


def _unsubscribed(member: ConsumerMember, context: StepContext) -> ConsumerMember:
    """Remove topics that the member no longer subscribes to; the rest of the target waits for its next step."""
    subscribed = context.subscribed()
    dropped = {topic_id: held for topic_id, held in member.assigned.items() if topic_id not in subscribed}
    if not dropped:
        return member
    assigned = {topic_id: held for topic_id, held in member.assigned.items() if topic_id not in dropped}
    revoking: dict[UUID, Mapping[int, int]] = dict(member.revoking)
    for topic_id, held in dropped.items():
        revoking[topic_id] = {**revoking.get(topic_id, {}), **held}
    if _names_any(context.owned, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            assigned=assigned,
            revoking=revoking,
        )
    return replace(member, previous_epoch=member.epoch, assigned=assigned)


def _towards(member: ConsumerMember, context: StepContext, epoch: int) -> ConsumerMember:
    subscribed = context.subscribed()
    assigned: dict[UUID, dict[int, int]] = {}
    revoking: dict[UUID, dict[int, int]] = {}
    gained: dict[UUID, list[int]] = {}
    is_waiting = False
    for topic_id in sorted(context.target.keys() | member.assigned.keys()):
        target = context.target.get(topic_id, frozenset()) if topic_id in subscribed else frozenset()
        held = member.assigned.get(topic_id, {})
        own_revoking = member.revoking.get(topic_id, {})
        for partition, since in held.items():
            kept = assigned if partition in target else revoking
            kept.setdefault(topic_id, {})[partition] = since
        for partition in sorted(target):
            if partition in held:
                continue
            if context.is_held(topic_id, partition) and partition not in own_revoking:
                is_waiting = True
            else:
                gained.setdefault(topic_id, []).append(partition)
    if revoking and _names_any(context.owned, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            epoch=epoch,
            previous_epoch=member.epoch,
            assigned=assigned or NONE_HELD,
            revoking=revoking,
        )
    for topic_id, partitions in gained.items():
        assigned.setdefault(topic_id, {}).update(dict.fromkeys(partitions, context.epoch))
    return replace(
        member,
        state=MemberState.UNRELEASED_PARTITIONS if is_waiting else MemberState.STABLE,
        epoch=context.epoch,
        previous_epoch=member.epoch,
        assigned=assigned or NONE_HELD,
        revoking=NONE_HELD,
    )
