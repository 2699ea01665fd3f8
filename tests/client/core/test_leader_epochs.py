"""The leader epoch in requests when neither leaders nor metadata report it; see also `test_older_kafka.py`."""

from __future__ import annotations

from fenceline.client.core.leader_epochs import EpochGuesses
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition

TP = TopicPartition("t", 0)
FENCED, UNKNOWN = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH


def test_no_epoch_is_guessed_before_a_leader_omits_its_epoch() -> None:
    guesses = EpochGuesses()
    assert guesses.of(TP) == -1
    guesses.epoch_omitted(TP, -1)
    assert guesses.of(TP) == -1
    guesses.epoch_omitted(TP, 3)
    assert guesses.of(TP) == 3


def test_rejected_guess_is_followed_by_the_next_or_the_metadata_epoch() -> None:
    guesses = EpochGuesses()
    guesses.epoch_omitted(TP, 3)
    assert guesses.rejected(TP, 3, 3, FENCED)
    assert guesses.of(TP) == 4
    assert guesses.rejected(TP, 4, 9, FENCED)
    assert guesses.of(TP) == 9
    assert not guesses.rejected(TP, 9, 9, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert guesses.of(TP) == 9


def test_leader_unaware_of_a_guess_is_asked_with_the_metadata_epoch() -> None:
    """A recreated topic starts with epoch 0."""
    guesses = EpochGuesses()
    guesses.epoch_omitted(TP, 3)
    assert not guesses.rejected(TP, 3, 3, UNKNOWN)
    assert guesses.of(TP) == -1
    guesses.epoch_omitted(TP, 0)
    assert guesses.of(TP) == 0
