"""Committed offsets of simulated groups: each has the request that made it, and belongs to one topic id."""

from __future__ import annotations

import pytest

from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.group_checks import NOTHING, CheckedPositions, Commit

KEY, OTHER = (b"id", 0), (b"another", 0)
FIRST, SECOND, THIRD = Commit(5, "1"), Commit(5, "2"), Commit(7, "3")


def positions() -> CheckedPositions:
    made = CheckedPositions()
    for commit in (FIRST, SECOND):
        made.sends("g", KEY, commit)
        made.acknowledged("g", KEY, commit)
    return made


def read(made: CheckedPositions, commit: Commit, *, key: tuple[bytes, int] = KEY, may_be_older: bool = False) -> None:
    made.read("g", key, commit, "n1", may_be_older=may_be_older)


def test_the_acknowledged_commit_counts() -> None:
    read(positions(), SECOND)


def test_an_older_commit_of_the_same_offset_is_a_loss() -> None:
    with pytest.raises(InvariantBroken, match=r"offset 5 of commit 1 after offset 5 of commit 2 \(committed offsets"):
        read(positions(), FIRST)
    read(positions(), FIRST, may_be_older=True)


def test_a_missing_offset_needs_a_request() -> None:
    made = positions()
    with pytest.raises(InvariantBroken, match="no offset"):
        read(made, NOTHING)
    made.deletes("g")
    read(made, NOTHING)
    made = positions()
    made.deletes("g", OTHER)
    with pytest.raises(InvariantBroken, match="no offset"):
        read(made, NOTHING)


def test_a_commit_without_a_response_may_count() -> None:
    made = positions()
    made.sends("g", KEY, THIRD)
    read(made, SECOND)
    read(made, THIRD)
    with pytest.raises(InvariantBroken):
        read(made, SECOND)


def test_a_new_topic_of_the_name_has_no_committed_offset() -> None:
    made = positions()
    read(made, NOTHING, key=OTHER)
    with pytest.raises(InvariantBroken):
        read(made, SECOND, key=OTHER)


def test_a_deleted_offset_does_not_return() -> None:
    made = positions()
    made.deletes("g", KEY)
    made.deleted("g", KEY)
    with pytest.raises(InvariantBroken):
        read(made, SECOND)
