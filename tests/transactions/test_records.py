"""The records of `__transaction_state`: both versions, byte for byte."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fenceline.errors import InternalError
from fenceline.transactions.messages import TopicIndex
from fenceline.transactions.model import Transaction
from fenceline.transactions.records import (
    StoredTransaction,
    UnknownTransactionRecord,
    can_be_key,
    decode,
    key_of,
    value_of,
)
from fenceline.transactions.states import PREDECESSORS, TransactionState
from tests.transactions.world import World

PARTITIONS: frozenset[TopicIndex] = frozenset({("a", 1), ("a", 0), ("b", 7)})
ONGOING = Transaction(5, 3, 60_000, TransactionState.ONGOING, PARTITIONS, start_ms=10, last_update_ms=11)
FULL = replace(
    ONGOING,
    state=TransactionState.PREPARE_ABORT,
    previous_producer_id=4,
    next_producer_id=6,
    last_epoch=2,
    client_version=2,
    fenced=True,
)


@pytest.mark.parametrize(
    ("version", "transaction", "expected"),
    [
        (0, Transaction(5, 3, 60_000, last_update_ms=11), "0000 0000000000000005 0003 0000ea60 00 ffffffff"
         " 000000000000000b ffffffffffffffff"),
        (0, replace(ONGOING, state=TransactionState.COMPLETE_COMMIT, partitions=frozenset()),
         "0000 0000000000000005 0003 0000ea60 04 00000000 000000000000000b 000000000000000a"),
        (0, ONGOING, "0000 0000000000000005 0003 0000ea60 01 00000002 0001 61 00000002 00000000 00000001"
         " 0001 62 00000001 00000007 000000000000000b 000000000000000a"),
        (1, Transaction(5, 3, 60_000, last_update_ms=11), "0001 0000000000000005 0003 0000ea60 00 00"
         " 000000000000000b ffffffffffffffff 01 0008ffffffffffffffff"),
        (1, ONGOING, "0001 0000000000000005 0003 0000ea60 01 03 0261 03 00000000 00000001 00 0262 02 00000007 00"
         " 000000000000000b 000000000000000a 01 0008ffffffffffffffff"),
        (1, FULL, "0001 0000000000000005 0003 0000ea60 03 03 0261 03 00000000 00000001 00 0262 02 00000007 00"
         " 000000000000000b 000000000000000a 05 00080000000000000004 01080000000000000006 02020002"
         " 904e020002 914e0101"),
    ],
)  # fmt: skip
def test_bytes(version: int, transaction: Transaction, expected: str) -> None:
    """transactions.md X26: partitions null in Empty, [] in Complete*; the previous producer id is always written in
    version 1, the next one only in an overflow; our own fields come last."""
    assert value_of(transaction, version) == bytes.fromhex(expected.replace(" ", ""))
    assert key_of("x") == bytes.fromhex("0000000178")


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("version", [0, 1])
def test_every_state_is_read_as_it_was_written(state: TransactionState, version: int) -> None:
    at_rest = replace(ONGOING, state=state, partitions=frozenset())
    transaction = at_rest if state.is_at_rest else replace(FULL if state.is_prepared else ONGOING, state=state)
    if version == 0:
        transaction = replace(
            transaction, previous_producer_id=-1, next_producer_id=-1, last_epoch=-1, client_version=0, fenced=False
        )
    assert decode(key_of("x"), value_of(transaction, version)) == StoredTransaction("x", transaction)


def test_tombstone() -> None:
    assert decode(key_of("x"), None) == StoredTransaction("x", None)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        (b"\x00\x01\x00\x01x", b"", UnknownTransactionRecord(1, -1)),
        (key_of("x"), b"\x00\x02any", UnknownTransactionRecord(0, 2)),
    ],
)
def test_records_of_a_later_release_are_skipped_and_counted(
    key: bytes, value: bytes, expected: UnknownTransactionRecord
) -> None:
    """transactions.md X23."""
    assert decode(key, value) == expected
    world = World()
    loading, _ = world.coordinator.begin_load(0, 9)
    assert loading is not None
    loading.replay(key, value)
    assert (len(loading), loading.skipped) == (0, 1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"x"),
        (b"\x00", None),
        (b"\x00\x00\x00\x09x", None),
        (key_of("x"), b""),
        (key_of("x"), value_of(ONGOING, 1)[:-1]),
        (key_of("x"), value_of(ONGOING, 0)[:20]),
        (key_of("x"), value_of(ONGOING, 0).replace(b"\x00\x00\xea\x60\x01", b"\x00\x00\xea\x60\x09")),
    ],
)
def test_unreadable_records(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(InternalError, match="__transaction_state"):
        decode(key, value)


def test_longest_id() -> None:
    longest = "ä" * 16_383 + "x"
    assert can_be_key(longest)
    assert not can_be_key(longest + "x")
    assert decode(key_of(longest), None) == StoredTransaction(longest, None)


def test_table_of_states() -> None:
    """The table in the module's docstring is PREDECESSORS (transactions.md X2)."""
    import fenceline.transactions.states as module

    assert module.__doc__ is not None
    rows = [line.split(None, 1) for line in module.__doc__.splitlines() if line.startswith("    ")][1:]
    by_title = {state.title: state for state in TransactionState}
    for title, after in rows:
        names = {part.split("(")[0].strip() for part in after.split(",")} - {"removed"}
        reached = {state.title for state, before in PREDECESSORS.items() if by_title[title] in before}
        assert names == reached, title
