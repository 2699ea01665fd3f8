"""A metadata log of a newer release, or with bytes that are no record: rejected by name, and left unchanged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from fenceline.errors import OperatorError
from fenceline.log.core.disk import OsDisk
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.metadata.records import FeatureLevelRecord, PartitionRecord, TopicRecord, encode_record
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.records.build import build_batch
from fenceline.testing.node import EmbeddedNode, NodeFailed

TOPIC = encode_record(TopicRecord("t", UUID(int=7)), 30)
PARTITION = encode_record(PartitionRecord(0, UUID(int=7), (1,), (1,)), 30)


def level(name: str, number: int) -> bytes:
    return encode_record(FeatureLevelRecord(name, number), 30)


REFUSED = [
    (b"\1\x63\0more", "a record of type 99, which this release does not support", "newer release"),
    (b"\1\2\x09more", "a TopicRecord of version 9; this release supports up to 0", "newer release"),
    (b"", "an invalid record that starts with nothing", "newer release"),
    (
        level("metadata.version", 31),
        "level of metadata.version is 31; this release supports levels 7 to 30",
        "Run a release",
    ),
    (level("kraft.version", 2), "level of kraft.version is 2; this release supports levels 0 to 1", "Run a release"),
    (level("new.version", 1), "level of new.version is 1; this release does not support this feature", "Run a release"),
    (TOPIC + b"xyz", "Cannot decode a TopicRecord of the metadata log: 3 bytes left over", "newer release"),
    (TOPIC[:-8], "Cannot decode a TopicRecord", "check the disk"),
    (PARTITION + b"x", "Cannot decode a PartitionRecord of the metadata log: 1 bytes left over", "newer release"),
    (PARTITION[:40], "Cannot decode a PartitionRecord", "check the disk"),
    (PARTITION[:9], "Cannot decode a PartitionRecord", "check the disk"),
]


@pytest.mark.parametrize(("value", "reported", "advice"), REFUSED)
def test_newer_record_is_rejected_by_name(value: bytes, reported: str, advice: str) -> None:
    with pytest.raises(OperatorError) as refused:
        MetadataDelta(EMPTY_IMAGE).replay_value(value)
    assert reported in refused.value.message
    assert advice in refused.value.advice


def test_every_truncated_partition_record_is_rejected_by_name() -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_value(TOPIC)
    delta.replay_value(PARTITION)  # so that the fast decoder has its parts
    for size in range(len(PARTITION)):
        with pytest.raises(OperatorError):
            delta.replay_value(PARTITION[:size])


@pytest.mark.parametrize("name", sorted(SUPPORTED))
def test_supported_and_disabled_feature_levels_are_accepted(name: str) -> None:
    for number in (0, SUPPORTED[name].maximum):
        MetadataDelta(EMPTY_IMAGE).replay_value(level(name, number))
    MetadataDelta(EMPTY_IMAGE).replay_value(level("new.version", 0))


def test_unknown_tagged_fields_are_skipped() -> None:
    """This is the purpose of tagged fields; Kafka skips them too."""
    assert TOPIC[-1] == 0
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay_value(TOPIC[:-1] + b"\1\x63\3abc")
    assert "t" in delta.build(0, 1)[0].topics_by_name


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> EmbeddedNode:
    node = EmbeddedNode(data_dir=tmp_path_factory.mktemp("future"))
    with node:
        assert node.stop() == 0
    return node


def write(directory: Path, value: bytes) -> Callable[[], None]:
    """Append a record as a newer release would; the result removes it again."""
    path = directory / "__cluster_metadata-0" / f"{0:020}.log"
    before = path.read_bytes()
    log = MetadataLog.open(OsDisk(), str(directory), now_ms=1)
    log.append(build_batch([(1, None, value, ())]), log.end.epoch, 1)
    log.flush()
    log.close()
    return lambda: bytes_back(path, before)


def bytes_back(path: Path, content: bytes) -> None:
    path.write_bytes(content)


@pytest.mark.parametrize(("value", "reported"), [REFUSED[0][:2], REFUSED[3][:2], REFUSED[6][:2]])
def test_node_refuses_to_start_and_reports_the_reason(stopped: EmbeddedNode, value: bytes, reported: str) -> None:
    undo = write(stopped.log_dir, value)
    with pytest.raises(NodeFailed) as refused:
        stopped.start()
    message = str(refused.value)
    assert "the node ended with exit code 1" in message
    assert reported in message
    assert "Traceback" not in message
    undo()
    with stopped:
        assert stopped.errors == ""
