"""`fenceline transactions`: lists, describes and aborts transactions, and finds hanging ones. Also Apache Kafka's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin_of,
    examples,
    print_json,
    print_result,
    show,
)
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.client.admin.admin import Admin
    from fenceline.client.admin.async_admin import ProducerDescription
    from fenceline.client.admin.transactions import TransactionDescription

transactions = typer.Typer(no_args_is_help=True, help="List, describe, find hanging and abort transactions.")

_DEFAULT_MINUTES = 15.0
"""Kafka's default of transaction.max.timeout.ms."""


@transactions.command("list")
def list_transactions(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: Annotated[list[str] | None, typer.Option(help="list only ids in this state; may be repeated")] = None,
    longer_than: Annotated[
        float | None, typer.Option(help="only transactions open longer than this, in seconds")
    ] = None,
    pattern: Annotated[str | None, typer.Option(help="regular expression for the whole transactional id")] = None,
    as_json: AsJson = False,
) -> None:
    """List transactional ids with their states."""
    with admin_of(bootstrap) as admin:
        listed = admin.list_transactions(
            states=state or (),
            longer_than_ms=None if longer_than is None else round(longer_than * 1000),
            pattern=pattern,
        )
    show([each._asdict() for each in listed], as_json=as_json, empty="There are no transactional ids.")


@transactions.command(
    epilog=examples(("fenceline transactions describe orders-1", "state, identity, partitions, what is open in each"))
)
def describe(
    transactional_id: Annotated[str, typer.Argument(help="transactional.id of the producer")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show the coordinator's state of an id, and what each partition's leader knows of its producer."""
    with admin_of(bootstrap) as admin:
        found = _described(admin, transactional_id)
        rows = [_partition_row(admin, found, partition) for partition in sorted(found.partitions)]
    if as_json:
        print_json({**found._asdict(), "partitions": rows})
        return
    print(f"{found.transactional_id}: {found.state}, coordinator {found.coordinator}")
    print(f"producer {found.producer_id}, epoch {found.producer_epoch}, timeout {found.timeout_ms} ms")
    if found.start_ms is not None:
        print(f"open for {_seconds_since(found.start_ms)} s" if rows else f"started {found.start_ms} (ms since 1970)")
    show(rows, as_json=False, empty="No partition takes part.")


def _described(admin: Admin, transactional_id: str) -> TransactionDescription:
    try:
        return admin.describe_transactions([transactional_id])[transactional_id]
    except PeerError as error:
        if error.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise
        raise OperatorError(
            f"There is no transactional id {transactional_id}", "List them with: fenceline transactions list"
        ) from error


def _partition_row(admin: Admin, found: TransactionDescription, partition: TopicPartition) -> dict[str, Any]:
    row: dict[str, Any] = {
        "partition": str(partition),
        "epoch": None,
        "open_since_offset": None,
        "last_timestamp": None,
    }
    try:
        producers = admin.describe_producers([partition])[partition]
    except PeerError as error:
        return {**row, "state": error.code.name}
    for producer in producers:
        if producer.producer_id == found.producer_id:
            is_open = producer.transaction_start_offset >= 0
            return {
                "partition": str(partition),
                "epoch": producer.producer_epoch,
                "open_since_offset": producer.transaction_start_offset if is_open else None,
                "last_timestamp": producer.last_timestamp_ms,
                "state": "open" if is_open else "ended",
            }
    return {**row, "state": "nothing written"}


@transactions.command(
    "find-hanging",
    epilog=examples(
        ("fenceline transactions find-hanging", "in all topics"),
        ("fenceline transactions find-hanging --topic orders", "in one topic"),
    ),
)
def find_hanging(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[list[str] | None, typer.Option(help="only in this topic; may be repeated")] = None,
    open_longer_than: Annotated[
        float, typer.Option("--max-transaction-timeout", help="minutes; younger transactions are not looked at")
    ] = _DEFAULT_MINUTES,
    as_json: AsJson = False,
) -> None:
    """Find transactions that are open in a partition and that no coordinator will end.

    Such a transaction blocks readers of committed records at its first offset. Each is printed with the command that
    aborts it.
    """
    with admin_of(bootstrap) as admin:
        rows = list(_hanging(admin, topic, round(open_longer_than * 60_000)))
    show(rows, as_json=as_json, empty="There are no hanging transactions.")


def _hanging(admin: Admin, topics: list[str] | None, open_longer_than_ms: int) -> Iterator[dict[str, Any]]:
    metadata = admin.metadata(topics or None).topics
    partitions = [TopicPartition(name, index) for name, each in metadata.items() for index in each.partitions]
    before_ms = int(time.time() * 1000) - open_longer_than_ms
    candidates = [
        (partition, producer)
        for partition, producers in admin.describe_producers(partitions).items()
        for producer in producers
        if producer.transaction_start_offset >= 0 and producer.last_timestamp_ms < before_ms
    ]
    if not candidates:
        return
    producer_ids = {producer.producer_id for _, producer in candidates}
    known = {each.producer_id: each for each in admin.list_transactions(producer_ids=producer_ids)}
    for partition, producer in candidates:
        listed = known.get(producer.producer_id)
        if listed is None:
            why = "no coordinator knows its producer"
        elif partition in _described(admin, listed.transactional_id).partitions:
            continue
        else:
            why = f"{listed.transactional_id} is {listed.state} and does not have the partition"
        yield {
            "partition": str(partition),
            "start_offset": producer.transaction_start_offset,
            "producer_id": producer.producer_id,
            "producer_epoch": producer.producer_epoch,
            "open_s": _seconds_since(producer.last_timestamp_ms),
            "why": why,
            "abort_with": f"fenceline transactions abort {partition.topic}:{partition.partition}"
            f" --start-offset {producer.transaction_start_offset}",
        }


@transactions.command(
    epilog=examples(
        ("fenceline transactions abort orders-1", "abort what the id has open, and fence its producer"),
        ("fenceline transactions abort orders:3 --start-offset 4711", "a hanging one, in one partition"),
    )
)
def abort(
    target: Annotated[str, typer.Argument(help="a transactional id; with --start-offset TOPIC:PARTITION")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    start_offset: Annotated[
        int | None, typer.Option(help="first offset of the hanging transaction in the partition")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Abort a transaction: by its id, or a hanging one by its first offset in a partition.

    By the id the coordinator ends it in all partitions, and its producer cannot go on. By the offset only an end marker
    is written to that partition: use it for what find-hanging has found.
    """
    with admin_of(bootstrap) as admin:
        if start_offset is None:
            before = _described(admin, target)
            identity = admin.fence_producer(target)
            document = {"transactional_id": target, "was": before.state, "producer": identity}
            print_result(
                f"{target} was {before.state}; its producer is fenced, and nothing is open.", document, as_json=as_json
            )
            return
        partition = _partition(target)
        producer = _producer_at(admin, partition, start_offset)
        admin.abort_in_partition(partition, producer.producer_id, producer.producer_epoch, producer.coordinator_epoch)
    print_result(
        f"The transaction at offset {start_offset} of {partition} is aborted.",
        {"partition": str(partition), "start_offset": start_offset, "producer_id": producer.producer_id},
        as_json=as_json,
    )


def _partition(text: str) -> TopicPartition:
    topic, _, index = text.rpartition(":")
    if not topic or not index.isdigit():
        raise OperatorError(
            f"{text} is not a partition", "With --start-offset give TOPIC:PARTITION, for example orders:3."
        )
    return TopicPartition(topic, int(index))


def _producer_at(admin: Admin, partition: TopicPartition, start_offset: int) -> ProducerDescription:
    for producer in admin.describe_producers([partition])[partition]:
        if producer.transaction_start_offset == start_offset:
            return producer
    raise OperatorError(
        f"No transaction that is open in {partition} begins at offset {start_offset}",
        "Find them with: fenceline transactions find-hanging",
    )


def _seconds_since(at_ms: int) -> float:
    return round(time.time() - at_ms / 1000, 1)
