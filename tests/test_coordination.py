"""The hash that chooses a coordinator, against values of Java's String.hashCode."""

from __future__ import annotations

import pytest

from fenceline.coordination import java_string_hash, partition_for


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -2147483648),
        ("console-consumer-12345", None),
        ("\U0001f600", 1772899),
        ("grüße", None),
    ],
)
def test_java_string_hash(text: str, expected: int | None) -> None:
    value = java_string_hash(text)
    assert -(1 << 31) <= value < 1 << 31
    if expected is not None:
        assert value == expected


def test_smallest_hash_has_no_positive_counterpart() -> None:
    assert partition_for("polygenelubricants", 50) == 0


def test_negative_hashes_are_made_positive() -> None:
    assert java_string_hash("zzzzzz") < 0
    assert partition_for("zzzzzz", 50) == -java_string_hash("zzzzzz") % 50
