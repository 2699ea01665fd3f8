"""Errors keep their attributes and messages when pickled between processes."""

from __future__ import annotations

import pickle

import pytest

from fenceline.client.core.errors import (
    BrokersUnreachable,
    ConnectionLost,
    EpochMismatchError,
    LogTruncationError,
    NoOffsetError,
    OffsetOutOfRangeError,
    TimedOut,
    TopicReplacedError,
    broker_error,
    error_code,
)
from fenceline.errors import ErrorCode

_ERRORS = [
    LogTruncationError("t", 3, 150, 7, divergent_offset=100, divergent_epoch=6),
    LogTruncationError("t", 3, 150, 7),
    LogTruncationError("t", 3, 150, 7, others=[LogTruncationError("t", 4, 9, 7, divergent_offset=2)]),
    EpochMismatchError("t", 1, 10, 5, 4),
    OffsetOutOfRangeError("t", 0, 9, leader_epoch=2, log_start_offset=10, log_end_offset=20, detail="why"),
    TopicReplacedError("t", "a", "b"),
    NoOffsetError("t", 0),
    ConnectionLost("gone"),
    TimedOut("late"),
    BrokersUnreachable("none", "start one"),
    broker_error(ErrorCode.MESSAGE_TOO_LARGE, "producing to t-0", "The request included"),
]


@pytest.mark.parametrize("error", _ERRORS, ids=lambda e: type(e).__name__)
def test_pickling_keeps_type_text_and_attributes(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    for others in (getattr(error, "others", ()), getattr(copy, "others", ())):
        assert all(type(one) is LogTruncationError for one in others)
    assert _facts(copy) == _facts(error)


def _facts(error: Exception) -> dict[str, object]:
    """Nested errors are compared by their messages."""
    return {name: str(value) for name, value in error.__dict__.items()}


def test_truncation_error_includes_all_facts() -> None:
    text = str(_ERRORS[0])
    for fact in ("t-3", "offset 150", "epoch 7", "offset 100", "epoch 6", "records 100 to 149", "seek to 100"):
        assert fact in text


def test_rejections_carry_the_brokers_message_and_a_hint() -> None:
    assert str(_ERRORS[-1]) == (
        "producing to t-0: MESSAGE_TOO_LARGE (The request included). "
        "Raise the topic's max.message.bytes, or lower batch.size."
    )


def test_unknown_error_code_maps_to_an_unknown_error() -> None:
    assert error_code(32_000) is ErrorCode.UNKNOWN_SERVER_ERROR
