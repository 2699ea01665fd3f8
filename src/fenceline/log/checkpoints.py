"""Kafka's small text files: offset checkpoints of a log dir, the leader-epoch checkpoint, `partition.metadata`.

Owns their syntax (`formats.md F2`, `F3`, `F5`, `epochs.md E16`). Never decides when to write. A file that can not be
parsed is reported as `BadCheckpoint`: each caller knows a safe way on without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition, decode_uuid, encode_uuid
from fenceline.log.disk import Disk, read_file, replace_file


class BadCheckpoint(FencelineError):
    """A checkpoint's text is not in its form: a bug of a writer or a damaged file."""


def _body(path: str, text: str) -> list[list[str]]:
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if not lines or lines[0].strip() != "0":
        raise BadCheckpoint(f"{path}: unknown version {lines[0].strip() if lines else ''!r}")
    try:
        count = int(lines[1])
    except (IndexError, ValueError):
        raise BadCheckpoint(f"{path}: no entry count") from None
    if count != len(lines) - 2:
        raise BadCheckpoint(f"{path}: {count} entries announced, {len(lines) - 2} there")
    return [line.split() for line in lines[2:]]


def _text(rows: list[str]) -> bytes:
    return "\n".join(["0", str(len(rows)), *rows, ""]).encode()


def read_offsets(disk: Disk, path: str) -> dict[TopicPartition, int]:
    """Offsets by partition; none when there is no file, or one without a byte, which Kafka makes before it has
    something to say. Raises BadCheckpoint, OSError.
    """
    content = read_file(disk, path)
    if not content:
        return {}
    found: dict[TopicPartition, int] = {}
    try:
        for topic, partition, offset in _body(path, content.decode()):
            found[TopicPartition(topic, int(partition))] = int(offset)
    except ValueError:
        raise BadCheckpoint(f"{path}: a line is not `topic partition offset`") from None
    return found


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    rows = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    replace_file(disk, path, _text(rows))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) in file order; empty when there is no file. Raises BadCheckpoint, OSError."""
    content = read_file(disk, path)
    if content is None:
        return []
    try:
        return [(int(epoch), int(start)) for epoch, start in _body(path, content.decode())]
    except ValueError:
        raise BadCheckpoint(f"{path}: a line is not `epoch start_offset`") from None


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return _text([f"{epoch} {start}" for epoch, start in entries])


def read_partition_metadata(disk: Disk, path: str) -> UUID | None:
    """The topic id of a partition directory; None when there is no file. Raises BadCheckpoint, OSError."""
    content = read_file(disk, path)
    if content is None:
        return None
    fields = dict(line.split(":", 1) for line in content.decode(errors="replace").splitlines() if ":" in line)
    try:
        if int(fields["version"]) != 0:
            raise BadCheckpoint(f"{path}: unknown version {fields['version'].strip()}")
        return decode_uuid(fields["topic_id"].strip())
    except (KeyError, ValueError):
        raise BadCheckpoint(f"{path}: no version and topic_id") from None


def encode_partition_metadata(topic_id: UUID) -> bytes:
    return f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n".encode()
