"""The messages that tell what has changed in the aggregate, and the comparison of the topic with the table."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from fenceline.demo.aggregate import FlightSums, Hourly
from fenceline.demo.published import (
    PublishedMessage,
    PublishedTopic,
    Publisher,
    changes,
    check_published,
    texts_of,
)

_FIRST = (datetime(2013, 1, 1, 5, tzinfo=UTC), "JFK")
_SECOND = (datetime(2013, 1, 1, 6, tzinfo=UTC), "LGA")


def sums(raw_version: int, *cells: tuple[tuple[datetime, str], int]) -> Hourly:
    """`cells`: key and number of flights."""
    hourly = Hourly()
    hourly.raw_version = raw_version
    hourly.cells = {key: FlightSums(flights, 1.5 * flights) for key, flights in cells}
    return hourly


def test_only_cells_that_differ_are_sent() -> None:
    before = texts_of(sums(1, (_FIRST, 1), (_SECOND, 2)))
    after = texts_of(sums(2, (_FIRST, 1), (_SECOND, 3)))
    assert [each.key for each in changes(before, after)] == ["2013-01-01T06 LGA"]
    assert after[_FIRST] == before[_FIRST]


def test_a_cell_that_is_gone_is_sent_without_value() -> None:
    found = changes(texts_of(sums(1, (_FIRST, 1), (_SECOND, 2))), texts_of(sums(2, (_SECOND, 2))))
    assert found == [PublishedMessage("2013-01-01T05 JFK", None)]


def test_the_same_sums_of_another_version_are_no_change() -> None:
    assert changes(texts_of(sums(1, (_FIRST, 1))), texts_of(sums(2, (_FIRST, 1)))) == []


Change = Callable[[list[PublishedMessage]], object]


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda messages: None, set()),
        (lambda messages: messages.pop(), {"rows of the aggregate in its topic", "messages of committed transactions"}),
        (
            lambda messages: messages.append(messages[0]),
            {"messages of committed transactions", "messages that are there twice"},
        ),
        (
            lambda messages: messages.append(messages[0]._replace(key="2013-01-01T09 EWR")),
            {"keys in the topic without a row", "messages of committed transactions"},
        ),
    ],
)
def test_a_topic_that_differs_from_the_table(spoil: Change, wrong: set[str]) -> None:
    hourly = sums(1, (_FIRST, 1), (_SECOND, 2))
    messages = changes({}, texts_of(hourly))
    publisher = Publisher("nowhere:9092")
    publisher.records, publisher.left_behind = len(messages), 2
    spoil(messages)
    topic = PublishedTopic(messages, len(messages) + 2)
    found = check_published(topic, hourly.as_table(), publisher)
    assert {each.name for each in found if not each.passed} == wrong


def test_messages_of_the_writer_that_died_are_hidden() -> None:
    hourly = sums(1, (_FIRST, 1))
    messages = changes({}, texts_of(hourly))
    publisher = Publisher("nowhere:9092")
    publisher.records, publisher.left_behind = 1, 1
    (found,) = (
        each for each in check_published(PublishedTopic(messages, 1), hourly.as_table(), publisher) if not each.passed
    )
    assert (found.expected, found.found) == ("1", "0")
