"""What was processed, compared with what was acknowledged."""

from __future__ import annotations

import pytest

from fenceline.testing import AcknowledgedRecord, assert_processed_at_least_once, assert_processed_exactly_once

RECORDS = [AcknowledgedRecord("t", 0, number, None, f"v{number}".encode()) for number in range(12)]
VALUES = [record.value for record in RECORDS]


def test_everything_once() -> None:
    assert_processed_at_least_once(RECORDS, VALUES)
    assert_processed_exactly_once(RECORDS, reversed(VALUES))


def test_what_is_missing_is_listed() -> None:
    for check in (assert_processed_at_least_once, assert_processed_exactly_once):
        with pytest.raises(AssertionError) as error:
            check(RECORDS, VALUES[2:])
        assert "2 of 12 acknowledged records were not processed:\n  t-0@0 b'v0'\n  t-0@1 b'v1'" in str(error.value)
    with pytest.raises(AssertionError, match=r"\.\.\. and 2 more"):
        assert_processed_at_least_once(RECORDS, [])


def test_twice_is_too_often_for_one_of_them() -> None:
    assert_processed_at_least_once(RECORDS, [*VALUES, VALUES[3]])
    with pytest.raises(AssertionError, match=r"1 records were processed too often:\n  t-0@3 b'v3' \(2 times\)"):
        assert_processed_exactly_once(RECORDS, [*VALUES, VALUES[3]])


def test_what_was_never_acknowledged() -> None:
    with pytest.raises(AssertionError, match=r"1 processed records were never acknowledged:\n  b'x'"):
        assert_processed_exactly_once(RECORDS, [*VALUES, b"x"])


def test_equal_records_are_counted() -> None:
    twins = [AcknowledgedRecord("t", 0, number, None, b"same") for number in range(2)]
    assert_processed_exactly_once(twins, [b"same", b"same"])
    with pytest.raises(AssertionError, match="not processed"):
        assert_processed_exactly_once(twins, [b"same"])


def test_an_identity_of_ones_own_and_lost_records() -> None:
    assert_processed_exactly_once(RECORDS, range(2, 12), identity=lambda record: record.offset, lost=RECORDS[:2])
