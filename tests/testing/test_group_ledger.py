"""The ledger of a group detects forgotten commits and records that no member received."""

from __future__ import annotations

from tests.support.replicated_groups import GroupLedger


def _ledger() -> GroupLedger:
    """Two members read partition 0 up to 10, partition 1 up to 5."""
    ledger = GroupLedger("t", 2)
    ledger.note_commit({0: 6, 1: 5})
    ledger.note_read(0, 0, 6)
    ledger.note_read(0, 4, 10)
    ledger.note_read(1, 0, 5)
    return ledger


def test_a_correct_ledger() -> None:
    ledger = _ledger()
    ledger.note_begin("m", 0, 6, committed=6)
    ledger.note_begin("m", 0, 8, committed=6)  # a commit whose answer was lost
    assert ledger.complaints({0: 10, 1: 5}) == []
    assert ledger.reached({0: 6, 1: 5})
    assert not ledger.reached({0: 7, 1: 5})


def test_a_commit_that_was_forgotten() -> None:
    ledger = _ledger()
    ledger.note_begin("m", 0, 5, committed=6)
    assert ledger.complaints({0: 10, 1: 5}) == ["m began t-0 at 5, though a commit of 6 was answered"]


def test_a_late_response_changes_nothing() -> None:
    ledger = _ledger()
    ledger.note_commit({0: 3})
    assert ledger.committed() == {0: 6, 1: 5}


def test_records_that_no_member_received() -> None:
    ledger = GroupLedger("t", 2)
    ledger.note_read(0, 0, 4)
    ledger.note_read(0, 5, 10)
    assert ledger.complaints({0: 10, 1: 0}) == ["no member read t-0 from 4 on; it ends at 10"]
    assert ledger.complaints({0: 4, 1: 1}) == ["no member read t-1 from 0 on; it ends at 1"]
