"""The records of `__transaction_state`: one of each transactional id, its key the id and its value a `Transaction`.

Owns `formats.md F7` for this topic and `transactions.md X26`. Decides nothing. Kafka reads what is written here and the
reverse; two tagged fields are ours and ignored by Kafka: they keep what Kafka's coordinator forgets when it moves
(`transactions.md X6`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.errors import InternalError
from fenceline.transactions.messages import TopicIndex
from fenceline.transactions.model import NO_EPOCH, NO_PARTITIONS, NO_PRODUCER_ID, Transaction
from fenceline.transactions.states import TransactionState
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.message import codec, kafka

MOST_ID_BYTES: Final = 2**15 - 1
"""The key has a length of two bytes; requests of flexible versions can carry longer ids."""
NEWEST_VALUE_VERSION: Final = 1

_INT16: Final = struct.Struct(">h")
_KEY_VERSION: Final = _INT16.pack(0)
_ALWAYS_WRITTEN: Final = -(1 << 63)
"""A default that no value has: Kafka writes the tagged field of the previous producer id even when it is -1."""


@dataclass(frozen=True, slots=True)
class TransactionLogKey:
    """Which transactional id a record is of."""

    transactional_id: str = kafka("string", versions="0+", default="")


@dataclass(frozen=True, slots=True)
class PartitionsOfTopic:
    """The partitions of one topic in the transaction."""

    topic: str = kafka("string", versions="0+", default="")
    partition_ids: tuple[int, ...] = kafka("[]int32", versions="0+", default=())


@dataclass(frozen=True, slots=True)
class TransactionLogValue:
    """The fields of the value, in Kafka's order; version 1 adds the tagged ones."""

    producer_id: int = kafka("int64", versions="0+", default=0)
    previous_producer_id: int = kafka("int64", versions="1+", tag=0, tagged_versions="1+", default=_ALWAYS_WRITTEN)
    next_producer_id: int = kafka("int64", versions="1+", tag=1, tagged_versions="1+", default=-1)
    producer_epoch: int = kafka("int16", versions="0+", default=0)
    transaction_timeout_ms: int = kafka("int32", versions="0+", default=0)
    transaction_status: int = kafka("int8", versions="0+", default=0)
    transaction_partitions: tuple[PartitionsOfTopic, ...] | None = kafka(
        "[]PartitionsOfTopic", versions="0+", nullable="0+", default=()
    )
    transaction_last_update_timestamp_ms: int = kafka("int64", versions="0+", default=0)
    transaction_start_timestamp_ms: int = kafka("int64", versions="0+", default=0)
    client_transaction_version: int = kafka("int16", versions="1+", tag=2, tagged_versions="1+", default=0)
    last_producer_epoch: int = kafka("int16", versions="1+", tag=10_000, tagged_versions="1+", default=-1)
    fenced: bool = kafka("bool", versions="1+", tag=10_001, tagged_versions="1+", default=False)


_KEY: Final = codec(TransactionLogKey, versions=(0, 0), flexible=None)
_VALUE: Final = codec(TransactionLogValue, versions=(0, NEWEST_VALUE_VERSION), flexible="1+")


class StoredTransaction(NamedTuple):
    transactional_id: str
    transaction: Transaction | None
    """None: removed."""


class UnknownTransactionRecord(NamedTuple):
    """A record of a later release: it is skipped, with a warning."""

    key_version: int
    value_version: int
    """-1 if the key is of an unknown version."""


# --- what is read ----------------------------------------


def decode(key: bytes | None, value: bytes | None) -> StoredTransaction | UnknownTransactionRecord:
    """The meaning of one record. Raises InternalError on unreadable bytes."""
    if key is None:
        raise InternalError("a record of __transaction_state has no key")
    try:
        (key_version,) = _INT16.unpack_from(key)
        if key_version != 0:
            return UnknownTransactionRecord(key_version, -1)
        name = _KEY.decode(0, key, 2)[0].transactional_id
        if value is None:
            return StoredTransaction(name, None)
        (version,) = _INT16.unpack_from(value)
        if not 0 <= version <= NEWEST_VALUE_VERSION:
            return UnknownTransactionRecord(0, version)
        return StoredTransaction(name, _transaction_of(_VALUE.decode(version, value, 2)[0]))
    except (struct.error, MalformedRequest, ValueError, AssertionError) as error:
        raise InternalError(f"a record of __transaction_state cannot be read: {error} (key {key.hex()})") from error


def _transaction_of(stored: TransactionLogValue) -> Transaction:
    previous = stored.previous_producer_id
    transaction = Transaction(
        producer_id=stored.producer_id,
        epoch=stored.producer_epoch,
        timeout_ms=stored.transaction_timeout_ms,
        state=TransactionState(stored.transaction_status),
        partitions=frozenset(
            (each.topic, index) for each in stored.transaction_partitions or () for index in each.partition_ids
        )
        or NO_PARTITIONS,
        start_ms=stored.transaction_start_timestamp_ms,
        last_update_ms=stored.transaction_last_update_timestamp_ms,
        previous_producer_id=NO_PRODUCER_ID if previous == _ALWAYS_WRITTEN else previous,
        next_producer_id=stored.next_producer_id,
        last_epoch=stored.last_producer_epoch,
        client_version=stored.client_transaction_version,
        fenced=stored.fenced,
    )
    return transaction


# --- what is written ----------------------------------------


def can_be_key(transactional_id: str) -> bool:
    """Whether a record can hold the id."""
    return (
        len(transactional_id) <= MOST_ID_BYTES and len(transactional_id.encode(errors="surrogatepass")) <= MOST_ID_BYTES
    )


def key_of(transactional_id: str) -> bytes:
    return _KEY_VERSION + _KEY.encode(0, TransactionLogKey(transactional_id))


def value_of(transaction: Transaction, version: int) -> bytes:
    """`version`: 0 while transaction.version is 0, else 1. Version 0 has no tagged fields: `decisions` sees to it that
    none of them is needed then (`transactions.md X27`)."""
    empty = transaction.state is TransactionState.EMPTY
    flexible = version > 0
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id if flexible else _ALWAYS_WRITTEN,
        next_producer_id=transaction.next_producer_id if flexible else NO_PRODUCER_ID,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if empty else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version if flexible else 0,
        last_producer_epoch=transaction.last_epoch if flexible else NO_EPOCH,
        fenced=transaction.fenced and flexible,
    )
    return _INT16.pack(version) + _VALUE.encode(version, value)


def _by_topic(partitions: Iterable[TopicIndex]) -> tuple[PartitionsOfTopic, ...]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return tuple(PartitionsOfTopic(topic, tuple(indexes)) for topic, indexes in by_topic.items())
