"""Kafka's small text files: offset checkpoints of a log dir, the leader-epoch checkpoint, `partition.metadata`.

Owns their syntax (`formats.md F2`, `F3`, `F5`, `epochs.md E16`) and Fenceline's additions: the line of
`partition.metadata` with the directory's incarnation, and the checkpoint of incarnations. Never decides when to write.
A file that cannot be parsed raises `BadCheckpoint`; every caller can continue without it. A line with an invalid
offset, or one that contradicts another line, is skipped and reported; the others count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.errors import FencelineError
from fenceline.ids import TopicPartition, decode_uuid, encode_uuid
from fenceline.log.core.disk import Disk, read_file, replace_file

MAX_OFFSET: Final = 2**63 - 1
_INCARNATION: Final = "fenceline_incarnation"


class BadCheckpoint(FencelineError):
    """A checkpoint file is malformed: a bug of the writer, or a damaged file."""


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
        raise BadCheckpoint(f"{path}: the header announces {count} entries, the file has {len(lines) - 2}")
    return [line.split() for line in lines[2:]]


def _text(rows: list[str]) -> bytes:
    return "\n".join(["0", str(len(rows)), *rows, ""]).encode()


def read_offsets(disk: Disk, path: str, rejected: list[str] | None = None) -> dict[TopicPartition, int]:
    """Offsets by partition; empty if there is no file, or an empty one, which Kafka creates before it has entries.
    Raises BadCheckpoint, OSError.

    A partition with an invalid offset, or with two different ones, is skipped; `rejected` gets a message.
    """
    content = read_file(disk, path)
    if not content:
        return {}
    found: dict[TopicPartition, int] = {}
    wrong: dict[TopicPartition, str] = {}
    try:
        for topic, partition, text in _body(path, content.decode()):
            where, offset = TopicPartition(topic, int(partition)), int(text)
            if not 0 <= offset <= MAX_OFFSET:
                wrong[where] = f"{where} has the invalid offset {offset}"
            elif found.setdefault(where, offset) != offset:
                wrong[where] = f"{where} is listed twice, with offsets {found[where]} and {offset}"
    except ValueError:
        raise BadCheckpoint(f"{path}: a line is not of the form `topic partition offset`") from None
    for where, reason in wrong.items():
        found.pop(where, None)
        if rejected is not None:
            rejected.append(f"{path}: {reason}")
    return found


def write_offsets(disk: Disk, path: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Durable when it returns. Raises OSError."""
    rows = [f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items())]
    replace_file(disk, path, _text(rows))


def read_incarnations(disk: Disk, path: str) -> dict[TopicPartition, str] | None:
    """By partition, the identity of the directory that the offset checkpoints describe; None if there is no file. A
    partition that is listed twice is skipped. Raises BadCheckpoint, OSError."""
    content = read_file(disk, path)
    if content is None:
        return None
    found: dict[TopicPartition, str] = {}
    try:
        for topic, partition, identity in _body(path, content.decode()):
            where = TopicPartition(topic, int(partition))
            found[where] = identity if found.get(where, identity) == identity else ""
    except ValueError:
        raise BadCheckpoint(f"{path}: a line is not of the form `topic partition incarnation`") from None
    return {where: identity for where, identity in found.items() if identity}


def write_incarnations(disk: Disk, path: str, incarnations: Mapping[TopicPartition, str]) -> None:
    """Durable when it returns. Raises OSError."""
    rows = [f"{tp.topic} {tp.partition} {identity}" for tp, identity in sorted(incarnations.items())]
    replace_file(disk, path, _text(rows))


def read_epochs(disk: Disk, path: str) -> list[tuple[int, int]]:
    """(epoch, start offset) in file order; empty if there is no file. Raises BadCheckpoint, OSError."""
    content = read_file(disk, path)
    if content is None:
        return []
    try:
        return [(int(epoch), int(start)) for epoch, start in _body(path, content.decode())]
    except ValueError:
        raise BadCheckpoint(f"{path}: a line is not of the form `epoch start_offset`") from None


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    return _text([f"{epoch} {start}" for epoch, start in entries])


class DirectoryIdentity(NamedTuple):
    """Which topic and incarnation a partition directory belongs to, by its `partition.metadata`."""

    topic_id: UUID | None
    """None if the file is missing."""
    incarnation: UUID | None
    """The id of this directory, created by Fenceline; None if Kafka, or an older Fenceline release, created it."""

    @property
    def text(self) -> str:
        """The directory's name in the checkpoint of incarnations; "" if it has no identity."""
        known = self.incarnation or self.topic_id
        return encode_uuid(known) if known is not None else ""


NO_IDENTITY: Final = DirectoryIdentity(None, None)


def read_identity(disk: Disk, path: str) -> DirectoryIdentity:
    """Reads a `partition.metadata`. Raises BadCheckpoint, OSError."""
    content = read_file(disk, path)
    if content is None:
        return NO_IDENTITY
    fields = dict(line.split(":", 1) for line in content.decode(errors="replace").splitlines() if ":" in line)
    try:
        if int(fields["version"]) != 0:
            raise BadCheckpoint(f"{path}: unknown version {fields['version'].strip()}")
        incarnation = fields.get(_INCARNATION)
        return DirectoryIdentity(
            decode_uuid(fields["topic_id"].strip()),
            decode_uuid(incarnation.strip()) if incarnation is not None else None,
        )
    except (KeyError, ValueError):
        raise BadCheckpoint(f"{path}: version or topic_id is missing") from None


def read_partition_metadata(disk: Disk, path: str) -> UUID | None:
    """The topic id of a partition directory; None if there is no file. Raises BadCheckpoint, OSError."""
    return read_identity(disk, path).topic_id


def encode_partition_metadata(topic_id: UUID, incarnation: UUID | None = None) -> bytes:
    """Kafka reads the first two lines."""
    text = f"version: 0\ntopic_id: {encode_uuid(topic_id)}\n"
    if incarnation is not None:
        text += f"{_INCARNATION}: {encode_uuid(incarnation)}\n"
    return text.encode()
