"""The codec of `transactions.records`, written by hand, against the generated one of the same schema: both ways, on
random transactions, and on bytes that are cut or changed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from random import Random
from typing import Final

import pytest

from fenceline.errors import InternalError
from fenceline.transactions import records
from fenceline.transactions.model import MAX_EPOCH, Transaction
from fenceline.transactions.records import NEWEST_VALUE_VERSION, StoredTransaction
from fenceline.transactions.states import TransactionState
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka

_ALWAYS_WRITTEN: Final = -(1 << 63)
"""A default that no value has: Kafka writes the tagged field of the previous producer id even when it is -1."""
_COUNT: Final = 1_000


@dataclass(frozen=True, slots=True)
class _Key:
    """Which transactional id a record is of."""

    transactional_id: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class _Topic:
    """The partitions of one topic in the transaction."""

    topic: str = kafka("string", versions="0+", default="")
    partition_ids: tuple[int, ...] = kafka("[]int32", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class _Value:
    """The fields of the value, in Kafka's order; version 1 adds the tagged ones."""

    producer_id: int = kafka("int64", versions="0+", default=0)
    previous_producer_id: int = kafka("int64", versions="1+", tag=0, tagged_versions="1+", default=_ALWAYS_WRITTEN)
    next_producer_id: int = kafka("int64", versions="1+", tag=1, tagged_versions="1+", default=-1)
    producer_epoch: int = kafka("int16", versions="0+", default=0)
    transaction_timeout_ms: int = kafka("int32", versions="0+", default=0)
    transaction_status: int = kafka("int8", versions="0+", default=0)
    transaction_partitions: tuple[_Topic, ...] | None = kafka("[]_Topic", versions="0+", nullable="0+", default=())
    transaction_last_update_timestamp_ms: int = kafka("int64", versions="0+", default=0)
    transaction_start_timestamp_ms: int = kafka("int64", versions="0+", default=0)
    client_transaction_version: int = kafka("int16", versions="1+", tag=2, tagged_versions="1+", default=0)
    last_producer_epoch: int = kafka("int16", versions="1+", tag=10_000, tagged_versions="1+", default=-1)
    fenced: bool = kafka("bool", versions="1+", tag=10_001, tagged_versions="1+", default=False)


_KEYS: Final = codec(_Key, versions=(0, 0), flexible=None)
_VALUES: Final = codec(_Value, versions=(0, NEWEST_VALUE_VERSION), flexible="1+")


def _random(rng: Random) -> Transaction:
    state = rng.choice(list(TransactionState))
    has_partitions = state is TransactionState.ONGOING or state.is_prepared
    names = ["t", "topic-with-a-longer-name", "\N{GREEK SMALL LETTER ALPHA}", "x" * 200]
    partitions = {(rng.choice(names), rng.randrange(1 << rng.choice((3, 31)))) for _ in range(rng.choice((1, 3, 150)))}
    times = [rng.choice((-1, 0, rng.getrandbits(41))) for _ in range(2)]
    return Transaction(
        rng.getrandbits(rng.choice((8, 62))),
        rng.randrange(-1, MAX_EPOCH + 1),
        rng.getrandbits(31),
        state,
        frozenset(partitions if has_partitions else ()),
        *times,
        rng.choice((-1, rng.getrandbits(62))),
        rng.choice((-1, rng.getrandbits(62))),
        rng.choice((-1, 7)),
        rng.randrange(3),
        rng.random() < 0.5,
    )


def _generated(transaction: Transaction, version: int) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(transaction.partitions):
        by_topic.setdefault(topic, []).append(index)
    topics = tuple(_Topic(topic, tuple(indexes)) for topic, indexes in by_topic.items())
    value = _Value(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if transaction.state is TransactionState.EMPTY else topics,
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
    )
    if version:
        value = _Value(
            **{name: getattr(value, name) for name in _UNTAGGED},
            previous_producer_id=transaction.previous_producer_id,
            next_producer_id=transaction.next_producer_id,
            client_transaction_version=transaction.client_version,
            last_producer_epoch=transaction.last_epoch,
            fenced=transaction.fenced,
        )
    return struct.pack(">h", version) + _VALUES.encode(version, value)


_UNTAGGED: Final = (
    "producer_id",
    "producer_epoch",
    "transaction_timeout_ms",
    "transaction_status",
    "transaction_partitions",
    "transaction_last_update_timestamp_ms",
    "transaction_start_timestamp_ms",
)


@pytest.mark.parametrize("version", [0, NEWEST_VALUE_VERSION])
def test_both_write_the_same_bytes_and_they_are_read_back(version: int) -> None:
    rng = Random(version)
    key = records.key_of("an id")
    assert key == struct.pack(">h", 0) + _KEYS.encode(0, _Key("an id"))
    for _ in range(_COUNT):
        transaction = _random(rng)
        value = records.value_of(transaction, version)
        assert value == _generated(transaction, version)
        stored = records.decode(key, value)
        assert isinstance(stored, StoredTransaction)
        assert stored.transaction is not None
        assert records.value_of(stored.transaction, version) == value


def _is_readable(value: bytes) -> bool:
    try:
        decoded, _ = _VALUES.decode(int.from_bytes(value[:2], "big", signed=True), value, 2)
        TransactionState(decoded.transaction_status)
    except (struct.error, MalformedRequest, ValueError):
        return False
    return True


def test_bytes_that_are_cut_or_changed_are_rejected_by_both_or_by_none() -> None:
    rng, key = Random(3), records.key_of("an id")
    rejected = 0
    for _ in range(_COUNT):
        whole = bytearray(records.value_of(_random(rng), rng.randrange(NEWEST_VALUE_VERSION + 1)))
        if rng.random() < 0.5:
            del whole[rng.randrange(2, len(whole)) :]
        else:
            whole[rng.randrange(2, len(whole))] = rng.randrange(256)
        value = bytes(whole)
        try:
            records.decode(key, value)
        except InternalError:
            rejected += 1
            assert not _is_readable(value), value.hex()
        else:
            assert _is_readable(value), value.hex()
    assert rejected > _COUNT / 4


def test_a_number_without_an_end_is_rejected() -> None:
    value = records.value_of(Transaction(1, 0, 1, TransactionState.ONGOING, frozenset({("t", 0)}), 0, 0), 1)
    with pytest.raises(InternalError, match="a number of more than"):
        records.decode(records.key_of("an id"), value[:17] + b"\xff" * 1_000_000)
