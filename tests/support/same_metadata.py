"""The content of Fenceline's or Kafka's metadata directories in comparable forms: batches, images, dumps.

Owns nothing; the nodes have stopped. "Before offset N" is what the quorum had committed by then: what lies behind may
differ from node to node.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

from fenceline.cli.metadata_files import LoadedMetadata, MetadataFiles, load_snapshot
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.node_records import RegisterBrokerRecord, RegisterControllerRecord
from fenceline.metadata.records import MetadataRecord, encode_record
from fenceline.metadata.snapshot import image_records
from fenceline.node.metadata.batches import SnapshotBatches, control_batch
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.quorum.control_records import SnapshotFooter, SnapshotHeader
from fenceline.quorum.log_view import SnapshotId
from fenceline.records.batch import iter_headers
from fenceline.records.build import build_batch
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import run_tool
from fenceline.testing.waiting import eventually

_SHELL_WAIT_S: Final = 300.0


def batches_before(log_dir: Path, end_offset: int) -> dict[int, bytes]:
    """Base offset to the bytes of the batch as they lie on the disk."""
    found: dict[int, bytes] = {}
    for path in sorted((log_dir / DIRECTORY_NAME).glob("*.log")):
        content = path.read_bytes()
        for header in iter_headers(content, allow_partial_tail=True):
            if header.base_offset < end_offset:
                assert header.base_offset not in found
                found[header.base_offset] = content[header.position : header.end_position]
    return found


def image_before(log_dir: Path, end_offset: int) -> LoadedMetadata:
    """From the newest snapshot that fits, and the log behind it."""
    loaded = MetadataFiles.at(log_dir).image_at(end_offset - 1)
    assert not loaded.problems, loaded.problems
    return loaded


def image_from_records(log_dir: Path, end_offset: int) -> MetadataImage:
    """From the log alone, which begins at offset 0."""
    delta = MetadataDelta(EMPTY_IMAGE)
    epoch = 0
    for entry in MetadataFiles.at(log_dir).log_entries():
        if entry.offset >= end_offset:
            break
        epoch = entry.epoch
        if entry.name.endswith("Record"):
            delta.replay_value(entry.value)
    return delta.build(end_offset - 1, epoch)[0]


def checksum(image: MetadataImage) -> str:
    """Of all that it says. Kafka's snapshots list the features of a node in the order of a hash map, so that order
    does not count."""
    values = {encode_record(_ordered(record), image.metadata_version) for record in image_records(image)}
    whole = blake2b(digest_size=16)
    for value in sorted(values):
        whole.update(len(value).to_bytes(4, "big") + value)
    return whole.hexdigest()


def _ordered(record: MetadataRecord) -> MetadataRecord:
    if isinstance(record, RegisterBrokerRecord):
        return dataclasses.replace(record, features=tuple(sorted(record.features, key=lambda each: each.name)))
    if isinstance(record, RegisterControllerRecord):
        return dataclasses.replace(record, features=tuple(sorted(record.features, key=lambda each: each.name)))
    return record


def snapshots(log_dir: Path) -> list[SnapshotId]:
    """Oldest first, without the one that formatting makes."""
    return [each for each in MetadataFiles.at(log_dir).snapshots if each.end_offset > 0]


def snapshot_path(log_dir: Path, snapshot: SnapshotId) -> Path:
    return log_dir / DIRECTORY_NAME / snapshot.file_name


def snapshot_checksum(log_dir: Path, snapshot: SnapshotId) -> str:
    loaded = load_snapshot(snapshot_path(log_dir, snapshot))
    assert not loaded.problems, loaded.problems
    return checksum(loaded.image)


def write_snapshot(folder: Path, log_dir: Path, end_offset: int) -> Path:
    """Fenceline's own snapshot of what a directory holds before `end_offset`."""
    loaded = image_before(log_dir, end_offset)
    path = folder / SnapshotId(end_offset, loaded.image.epoch).file_name
    made = SnapshotBatches(
        loaded.image, now_ms=1, last_log_timestamp_ms=loaded.timestamp_ms, kraft_version=0, voters=()
    )
    path.write_bytes(b"".join(made))
    return path


_PLACE = re.compile(r"position: \d+")
_OFFSET = re.compile(r"(?:baseOffset|\| offset): (\d+)")


def kafkas_dumps(log_dirs: Iterable[Path], start_offset: int, end_offset: int) -> list[list[str]]:
    """What Kafka's DumpLogSegments says of every batch and record from `start_offset` to `end_offset`, by directory;
    every batch is valid."""
    files = [str(path) for each in log_dirs for path in sorted((each / DIRECTORY_NAME).glob("*.log"))]
    printed = run_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        *("--cluster-metadata-decoder", "--skip-record-metadata", "--files", ",".join(files)),
    )
    assert "isvalid: false" not in printed
    dumps: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in printed.splitlines():
        if line.startswith("Dumping "):
            lines = dumps.setdefault(line.removeprefix("Dumping ").partition(DIRECTORY_NAME)[0], [])
        found = _OFFSET.match(line)
        if found is not None and start_offset <= int(found[1]) < end_offset:
            lines.append(_PLACE.sub("", line))
    return list(dumps.values())


def in_one_batch(snapshot: Path, folder: Path) -> Path:
    """The same records, as they are, in a file that Kafka's shell has read to its end when it looks: it does not wait
    for more than the first batch that goes past offset 0."""
    values = [
        (1, None, record.value, ())
        for header, records in decode_all(snapshot.read_bytes())
        if not header.is_control
        for record in records
    ]
    path = folder / snapshot.name
    path.write_bytes(
        control_batch([SnapshotHeader()], 1)
        + build_batch(values, base_offset=1, leader_epoch=0)
        + control_batch([SnapshotFooter()], 1, base_offset=1 + len(values))
    )
    return path


def kafkas_tree(snapshot: Path, wanted: Collection[str]) -> set[str]:
    """Every path that Kafka's metadata shell shows of a snapshot.

    The shell does not wait until what it has read can be seen, and shows the less the busier the machine is: it is
    asked until it has shown all that is `wanted`, and what it has shown counts together.
    """
    shown: set[str] = set()

    def look() -> bool:
        printed = _kafkas_shell(snapshot, "find", "/image")
        shown.update(line for line in printed if line.startswith("/"))
        return shown >= set(wanted)

    eventually(look, f"Kafka's shell shows all of {snapshot}", wait_s=_SHELL_WAIT_S)
    return shown


def kafkas_entries(snapshot: Path, paths: Sequence[str]) -> str:
    """What Kafka's metadata shell shows at each of `paths`; asked until it shows that they are there."""

    def look(path: str) -> str | None:
        printed = _kafkas_shell(snapshot, "cat", path)
        return None if any("cat:" in line for line in printed) else "\n".join(printed)

    return "\n".join(
        eventually(partial(look, path), f"Kafka's shell shows {path} of {snapshot}", wait_s=_SHELL_WAIT_S)
        for path in paths
    )


def _kafkas_shell(snapshot: Path, *command: str) -> list[str]:
    printed = run_tool("org.apache.kafka.shell.MetadataShell", "--snapshot", str(snapshot), *command)
    return [line for line in printed.splitlines() if not line.startswith("SLF4J")]
