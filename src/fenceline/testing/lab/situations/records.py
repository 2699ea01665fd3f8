"""Situations of single records and of the disk below them.

Owns the choreography of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fenceline.testing.lab.faults import ActiveFault
from fenceline.testing.lab.situations.common import SituationBase, SituationImpossible

if TYPE_CHECKING:
    from pathlib import Path

POISON: Final = b'{"amount": \xff\xfe, "id": '
"""Neither UTF-8 nor JSON."""
_HEADER_BYTES: Final = 61
_SIZE_AT: Final = 8
_PREFIX_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class PoisonRecord:
    """A record that an application cannot decode."""

    topic: str
    partition: int
    offset: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class DamagedBatch:
    """A batch on the disk of the leader whose bytes do not match its checksum: clients get it, and must reject it."""

    topic: str
    partition: int
    base_offset: int
    node: int
    path: Path
    fault: ActiveFault


class RecordSituations(SituationBase):
    """Part of `Situations`."""

    def poison_record(self, topic: str, partition: int = 0, *, value: bytes | None = POISON) -> PoisonRecord:
        """Write a record that the application cannot decode: neither UTF-8 nor JSON, unless `value` is given."""
        self._partition(topic, partition)
        (offset,) = self._write(topic, partition, [value])
        self._note("poison record", topic=topic, partition=partition, offset=offset)
        return PoisonRecord(topic, partition, offset, value)

    def damaged_batch(self, topic: str, partition: int = 0) -> DamagedBatch:
        """Change a byte of the last batch in the leader's log, as a bad disk does. Ends with the byte as it was."""
        found = self._partition(topic, partition)
        place = next(each for each in self._cluster.processes.layout.nodes if each.node_id == found.leader)
        segments = sorted((place.data_dir / f"{topic}-{partition}").glob("*.log"))
        path = next((each for each in reversed(segments) if each.stat().st_size), None)
        if path is None:
            raise SituationImpossible(f"{topic}-{partition} has no records", "Write records first.")
        position, base_offset = _last_batch(path)
        at = position + _HEADER_BYTES
        content = path.read_bytes()[at]

        def put(byte: int) -> None:
            with path.open("r+b") as file:
                file.seek(at)
                file.write(bytes([byte]))

        put(content ^ 0xFF)
        text = f"damaged batch at offset {base_offset} of {topic}-{partition}"
        fault = self._cluster.faults.begin(text, found.leader, lambda: put(content) if path.exists() else None)
        return DamagedBatch(topic, partition, base_offset, found.leader, path, fault)

    def full_disk(self, topic: str, partition: int = 0) -> ActiveFault:
        """The disk of the partition's leader is full: it takes no more records until the fault ends."""
        return self._cluster.faults.full_disk(self._partition(topic, partition).leader)


def _last_batch(path: Path) -> tuple[int, int]:
    """Position and base offset of the last batch of a segment."""
    content = path.read_bytes()
    position = last = 0
    while position + _PREFIX_BYTES <= len(content):
        last = position
        position += _PREFIX_BYTES + int.from_bytes(content[position + _SIZE_AT : position + _PREFIX_BYTES], "big")
    return last, int.from_bytes(content[last : last + _SIZE_AT], "big")
