"""Verification inside batches: records, transaction markers, producer sequences.

Owns the deep check, which decompresses and reads everything. Keeps no records; keeps the last sequence of at most
`MAX_PRODUCERS` producers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fenceline.errors import PeerError
from fenceline.log.verify.findings import Findings, LogFindingKind, Severity
from fenceline.log.verify.segment import Rows
from fenceline.records import kernel
from fenceline.records.batch import peek_header
from fenceline.records.build import Record
from fenceline.records.decode import decode_batch, records_of
from fenceline.records.markers import decode_end_marker
from fenceline.records.sequences import MAX_SEQUENCE

MAX_PRODUCERS: Final = 100_000
_CONTROL: Final = 0x20
_WRITER: Final = (
    "The checksum is right, so the producer wrote the batch in this form: find out which producer it was. Consumers"
    " stop here; they can skip the batch."
)


class RecordChecks:
    """Of one partition, over all its segments."""

    def __init__(self, deep: bool, sequences: bool, findings: Findings, severity: Severity = Severity.ERROR) -> None:
        self._deep = deep
        self._sequences = sequences
        self._findings = findings
        self._severity = severity
        self._producers: dict[int, tuple[int, int]] = {}
        """Epoch and last sequence by id."""

    @property
    def wanted(self) -> bool:
        return self._deep or self._sequences

    def see(self, rows: Rows, path: str) -> None:
        if self._sequences:
            self._see_sequences(rows, path)
        if self._deep:
            for row in range(rows.count):
                self._see_records(rows, row, path)

    def missed(self) -> None:
        """Batches could not be read: their producers' last sequences are unknown."""
        self._producers.clear()

    def markers(self, rows: Rows, aborted: Callable[[int, int], None]) -> None:
        """Call `aborted` with producer and marker offset for each aborted transaction."""
        attributes = rows.column("attributes")
        for row in range(rows.count):
            if not attributes[row] & _CONTROL:
                continue
            content = rows.content(row)
            header = peek_header(content)
            try:
                records = decode_batch(content, header)
            except PeerError:
                continue  # reported by the deep check
            for record in records:
                marker = decode_end_marker(record.key, record.value, record.timestamp)
                if marker is not None and not marker.commit:
                    aborted(header.producer_id, record.offset)

    def _see_records(self, rows: Rows, row: int, path: str) -> None:
        content = rows.content(row)
        header = peek_header(content)
        try:
            payload, start, end = records_of(content, header)
            walk = kernel.walk(payload, start, end, header.record_count, header.base_timestamp)
            if not walk.contiguous or header.record_count != header.last_offset_delta + 1:
                kernel.decode(
                    payload, start, end, header.record_count, header.base_offset, header.last_offset_delta,
                    header.base_timestamp, None, Record,
                )  # fmt: skip
        except PeerError as error:
            self._findings.add_new(
                self._severity,
                LogFindingKind.RECORDS,
                path,
                f"the records of the batch at offset {header.base_offset} cannot be read: {error.message}",
                _WRITER,
                position=rows.value("position", row),
                offset=header.base_offset,
            )

    def _see_sequences(self, rows: Rows, path: str) -> None:
        ids, epochs = rows.column("producer_id"), rows.column("producer_epoch")
        firsts, bases, lasts = rows.column("base_sequence"), rows.column("base_offset"), rows.column("last_offset")
        for row in range(rows.count):
            first, epoch, producer_id = firsts[row], epochs[row], ids[row]
            if producer_id < 0 or first < 0:
                continue
            known_epoch, last = self._producers.pop(producer_id, (epoch, -1))
            due = (last + 1) & MAX_SEQUENCE if epoch == known_epoch else 0
            unknown = last < 0 and epoch == known_epoch
            if epoch < known_epoch or (first != due and not unknown):
                self._findings.add_new(
                    self._severity,
                    LogFindingKind.SEQUENCE,
                    path,
                    f"producer {producer_id} epoch {epoch} wrote sequence {first} at offset {bases[row]}, but "
                    f"sequence {due} of epoch {max(epoch, known_epoch)} was expected",
                    "This is normal in a compacted topic. In any other topic records may be missing or duplicated: "
                    "compare with the other replicas.",
                    position=rows.value("position", row),
                    offset=bases[row],
                )
            self._producers[producer_id] = (epoch, (first + lasts[row] - bases[row]) & MAX_SEQUENCE)
            if len(self._producers) > MAX_PRODUCERS:
                del self._producers[next(iter(self._producers))]
