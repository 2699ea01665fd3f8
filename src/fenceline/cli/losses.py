"""`fenceline losses`: prints loss receipts from the ledger topic, and exports or replays lost records from evidence.

Any broker serves the receipts. The records are only on the disk of the node that truncated its log, or in a copy of its
data directory: they are read from its files if they are on this machine, otherwise over the network.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    admin_of,
    client_settings,
    examples,
    existing_topic,
    print_json,
    print_result,
    readable_errors,
    show,
)
from fenceline.errors import ErrorCode, OperatorError
from fenceline.extras import require_packages
from fenceline.ids import LOSSES_TOPIC, TopicPartition
from fenceline.log.core.disk import OsDisk
from fenceline.losses.evidence import EvidenceReader, is_here, places
from fenceline.losses.receipt import LossClass, Receipt, decode, document, encode, summary_fields
from fenceline.records.batch import BatchHeader, iter_headers
from fenceline.records.build import Record
from fenceline.records.decode import decode_batch

losses = typer.Typer(
    no_args_is_help=True,
    help="List data losses; export lost records or write them to a topic.",
    epilog=examples(
        ("fenceline losses list", "all loss receipts, oldest first"),
        ("fenceline losses show orders-0@1500", "details of the loss at this offset"),
        ("fenceline losses export orders-0@1500 > lost.jsonl", "its records"),
        ("fenceline losses replay orders-0@1500 --to orders.lost", "write its records to another topic"),
    ),
)

_Which = Annotated[
    str,
    typer.Argument(metavar="LOSS", help="a receipt id or a prefix of it, TOPIC-PARTITION, or TOPIC-PARTITION@OFFSET"),
]
_DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="the data directory with the evidence, if it was moved or copied"),
]
_HEADER: str = "fenceline.lost."
_NO_RECEIPTS: str = "There are no loss receipts. Brokers of Apache Kafka write none."
_LARGE_PIECES: dict[str, int] = {"max.partition.fetch.bytes": 8 << 20}
_NO_MATCH: str = "There are no loss receipts of this topic and class."


@losses.command("list")
def list_losses(
    topic: Annotated[str | None, typer.Option(help="list only losses of this topic")] = None,
    loss_class: Annotated[
        LossClass | None, typer.Option("--class", help="list only losses of this class", case_sensitive=False)
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List loss receipts, oldest first."""
    ledger = _ledger(bootstrap)
    found = [
        receipt for receipt in ledger if topic in (None, receipt.topic) and loss_class in (None, receipt.loss_class)
    ]
    if as_json:
        print_json([summary_fields(receipt) for receipt in found])
        return
    rows: list[dict[str, Any]] = [
        {
            "receipt": receipt.id[:12],
            "time": summary_fields(receipt)["time"],
            "partition": f"{receipt.topic}-{receipt.partition}",
            "offsets": f"{receipt.start_offset}..{receipt.end_offset_exclusive - 1}",
            "records": receipt.records,
            "class": receipt.loss_class.value,
            "cause": receipt.cause.value,
            "replica": receipt.replica,
            "evidence": "kept" if receipt.evidence else "none",
        }
        for receipt in found
    ]
    show(rows, as_json=False, empty=_NO_MATCH if ledger else _NO_RECEIPTS, optional=("time", "cause", "evidence"))


@losses.command("show")
def show_loss(which: _Which, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show the details of a loss; the newest one if several match."""
    with readable_errors():
        receipt = _find_receipt(which, bootstrap)
        fields = document(receipt)
        if as_json:
            print_json(fields)
            return
        for key, value in fields.items():
            text = _text_of(key, value)
            if text:
                print(f"{key.replace('_', ' '):22}{text.replace(chr(10), chr(10) + ' ' * 22)}")


def _text_of(key: str, value: Any) -> str:
    """Empty if it says nothing to a reader."""
    if value in ("", None) or key == "time_ms" or (key == "transaction_count" and not value):
        return ""
    if key == "evidence":
        return "\n".join(value)
    if key == "transactions":
        return "\n".join(_transaction_lines(value))
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _transaction_lines(transactions: list[dict[str, Any]]) -> Iterator[str]:
    for each in transactions:
        name = each["transactional_id"] or "unknown id"
        lost = f"{each['records']} records cut" if each["records"] else "only its end marker cut"
        yield (
            f"{name} (producer {each['producer_id']}, epoch {each['producer_epoch']}): {each['outcome']}"
            f"{', torn' if each['torn'] else ''}; {lost}"
        )
        for partition in each["partitions"]:
            yield f"  {partition['topic']}-{partition['partition']}: {partition['records']}"


@losses.command()
def export(
    which: _Which,
    arrow: Annotated[Path | None, typer.Option("--arrow", help="write an Arrow IPC file instead")] = None,
    data_dir: _DataDir = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: Annotated[
        bool, typer.Option("--json", help="print one JSON document instead of one object per line")
    ] = False,
) -> None:
    """Print the lost records from the evidence: its files, or those of the node that keeps them."""
    with readable_errors():
        if arrow is not None and as_json:
            raise OperatorError("--arrow and --json are mutually exclusive", "Choose one of them.")
        receipt = _find_receipt(which, bootstrap)
        reader = _reader(receipt, data_dir, bootstrap)
        if arrow is not None:
            rows = _write_arrow(reader, receipt, arrow)
            print(f"Wrote {rows} records to {arrow}.", file=sys.stderr)
        elif as_json:
            print_json([_fields(receipt, header, record) for header, record in _records(reader)])
        else:
            for header, record in _records(reader):
                print(json.dumps(_fields(receipt, header, record)))
        _print_damage(reader)


@losses.command()
def replay(
    which: _Which,
    to: Annotated[str, typer.Option("--to", help="the topic to write to")],
    data_dir: _DataDir = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write the lost records to a topic, in offset order, with headers that name their original position."""
    from fenceline.client.producer.producer import Producer

    with readable_errors():
        receipt = _find_receipt(which, bootstrap)
        reader = _reader(receipt, data_dir, bootstrap)
        with admin_of(bootstrap) as admin:
            existing_topic(admin, to)
        sent = []
        with Producer({**client_settings(bootstrap), "max.block.ms": TIMEOUT_MS}) as producer:
            for header, record in _records(reader):
                sent.append(
                    producer.send(
                        to,
                        record.value,
                        record.key,
                        headers=(*record.headers, *_origin(receipt, header, record)),
                        timestamp_ms=record.timestamp,
                    )
                )
            producer.flush()
            for delivery in sent:
                delivery.result()
        _print_damage(reader)
        print_result(
            f"Wrote {len(sent)} records of {receipt} to {to}.",
            {
                "receipt": receipt.id,
                "to": to,
                "records": len(sent),
                "damaged_batches": reader.damaged_batches,
                "missing_records": reader.missing_records,
            },
            as_json=as_json,
        )


def _origin(receipt: Receipt, header: BatchHeader, record: Record) -> list[tuple[str, bytes]]:
    """Headers with the origin of a replayed record."""
    parts = {
        "topic": receipt.topic,
        "partition": receipt.partition,
        "offset": record.offset,
        "leader_epoch": header.leader_epoch,
        "receipt": receipt.id,
    }
    return [(_HEADER + name, str(value).encode()) for name, value in parts.items()]


# -- the ledger --------------------------------------------------------------------------------------------------------


def _ledger(bootstrap: str) -> list[Receipt]:
    """The newest version of every receipt, oldest loss first."""
    from fenceline.client.consumer.consumer import Consumer
    from fenceline.client.core.loss_receipts import newest_versions

    with admin_of(bootstrap) as admin:
        known = admin.metadata([LOSSES_TOPIC]).topics[LOSSES_TOPIC]
        if known.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return []  # the topic is created with the first receipt
        partitions = [TopicPartition(LOSSES_TOPIC, index) for index in existing_topic(admin, LOSSES_TOPIC).partitions]
        starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        left = {tp: ends[tp].offset for tp in partitions if starts[tp].offset < ends[tp].offset}
        receipts: list[Receipt] = []
        with Consumer(client_settings(bootstrap)) as consumer:
            consumer.assign(list(left))
            for tp in left:
                consumer.seek(tp, starts[tp].offset)
            while left:
                records = consumer.poll(timeout_ms=200)
                receipts += [decode(record.value) for record in records if record.value is not None]
                left = {tp: end for tp, end in left.items() if consumer.position(tp) < end}
    return newest_versions(receipts)


def _find_receipt(which: str, bootstrap: str) -> Receipt:
    """The newest receipt that matches. Raises OperatorError."""
    partition, _, offset = which.partition("@")
    found = [
        receipt
        for receipt in _ledger(bootstrap)
        if receipt.id.startswith(which)
        or (partition == f"{receipt.topic}-{receipt.partition}" and (not offset or _covers(receipt, offset)))
    ]
    if not found:
        raise OperatorError(
            f"There is no loss receipt for {which!r}",
            "Specify a receipt id, TOPIC-PARTITION or TOPIC-PARTITION@OFFSET. List them with: fenceline losses list",
        )
    return found[-1]


def _covers(receipt: Receipt, offset: str) -> bool:
    return offset.isdigit() and receipt.start_offset <= int(offset) < max(
        receipt.end_offset_exclusive, receipt.start_offset + 1
    )


# -- the evidence ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Evidence:
    """The batches of a loss. `damaged_batches`: incomplete ones of files. `missing_records`: those that the receipt
    counts, and the answers of a node lack. Both are known after the last batch."""

    receipt: Receipt
    _source: Callable[[_Evidence], Iterator[tuple[BatchHeader, memoryview]]]
    damaged_batches: int = 0
    missing_records: int = 0

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Raises OperatorError, PeerError."""
        return self._source(self)


def _reader(receipt: Receipt, data_dir: Path | None, bootstrap: str) -> _Evidence:
    """Raises OperatorError if there is no evidence, or none below `data_dir`."""
    if not receipt.evidence:
        raise OperatorError(
            f"There is no evidence of the loss of {receipt}",
            receipt.evidence_note or "No log was truncated: records were deleted before a group had read them.",
        )
    paths = places(receipt, str(data_dir) if data_dir is not None else None)
    if data_dir is None and not is_here(OsDisk(), receipt):
        return _Evidence(receipt, partial(_from_node, bootstrap))
    for path in paths:
        if not Path(path).exists():
            raise OperatorError(
                f"The evidence {path} does not exist on this machine",
                f"It is on node {receipt.replica}. Specify a copy of that node's data directory, or read the evidence"
                " over the network, without --data-dir.",
            )
    return _Evidence(receipt, partial(_from_files, paths))


def _from_files(paths: tuple[str, ...], evidence: _Evidence) -> Iterator[tuple[BatchHeader, memoryview]]:
    reader = EvidenceReader(OsDisk(), evidence.receipt, paths)
    try:
        yield from reader.batches()
    except OSError as error:
        raise OperatorError(
            f"The evidence {error.filename or ''} cannot be read: {error.strerror or error}",
            "Run the command on the node's machine, as the node's user.",
        ) from error
    evidence.damaged_batches = reader.damaged_batches


def _from_node(bootstrap: str, evidence: _Evidence) -> Iterator[tuple[BatchHeader, memoryview]]:
    from fenceline.client.core.errors import EvidenceIncompleteError
    from fenceline.client.core.loss_receipts import parse_receipt
    from fenceline.client.reader.lost_records import LostRecordsReader

    receipt = parse_receipt(encode(evidence.receipt))
    assert receipt is not None, "it has been decoded before"
    settings = {**client_settings(bootstrap), "default.api.timeout.ms": TIMEOUT_MS, **_LARGE_PIECES}
    with LostRecordsReader(settings) as reader:
        try:
            for piece in reader.fetch(receipt):
                for run in piece.runs:
                    for header in iter_headers(run.records):
                        content = run.records[header.position : header.end_position]
                        yield header._replace(position=0), content
        except EvidenceIncompleteError as error:
            evidence.missing_records = error.missing_records


def _records(reader: _Evidence) -> Iterator[tuple[BatchHeader, Record]]:
    """The lost records, without control records. Raises OperatorError, PeerError."""
    receipt = reader.receipt
    for header, content in reader.batches():
        if header.is_control:
            continue
        for record in decode_batch(content, header):
            if receipt.start_offset <= record.offset < receipt.end_offset_exclusive:
                yield header, record


def _write_arrow(reader: _Evidence, receipt: Receipt, path: Path) -> int:
    require_packages("Export as Arrow", ["pyarrow"], "arrow")
    import pyarrow as pa

    from fenceline.records.arrow import arrow_schema, batches_to_arrow

    try:
        file = pa.OSFile(str(path), "wb")
    except OSError as error:
        raise OperatorError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}",
            "Specify a file in an existing, writable directory.",
        ) from error
    rows = 0
    with file as sink, pa.ipc.new_file(sink, arrow_schema()) as writer:
        for _, content in reader.batches():
            columns = batches_to_arrow(
                [(receipt.topic, receipt.partition, content)],
                start_offsets=[receipt.start_offset],
                end_offsets_exclusive=[receipt.end_offset_exclusive],
            )
            writer.write_batch(columns)
            rows += columns.num_rows
    return rows


def _fields(receipt: Receipt, header: BatchHeader, record: Record) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "topic": receipt.topic,
        "partition": receipt.partition,
        "offset": record.offset,
        "leader_epoch": header.leader_epoch,
        "timestamp": record.timestamp,
        "transactional": header.is_transactional,
    }
    for name, raw in (("key", record.key), ("value", record.value)):
        fields |= _exact(name, raw)
    fields["headers"] = [{"name": name, **_exact("value", raw)} for name, raw in record.headers]
    return fields


def _exact(name: str, raw: bytes | None) -> dict[str, str | None]:
    """As text if it is valid UTF-8, else as base64 under another name: the export is lossless."""
    try:
        return {name: None if raw is None else raw.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(raw or b"").decode()}


def _print_damage(reader: _Evidence) -> None:
    if reader.damaged_batches:
        print(f"fenceline: skipped {reader.damaged_batches} damaged batches of the evidence", file=sys.stderr)
    if reader.missing_records:
        print(
            f"fenceline: {reader.missing_records} of the {reader.receipt.records} lost records are missing in the"
            f" evidence: their batches are damaged, or were not kept. {reader.receipt.evidence_note}".rstrip(),
            file=sys.stderr,
        )
