"""`fenceline produce`, `fenceline consume` and `fenceline offsets`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    TIMEOUT_MS,
    AsJson,
    Bootstrap,
    admin_of,
    client_settings,
    existing_topic,
    readable_errors,
    show,
)
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.client.admin.admin import Admin
    from fenceline.client.core.errors import LogTruncationError
    from fenceline.client.core.offsets import OffsetAndEpoch


def produce(
    topic: str,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", help="separator of key and value in a line, such as ':'")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="write to this partition")] = None,
    compression: Annotated[str, typer.Option(help="none, gzip, snappy, lz4 or zstd")] = "none",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Write each line of standard input as a record."""
    from fenceline.client.producer.delivery import Delivery
    from fenceline.client.producer.producer import Producer

    with (
        readable_errors(),
        Producer(
            {**client_settings(bootstrap), "compression.type": compression, "max.block.ms": TIMEOUT_MS}
        ) as producer,
    ):
        sent: list[Delivery] = []
        for line in sys.stdin.buffer:
            text = line.rstrip(b"\r\n")
            key = None
            if key_separator is not None:
                before, separator, after = text.partition(key_separator.encode())
                if not separator:
                    raise OperatorError(
                        f"Line {len(sent) + 1} has no {key_separator!r}", f"Write KEY{key_separator}VALUE, or omit -K."
                    )
                key, text = before, after
            sent.append(producer.send(topic, text, key, partition=partition))
        producer.flush()
        results = [delivery.result() for delivery in sent]
        if as_json:
            json.dump([result._asdict() for result in results], sys.stdout)
            print()
        else:
            print(f"Wrote {len(results)} records to {topic}.")


def consume(
    topic: str,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, a time in ms since 1970, or an offset as =N")
    ] = "earliest",
    count: Annotated[int, typer.Option("--count", "-n", help="stop after this many records; 0: no limit")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="wait for new records at the end of the log")] = False,
    partition: Annotated[int | None, typer.Option(help="read only this partition")] = None,
    on_truncation: Annotated[
        str,
        typer.Option(
            help="if printed records are truncated from the log: fail; rewind to the truncation offset (fail if it is"
            " unknown); latest: continue at the log end; reset: as rewind, but if the offset is unknown, continue at"
            " the earliest offset (at the latest with --from latest)"
        ),
    ] = "fail",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print records. With --json, one JSON object per line, with offsets and leader epochs.

    If printed records are lost later, for example by an unclean election, a message on standard error reports it.
    """
    from fenceline.client.consumer.consumer import Consumer

    with admin_of(bootstrap) as admin:
        known = existing_topic(admin, topic)
        partitions = [TopicPartition(topic, i) for i in sorted(known.partitions) if partition in (None, i)]
        if not partitions:
            raise OperatorError(
                f"{topic} has no partition {partition}", f"It has partitions 0 to {len(known.partitions) - 1}."
            )
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        if start.startswith("="):
            starts = dict.fromkeys(partitions, _exact_offset(start))
            _check_range(admin, starts, ends)
        else:
            spec: int | str = int(start) if start.lstrip("-").isdigit() else start
            found = admin.list_offsets(dict.fromkeys(partitions, spec))
            starts = {tp: at.offset if at.offset >= 0 else ends[tp].offset for tp, at in found.items()}
        left = {tp: ends[tp].offset for tp in partitions if starts[tp] < ends[tp].offset}
        reset = "latest" if start == "latest" else "earliest"
        policy = _policy(on_truncation, reset)
        settings = {**client_settings(bootstrap), "on.truncation": policy, "auto.offset.reset": reset}
        with Consumer(settings) as consumer:
            consumer.assign(partitions)
            for tp, offset in starts.items():
                consumer.seek(tp, offset)
            printed = 0
            while follow or left:
                for record in consumer.poll(timeout_ms=500):
                    tp = TopicPartition(record.topic, record.partition)
                    _print_record(record, as_json)
                    printed += 1
                    if printed == count:
                        return
                    if not follow and tp in left and record.offset + 1 >= left[tp]:
                        del left[tp]
                if not follow:
                    # The last offsets may be control records, which are never delivered.
                    left = {tp: end for tp, end in left.items() if consumer.position(tp) < end}


def _policy(choice: str, reset: str) -> Callable[[LogTruncationError], str]:
    """The callback of `on.truncation`: prints the truncation and applies the choice; raises OperatorError for fail.

    `reset`: earliest or latest, the position of a reset if the truncation offset is unknown.
    """
    if choice not in ("fail", "rewind", "latest", "reset"):
        raise OperatorError(f"Invalid value {choice!r} for --on-truncation", "Choose fail, rewind, latest or reset.")

    def decide(error: LogTruncationError) -> str:
        message, advice = describe_truncation(error)
        is_known = error.divergent_offset >= 0
        if choice == "fail" or (choice == "rewind" and not is_known):
            raise OperatorError(message, advice)
        if choice != "latest" and is_known:
            continuation = f"at offset {error.divergent_offset}"
        elif choice == "reset" and reset == "earliest":
            continuation = "at the start of the log"
        else:
            continuation = "at the end of the log"
        print(f"fenceline: {message} Reading continues {continuation}.", file=sys.stderr)
        return choice

    return decide


def describe_truncation(error: LogTruncationError) -> tuple[str, str]:
    """The message and the advice for a truncation."""
    name, end = f"{error.topic}-{error.partition}", error.truncated_from
    if error.divergent_offset < 0:
        return (
            f"{name}: the log was truncated below offset {end}. The leader cannot determine which printed records are"
            " lost.",
            f"Compare them with the log: fenceline consume {error.topic} --partition {error.partition}",
        )
    last = end - 1
    records = f"record {last}" if error.divergent_offset == last else f"records {error.divergent_offset} to {last}"
    epochs = ", ".join(map(str, error.epochs))
    read_in = f" (leader epoch {epochs})" if epochs else ""
    message = f"{name}: the log was truncated. It no longer contains what was printed as {records}{read_in}."
    for receipt in error.evidence:
        message += f" Loss receipt {receipt}: see fenceline losses show {receipt.id[:12]}."
    return message, (
        f"Read the current records with: fenceline consume {error.topic} --partition {error.partition} "
        f"--from ={error.divergent_offset}"
    )


def _exact_offset(text: str) -> int:
    try:
        return int(text[1:])
    except ValueError:
        raise OperatorError(f"{text!r} is not an offset", "Use the form =N, such as --from =100.") from None


def _check_range(admin: Admin, starts: dict[TopicPartition, int], ends: dict[TopicPartition, OffsetAndEpoch]) -> None:
    """Raises OperatorError if an offset is outside of its log."""
    first = admin.list_offsets(dict.fromkeys(starts, "earliest"))
    for tp, offset in starts.items():
        if not first[tp].offset <= offset <= ends[tp].offset:
            raise OperatorError(
                f"Offset {offset} of {tp} is out of range:"
                f" the log starts at {first[tp].offset} and ends at {ends[tp].offset}",
                "Use an offset within the range (--partition selects one partition), or --from earliest.",
            )


def _print_record(record: Any, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "topic": record.topic,
                    "partition": record.partition,
                    "offset": record.offset,
                    "leader_epoch": record.leader_epoch,
                    "timestamp": record.timestamp,
                    "key": _text(record.key),
                    "value": _text(record.value),
                    "headers": {key: _text(value) for key, value in record.headers},
                }
            )
        )
        return
    key = "" if record.key is None else f"{_text(record.key)}: "
    print(f"{key}{_text(record.value)}")


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")


def offsets(
    topic: str,
    at: Annotated[
        str | None, typer.Option(help="also print the first offset at or after this time, in ms since 1970")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Print the start and end offsets of each partition, with leader epochs."""
    with admin_of(bootstrap) as admin:
        partitions = [TopicPartition(topic, index) for index in sorted(existing_topic(admin, topic).partitions)]
        starts = admin.list_offsets(dict.fromkeys(partitions, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
        found = admin.list_offsets(dict.fromkeys(partitions, int(at))) if at is not None else {}
        rows = []
        for tp in partitions:
            row: dict[str, Any] = {
                "partition": tp.partition,
                "start": starts[tp].offset,
                "end": ends[tp].offset,
                "records": ends[tp].offset - starts[tp].offset,
                "leader_epoch": ends[tp].leader_epoch,
            }
            if at is not None:
                row["at"] = found[tp].offset
            rows.append(row)
        show(rows, as_json=as_json, title=f"{topic} at {time.strftime('%H:%M:%S')}")
