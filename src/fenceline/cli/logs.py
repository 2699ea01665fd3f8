"""`fenceline log`: dumps segment files without a node. Reads Kafka's files as well."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fenceline.cli.output import AsJson, print_json, readable_errors, show
from fenceline.errors import OperatorError, PeerError
from fenceline.records.batch import BatchHeader, crc_is_valid, iter_headers
from fenceline.records.decode import decode_batch

logs = typer.Typer(no_args_is_help=True, help="Dump segment files and partition directories.")


@logs.command()
def dump(
    path: Annotated[Path, typer.Argument(help="a .log file or a partition directory")],
    records: Annotated[
        bool, typer.Option("--records", help="print a row for each record instead of each batch")
    ] = False,
    limit: Annotated[int, typer.Option(help="stop after this many rows; 0: no limit")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the batches (or records) of a log, and check their CRCs. Exits with 1 if a batch is damaged."""
    with readable_errors():
        rows: list[dict[str, Any]] = []
        damaged = False
        for file in _segments(path):
            for row in _rows(file, records):
                damaged = damaged or row.get("crc") == "BAD" or "error" in row
                rows.append(row)
                if limit and len(rows) >= limit:
                    break
        if as_json:
            print_json(rows)
        else:
            show(rows, as_json=False, title=str(path), empty=f"{path} holds no batches.")
    if damaged:
        raise typer.Exit(1)


def _segments(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(path.glob("*.log"))
        if not found:
            raise OperatorError(f"{path} has no .log files", "Specify a partition directory, such as DATA/topic-0.")
        return found
    if not path.exists():
        raise OperatorError(f"{path} does not exist", "Specify a .log file or a partition directory.")
    return [path]


def _rows(file: Path, records: bool) -> Iterator[dict[str, Any]]:
    if file.stat().st_size == 0:
        return
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        content = memoryview(mapped)
        try:
            for header in iter_headers(content):
                if records:
                    yield from _record_rows(content, header)
                else:
                    yield _batch_row(file, content, header)
        except PeerError as error:
            yield {"error": f"{file.name}: {error.message}"}
        finally:
            content.release()


def _batch_row(file: Path, content: memoryview, header: BatchHeader) -> dict[str, Any]:
    return {
        "segment": file.stem.lstrip("0") or "0",
        "position": header.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "leader_epoch": header.leader_epoch,
        "size": header.size_bytes,
        "codec": header.codec.name.lower(),
        "timestamp": header.max_timestamp,
        "producer": header.producer_id,
        "control": header.is_control,
        "crc": "ok" if crc_is_valid(content, header) else "BAD",
    }


def _record_rows(content: memoryview, header: BatchHeader) -> Iterator[dict[str, Any]]:
    for record in decode_batch(content, header):
        yield {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "leader_epoch": header.leader_epoch,
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [f"{key}={_text(value)}" for key, value in record.headers],
        }


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode(errors="backslashreplace")
