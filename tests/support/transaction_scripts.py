"""Transactions in partitions, told as scripts: batches, markers, what readers see. No coordinator takes part.

Verification is turned off while a script runs, so Produce up to version 11 asks no coordinator, and the markers are
sent by the script. Times and what depends on them are not noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

from fenceline.records.batch import iter_headers
from fenceline.wire.apis import ApiKey
from tests.support.data_session import DataSession

Script: TypeAlias = Callable[[DataSession], None]

_KEY: Final = "transaction.partition.verification.enable"
_SET, _DELETE = 0, 1
_BROKER: Final = 4
_PRODUCER: Final = 700


def _configure(session: DataSession, operation: int, value: str | None) -> None:
    config = {"name": _KEY, "config_operation": operation, "value": value}
    resources = [{"resource_type": _BROKER, "resource_name": "", "configs": [config]}]
    answer = session.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False})
    assert answer.responses[0].error_code == 0, answer


@contextmanager
def _without_verification(session: DataSession) -> Iterator[None]:
    _configure(session, _SET, "false")
    try:
        session.create("probe")
        for attempt in session.until(60):  # the broker learns of it some time later
            records = session.batch(producer_id=90_000 + attempt, producer_epoch=0, base_sequence=0, transactional=True)
            answer = session.ask(ApiKey.PRODUCE, 11, session.produce("probe", 0, records, transactional_id="probe"))
            if answer.responses[0].partition_responses[0].error_code == 0:
                break
        yield
    finally:
        _configure(session, _DELETE, None)


def _send(
    session: DataSession,
    sequence: int,
    *,
    index: int = 0,
    epoch: int = 0,
    producer: int = _PRODUCER,
    version: int = 11,
    transactional: bool = True,
    count: int = 1,
    transactional_id: str | None = "till",
) -> None:
    records = session.batch(
        count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    answer = session.ask(
        ApiKey.PRODUCE, version, session.produce("t", index, records, transactional_id=transactional_id)
    )
    row = answer.responses[0].partition_responses[0]
    session.note(
        f"produce {epoch} {sequence}", [int(row.error_code), row.base_offset, getattr(row, "log_start_offset", None)]
    )


def _end(
    session: DataSession,
    *indexes: int,
    commit: bool = False,
    epoch: int = 0,
    coordinator_epoch: int = 0,
    transaction_version: int | None = None,
    producer: int = _PRODUCER,
    topic: str = "t",
) -> None:
    marker = {
        "producer_id": producer,
        "producer_epoch": epoch,
        "transaction_result": commit,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": session.name(topic), "partition_indexes": list(indexes or (0,))}],
    }
    version = 1 if transaction_version is None else 2
    if transaction_version is not None:
        marker["transaction_version"] = transaction_version
    session.tell(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker]})


def _look(session: DataSession, index: int = 0, *offsets: int) -> None:
    """What readers of both kinds get, and what the log knows of the producers."""
    for isolation in (0, 1):
        for offset in offsets or (0,):
            fields = session.fetch([("t", index, offset)], isolation_level=isolation)
            row = session.ask(ApiKey.FETCH, 12, fields).responses[0].partitions[0]
            session.note(f"fetch {isolation} {offset}", _fetched(row))
        asked = {"partition_index": index, "timestamp": -1}
        fields = {
            "replica_id": -1,
            "isolation_level": isolation,
            "topics": [{"name": session.name("t"), "partitions": [asked]}],
        }
        session.tell(ApiKey.LIST_OFFSETS, 5, fields)
    topics = [{"name": session.name("t"), "partition_indexes": [index]}]
    described = session.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics}).topics[0].partitions[0]
    session.note(
        "producers",
        sorted(
            [
                each.producer_id,
                each.producer_epoch,
                each.last_sequence,
                each.coordinator_epoch,
                each.current_txn_start_offset,
            ]
            for each in described.active_producers
        ),
    )


def _fetched(row: Any) -> Mapping[str, Any]:
    records = bytes(row.records or b"")
    aborted = row.aborted_transactions
    return {
        "code": int(row.error_code),
        "offsets": [row.high_watermark, row.last_stable_offset, row.log_start_offset],
        "aborted": None if aborted is None else [[each.producer_id, each.first_offset] for each in aborted],
        "batches": [
            [
                *(each.base_offset, each.last_offset, each.is_transactional, each.is_control),
                *each[-4:-1],
                each.size_bytes,
            ]
            for each in iter_headers(records, allow_partial_tail=True)
        ],
    }


def transactions_of_one_producer(session: DataSession) -> None:
    """Commit, abort, and the sequences in between; the epoch stays, as with transaction versions below 2."""
    with _without_verification(session):
        session.create("t")
        for version in range(3, 12):
            _send(session, version - 3, version=version)
        _look(session)
        _send(session, 9, transactional=False, transactional_id=None)
        _send(session, 11)
        _send(session, 7)
        _end(session, commit=True)
        _look(session)
        _send(session, 7)
        _send(session, 0)
        _send(session, 9, transactional=False, transactional_id=None)
        _send(session, 10, count=3)
        _look(session)
        _end(session)
        _look(session, 0, 0, 5, 12, 14)
        _end(session)
        _send(session, 13, epoch=1)
        _send(session, 0, epoch=1)
        _send(session, 13)
        _look(session)


def markers_and_epochs(session: DataSession) -> None:
    with _without_verification(session):
        session.create("t", 4)
        _end(session, 0, 1, 7, epoch=3, coordinator_epoch=5)
        _end(session, topic="nowhere")
        _send(session, 0, epoch=2)
        _send(session, 4, epoch=3)
        _send(session, 0, epoch=3)
        _end(session, epoch=3, coordinator_epoch=4)
        _end(session, epoch=2, coordinator_epoch=5)
        _look(session)
        _end(session, epoch=4, coordinator_epoch=6)
        _look(session)
        for transaction_version in (0, 1, 2):
            _send(session, 0, epoch=10, index=2, producer=_PRODUCER + transaction_version)
            for epoch in (9, 10, 11, 11):
                _end(
                    session,
                    2,
                    epoch=epoch,
                    coordinator_epoch=1,
                    transaction_version=transaction_version,
                    producer=_PRODUCER + transaction_version,
                )
        _look(session, 2)
        _send(session, 0, epoch=32_767, index=3)
        _end(session, 3, epoch=32_767, transaction_version=2)
        _end(session, 3, epoch=32_767, transaction_version=2)
        _look(session, 3)


def overlapping_transactions(session: DataSession) -> None:
    """The stable offset follows the oldest; aborted ones are listed by their markers."""
    with _without_verification(session):
        session.create("t")
        first, second, third = range(_PRODUCER, _PRODUCER + 3)
        _send(session, 0, producer=first)
        _send(session, 0, producer=second)
        _send(session, 0, producer=third, count=2)
        _end(session, producer=second)
        _look(session)
        _end(session, producer=third, commit=True)
        _send(session, 1, producer=second)
        _end(session, producer=first)
        _look(session, 0, 0, 3, 5)
        _end(session, producer=second)
        _look(session, 0, 0, 1, 6, 8)


def requests_of_two_producers(session: DataSession) -> None:
    with _without_verification(session):
        session.create("t", 2)
        made = [
            session.batch(producer_id=producer, producer_epoch=epoch, base_sequence=0, transactional=True)
            for producer, epoch in ((_PRODUCER, 0), (_PRODUCER + 1, 0), (_PRODUCER, 1))
        ]
        plain = session.batch()
        for pair in ((0, 1), (0, 2)):
            parts = [("t", index, made[number]) for index, number in enumerate(pair)]
            session.tell(ApiKey.PRODUCE, 11, session.produce_all(parts, transactional_id="till"))
        for transactional_id in (None, "", "till"):
            parts = [("t", 0, plain), ("t", 1, made[0])]
            session.tell(ApiKey.PRODUCE, 11, session.produce_all(parts, transactional_id=transactional_id))
        session.tell(ApiKey.PRODUCE, 11, session.produce("t", 0, plain, transactional_id="till"))
        _look(session)
        _look(session, 1)


def records_deleted_below_open_transactions(session: DataSession) -> None:
    with _without_verification(session):
        session.create("t")
        for sequence in range(4):
            _send(session, sequence)
        for offset in (2, -1):
            rows = [{"name": session.name("t"), "partitions": [{"partition_index": 0, "offset": offset}]}]
            session.tell(ApiKey.DELETE_RECORDS, 2, {"topics": rows, "timeout": 60_000})
            _look(session, 0, 2, 4)
        _end(session)
        _look(session, 0, 4)


SCRIPTS: Final[dict[str, Script]] = {
    script.__name__: script
    for script in (
        transactions_of_one_producer,
        markers_and_epochs,
        overlapping_transactions,
        requests_of_two_producers,
        records_deleted_below_open_transactions,
    )
}
