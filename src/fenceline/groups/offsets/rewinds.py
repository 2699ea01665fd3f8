"""Commits that moved back because the log was truncated: how they differ from a deliberate reset.

Owns the rule alone. Such a commit is accepted like any other; the group's position has the mark from then on.

How it works. A commit is (offset, epoch of the record before it). In one history of a log, epochs never decrease with
increasing offsets. A commit below the last one with a newer epoch therefore shows that the records read before are no
longer in the log. A client that seeks back, or resets a group, commits an older epoch or none. A consumer that detects
the truncation and commits before it reads on has the old epoch, too: but exactly at the current end of that epoch,
below the last commit. Nothing is stored for a mark: a reader of the records of `__consumer_offsets` in order finds the
same, in Kafka's topic as well, as far back as compaction keeps them.

Rules: epochs.md E61.
"""

from __future__ import annotations

from uuid import UUID

from fenceline.groups.messages import CommittedRewind
from fenceline.ids import ZERO_UUID


def step_back(before: tuple[int, int, UUID], after: tuple[int, int, UUID], at_ms: int) -> CommittedRewind | None:
    """Of two consecutive commits, each (offset, leader epoch, topic id): the step, if it goes back, for any reason."""
    from_offset, from_epoch, from_topic = before
    to_offset, to_epoch, to_topic = after
    if to_offset >= from_offset or from_epoch < 0:
        return None
    if ZERO_UUID not in (from_topic, to_topic) and from_topic != to_topic:
        return None  # a new topic of the same name starts over
    return CommittedRewind(from_offset, from_epoch, to_offset, to_epoch, at_ms)


def shows_truncation(step: CommittedRewind) -> bool:
    """Whether the commits alone show that the log was truncated between them."""
    return step.to_epoch > step.from_epoch


def is_at_epoch_end(step: CommittedRewind, epoch_end: int) -> bool:
    """Whether it leads to the current end of the first commit's epoch (`epoch_end`, -1: not known)."""
    return step.to_epoch >= 0 and 0 <= epoch_end == step.to_offset
