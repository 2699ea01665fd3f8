"""Subscriptions of the members of a consumer protocol group: names, and regular expressions (KIP-1043).

Owns the records of both, and when the topics of an expression are resolved: with the first member that uses it, after
topics were created, and every `group.consumer.regex.refresh.interval.ms`. Never assigns anything; `consumer.membership`
owns membership.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.consumer import records
from fenceline.groups.consumer.change import GroupChange
from fenceline.groups.consumer.groups import ConsumerGroups
from fenceline.groups.consumer.model import ConsumerGroup, ConsumerMember, ResolvedRegex
from fenceline.groups.consumer.targets import TargetAssignments
from fenceline.groups.messages import Now
from fenceline.groups.regex.automaton import InvalidRegex
from fenceline.groups.regex.search import topic_regex

REGEX_REFRESH_PAUSE_MS: Final = 10_000
"""Minimum time between two resolutions of a group's regular expressions."""


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The result of storing a member's subscription."""

    has_changed: bool
    needs_epoch: bool
    """Not for an unresolved expression: its topics raise the epoch once they are known."""
    brings_new_regex: bool


class Subscriptions:
    """Of the groups of one shard. They raise PeerError before anything has changed."""

    __slots__ = ("_groups", "_new_topics_at", "_targets")

    def __init__(self, groups: ConsumerGroups, targets: TargetAssignments) -> None:
        self._groups = groups
        self._targets = targets
        self._new_topics_at = -1

    def on_topics_created(self, version: int) -> None:
        """The metadata of this version has new topics that regular expressions may match."""
        self._new_topics_at = version

    def subscribe(self, change: GroupChange, member: ConsumerMember, updated: ConsumerMember) -> Subscribed:
        """Store the updated member, and the changes to the group's regular expressions."""
        if updated != member:
            self._check_regex(change.group, member, updated)
        # Without this member: are there other subscribers of an expression?
        before = change.group
        if updated != member:
            change.add(records.member_stored(before.group_id, updated))
        names_changed = updated.subscribed_names != member.subscribed_names
        old, new = member.subscribed_regex, updated.subscribed_regex
        if old == new:
            return Subscribed(names_changed, names_changed, False)
        if old and before.subscribers_of(old) == 1:
            change.add(records.RegexStored(before.group_id, old, None))
        if not new:
            return Subscribed(True, True, False)
        is_new = before.subscribers_of(new) == 0
        is_resolved = not is_new and new in before.regexes
        return Subscribed(True, names_changed or is_resolved, is_new)

    @staticmethod
    def _check_regex(group: ConsumerGroup, member: ConsumerMember, updated: ConsumerMember) -> None:
        regex = updated.subscribed_regex
        if not regex or regex == member.subscribed_regex or group.subscribers_of(regex):
            return
        try:
            topic_regex(regex)
        except InvalidRegex as error:
            raise PeerError(
                ErrorCode.INVALID_REGULAR_EXPRESSION,
                f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
            ) from None

    def resolve_regexes(
        self,
        group_id: str,
        brings_new_regex: bool,
        uses_regex: bool,
        now: Now,
        *,
        shows_topic: Callable[[str], bool] | None,
    ) -> None:
        """Resolve the group's regular expressions if that is due, as a separate change. `shows_topic`: whether the
        member whose heartbeat is handled may see a topic; others do not match (None: all may be seen)."""
        groups = self._groups
        group = groups.groups.get(group_id)
        if group is None or not (brings_new_regex or uses_regex or group.regexes):
            return
        wanted = {member.subscribed_regex for member in group.members.values() if member.subscribed_regex}
        if not wanted:
            return
        last = next(iter(group.regexes.values()), None)
        since_ms = None if last is None else now.wall_ms - last.timestamp_ms
        # Below 0: the wall clock was set back, and must not delay this until it has caught up.
        if since_ms is not None and 0 <= since_ms <= REGEX_REFRESH_PAUSE_MS:
            return
        is_due = (
            brings_new_regex
            or len(wanted) != len(group.regexes)
            or (last.version if last is not None else 0) < self._new_topics_at
            or (since_ms is not None and not 0 <= since_ms <= groups.settings.regex_refresh_interval_ms)
        )
        if not is_due:
            return
        image = groups.image
        change = GroupChange(group)
        needs_epoch = False
        for regex in sorted(wanted):
            try:
                matches = topic_regex(regex).matches
            except InvalidRegex:
                # Another release accepted it: it matches nothing here.
                found: frozenset[str] = frozenset()
            else:
                found = frozenset(
                    name
                    for name in image.topics_by_name
                    if matches(name) and (shows_topic is None or shows_topic(name))
                )
            known = group.regexes.get(regex)
            needs_epoch |= found != (frozenset() if known is None else known.topics)
            change.add(records.RegexStored(group_id, regex, ResolvedRegex(found, max(image.offset, 0), now.wall_ms)))
        self._targets.raise_epoch(change, needs_epoch)
        groups.commit(change, now)
