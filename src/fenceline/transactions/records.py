"""The records of `__transaction_state`: one of each transactional id, its key the id and its value a `Transaction`.

    value, version 0   version int16, producer id int64, epoch int16, timeout int32 (ms), state int8,
                       topics: int32 count (-1: null), each a name (int16 length) and indexes (int32 count,
                       int32 each), last update int64 (ms), start int64 (ms)
    value, version 1   the same with compact counts (a varint of the count and 1, 0: null), and tagged fields
                       behind each topic and at the end: 0 previous producer id, 1 next producer id,
                       2 client version, 10000 last epoch, 10001 fenced

Owns `formats.md F7` for this topic and `transactions.md X26`. Decides nothing. Kafka reads what is written here and the
reverse; the tagged fields from 10000 on are ours and ignored by Kafka: they keep what Kafka's coordinator forgets when
it moves (`transactions.md X6`). The codec is written by hand: a coordinator that takes over reads a record of each id
before it answers, and writes three in each transaction.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from fenceline.errors import InternalError
from fenceline.transactions.messages import TopicIndex
from fenceline.transactions.model import NO_EPOCH, NO_PARTITIONS, NO_PRODUCER_ID, Transaction
from fenceline.transactions.states import TransactionState

MOST_ID_BYTES: Final = 2**15 - 1
"""The key has a length of two bytes; requests of flexible versions can carry longer ids."""
NEWEST_VALUE_VERSION: Final = 1

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")
_KEY: Final = struct.Struct(">hh")
"""Version and length of the id."""
_HEAD: Final = struct.Struct(">hqhib")
"""Version, producer id, epoch, timeout, state."""
_TIMES: Final = struct.Struct(">qq")
"""Last update, start."""
_PREVIOUS, _NEXT, _CLIENT_VERSION, _LAST_EPOCH, _FENCED = 0, 1, 2, 10_000, 10_001
_TAG_BYTES: Final = {_PREVIOUS: 8, _NEXT: 8, _CLIENT_VERSION: 2, _LAST_EPOCH: 2, _FENCED: 1}
_MOST_VARINT_BITS: Final = 35
_STATES: Final = {int(state): state for state in TransactionState}


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
        name = _text(key, _KEY.size, _KEY.unpack_from(key)[1])
        if value is None:
            return StoredTransaction(name, None)
        (version,) = _INT16.unpack_from(value)
        if not 0 <= version <= NEWEST_VALUE_VERSION:
            return UnknownTransactionRecord(0, version)
        return StoredTransaction(name, _transaction_of(value, version > 0))
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise InternalError(f"a record of __transaction_state cannot be read: {error} (key {key.hex()})") from error


def _transaction_of(value: bytes, is_flexible: bool) -> Transaction:
    _, producer_id, epoch, timeout_ms, state = _HEAD.unpack_from(value)
    partitions, position = (_compact_partitions if is_flexible else _plain_partitions)(value, _HEAD.size)
    last_update_ms, start_ms = _TIMES.unpack_from(value, position)
    previous, following, last_epoch, client_version, fenced = NO_PRODUCER_ID, NO_PRODUCER_ID, NO_EPOCH, 0, False
    if is_flexible:
        count, position = _varint(value, position + _TIMES.size)
        for _ in range(count):
            tag, position = _varint(value, position)
            size, position = _varint(value, position)
            if size != _TAG_BYTES.get(tag, size):
                raise ValueError(f"tagged field {tag} of {size} bytes")
            if tag == _PREVIOUS:
                (previous,) = _INT64.unpack_from(value, position)
            elif tag == _CLIENT_VERSION:
                (client_version,) = _INT16.unpack_from(value, position)
            elif tag == _LAST_EPOCH:
                (last_epoch,) = _INT16.unpack_from(value, position)
            elif tag == _NEXT:
                (following,) = _INT64.unpack_from(value, position)
            elif tag == _FENCED:
                fenced = value[position] != 0
            position += size
    if position > len(value):
        raise ValueError(f"it ends after {len(value)} bytes")
    return Transaction(
        producer_id,
        epoch,
        timeout_ms,
        _STATES[state],
        partitions,
        start_ms,
        last_update_ms,
        previous,
        following,
        last_epoch,
        client_version,
        fenced,
    )


def _plain_partitions(value: bytes, position: int) -> tuple[frozenset[TopicIndex], int]:
    """Also returns the position behind them."""
    (count,) = _INT32.unpack_from(value, position)
    position += _INT32.size
    if count <= 0:
        return NO_PARTITIONS, position
    found: list[TopicIndex] = []
    for _ in range(count):
        (length,) = _INT16.unpack_from(value, position)
        position += _INT16.size
        topic = _text(value, position, length)
        position += length
        (indexes,) = _INT32.unpack_from(value, position)
        position += _INT32.size
        found += [(topic, index) for index in struct.unpack_from(f">{indexes}i", value, position)]
        position += indexes * _INT32.size
    return frozenset(found), position


def _compact_partitions(value: bytes, position: int) -> tuple[frozenset[TopicIndex], int]:
    """Also returns the position behind them."""
    count, position = _varint(value, position)
    if count <= 1:
        return NO_PARTITIONS, position
    found: list[TopicIndex] = []
    for _ in range(count - 1):
        length, position = _varint(value, position)
        topic = _text(value, position, length - 1)
        position += length - 1
        indexes, position = _varint(value, position)
        found += [(topic, index) for index in struct.unpack_from(f">{indexes - 1}i", value, position)]
        position = _after_tags(value, position + (indexes - 1) * _INT32.size)
    return frozenset(found), position


def _text(content: bytes, position: int, length: int) -> str:
    if length < 0 or position + length > len(content):
        raise ValueError(f"a text of {length} bytes at {position}, of {len(content)}")
    return content[position : position + length].decode(errors="surrogatepass")


def _after_tags(content: bytes, position: int) -> int:
    count, position = _varint(content, position)
    for _ in range(count):
        _, position = _varint(content, position)
        size, position = _varint(content, position)
        position += size
    return position


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint and the position behind it. Raises IndexError, ValueError."""
    byte = content[position]
    if byte < 0x80:
        return byte, position + 1
    result, shift = byte & 0x7F, 7
    while shift < _MOST_VARINT_BITS:
        position += 1
        byte = content[position]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return result, position + 1
        shift += 7
    raise ValueError(f"a number of more than {_MOST_VARINT_BITS} bits at {position}")


# --- what is written ----------------------------------------


def can_be_key(transactional_id: str) -> bool:
    """Whether a record can hold the id."""
    return (
        len(transactional_id) <= MOST_ID_BYTES and len(transactional_id.encode(errors="surrogatepass")) <= MOST_ID_BYTES
    )


def key_of(transactional_id: str) -> bytes:
    name = transactional_id.encode(errors="surrogatepass")
    return _KEY.pack(0, len(name)) + name


def value_of(transaction: Transaction, version: int) -> bytes:
    """`version`: 0 while transaction.version is 0, else 1. Version 0 has no tagged fields: `decisions` sees to it that
    none of them is needed then (`transactions.md X27`)."""
    head = _HEAD.pack(version, transaction.producer_id, transaction.epoch, transaction.timeout_ms, transaction.state)
    times = _TIMES.pack(transaction.last_update_ms, transaction.start_ms)
    if version == 0:
        return head + _plain(transaction) + times
    return head + _compact(transaction) + times + _tags(transaction)


def _plain(transaction: Transaction) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return _INT32.pack(-1)
    by_topic = _by_topic(transaction.partitions)
    parts = [_INT32.pack(len(by_topic))]
    for topic, indexes in by_topic.items():
        name = topic.encode(errors="surrogatepass")
        parts += [_INT16.pack(len(name)), name, struct.pack(f">i{len(indexes)}i", len(indexes), *indexes)]
    return b"".join(parts)


def _compact(transaction: Transaction) -> bytes:
    if transaction.state is TransactionState.EMPTY:
        return b"\0"
    by_topic = _by_topic(transaction.partitions)
    parts = [_packed(len(by_topic) + 1)]
    for topic, indexes in by_topic.items():
        name = topic.encode(errors="surrogatepass")
        parts += [
            _packed(len(name) + 1),
            name,
            _packed(len(indexes) + 1),
            struct.pack(f">{len(indexes)}i", *indexes),
            b"\0",
        ]
    return b"".join(parts)


def _tags(transaction: Transaction) -> bytes:
    """Those that do not have their default; Kafka writes the previous producer id even if it is -1."""
    tags = [_tag(_PREVIOUS, _INT64.pack(transaction.previous_producer_id))]
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags.append(_tag(_NEXT, _INT64.pack(transaction.next_producer_id)))
    if transaction.client_version:
        tags.append(_tag(_CLIENT_VERSION, _INT16.pack(transaction.client_version)))
    if transaction.last_epoch != NO_EPOCH:
        tags.append(_tag(_LAST_EPOCH, _INT16.pack(transaction.last_epoch)))
    if transaction.fenced:
        tags.append(_tag(_FENCED, b"\1"))
    return _packed(len(tags)) + b"".join(tags)


def _tag(number: int, content: bytes) -> bytes:
    return _packed(number) + _packed(len(content)) + content


def _packed(number: int) -> bytes:
    """An unsigned varint."""
    if number < 0x80:
        return bytes((number,))
    parts = bytearray()
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _by_topic(partitions: frozenset[TopicIndex]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        by_topic.setdefault(topic, []).append(index)
    return by_topic
