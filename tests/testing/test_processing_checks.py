"""What was processed, compared with what was acknowledged."""

from __future__ import annotations

import pytest

from fenceline.testing import AcknowledgedRecord, assert_at_least_once, assert_exactly_once

RECORDS = [AcknowledgedRecord("t", 0, number, None, f"v{number}".encode()) for number in range(12)]
VALUES = [record.value for record in RECORDS]


def test_everything_once() -> None:
    assert_at_least_once(RECORDS, VALUES)
    assert_exactly_once(RECORDS, reversed(VALUES))
    assert_exactly_once(["a", "b"], ["b", "a"])


def test_what_is_missing_is_listed() -> None:
    for check in (assert_at_least_once, assert_exactly_once):
        with pytest.raises(AssertionError) as error:
            check(RECORDS, VALUES[1:])
        assert str(error.value) == "1 record was acknowledged, but never processed: b'v0' (t-0, offset 0)"
    with pytest.raises(AssertionError, match=r"^12 orders were acknowledged, .* and 2 more$"):
        assert_at_least_once(RECORDS, [], what="order")


def test_twice_is_too_often_for_one_of_them() -> None:
    assert_at_least_once(RECORDS, [*VALUES, VALUES[3]])
    with pytest.raises(AssertionError, match="1 record was processed more than once: b'v3'"):
        assert_exactly_once(RECORDS, [*VALUES, VALUES[3]])


def test_a_record_without_an_acknowledgement_may_have_been_written() -> None:
    assert_exactly_once(RECORDS, [*VALUES, b"x"])
    with pytest.raises(AssertionError, match="b'x'"):
        assert_exactly_once(RECORDS, [*VALUES, b"x", b"x"])


def test_an_identity_of_ones_own_and_lost_records() -> None:
    assert_exactly_once(RECORDS, range(2, 12), identity=lambda record: record.offset, lost=RECORDS[:2])
    with pytest.raises(AssertionError, match=r"b'v2'"):
        assert_exactly_once(RECORDS, range(3, 12), identity=lambda record: record.offset, lost=RECORDS[:2])
