"""The metadata log beside Apache Kafka 4.3.1: its logs read here, ours read by its tools (K20-K22, N10, F3-F5)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from fenceline.controller.requests import BrokerHeartbeat, CreateTopics, TopicToCreate
from fenceline.ids import decode_uuid
from fenceline.log.core.disk import OsDisk
from fenceline.log.core.meta_properties import read_meta
from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.image import EMPTY_IMAGE, MetadataImage
from fenceline.metadata.records import decode_record, encode_record
from fenceline.metadata.snapshot import image_records
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME, MetadataLog
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import run_tool, small_kafka
from tests.metadata.helpers import batches_in
from tests.node.controller_helpers import driver, join, prepare

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def kafka_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of an Apache Kafka node after some use: topics, configs, features, quotas, producer ids, two
    starts.
    """
    from confluent_kafka import Producer
    from confluent_kafka.admin import (
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        ResourceType,
    )

    root = tmp_path_factory.mktemp("kafka")
    broker = small_kafka(data_dir=root, overrides={"metadata.log.max.record.bytes.between.snapshots": "3000"})
    with broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})

        def wait(futures: dict[Any, Any]) -> None:
            for future in futures.values():
                future.result(60)

        names = [f"topic.{number}" for number in range(12)]
        wait(admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "86400000"}) for name in names]))
        wait(admin.create_partitions([NewPartitions(names[0], 6)]))
        wait(admin.delete_topics(names[1:3]))
        wait(admin.create_topics([NewTopic(names[1], 1, 1)]))
        entries = [
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET),
        ]
        wait(
            admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, names[4], incremental_configs=entries)])
        )
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        producer.produce(names[0], b"x")
        producer.flush(60)
        broker.stop()
        broker.start()
        wait(admin.create_topics([NewTopic("later", 2, 1)]))
        broker.stop()
    return root / "data"


def _image_up_to(directory: Path, end_offset: int | None = None) -> MetadataImage:
    """From the records alone, without snapshots."""
    delta = MetadataDelta(EMPTY_IMAGE)
    last = -1
    for header, records in batches_in(directory):
        for record in records:
            if end_offset is not None and record.offset >= end_offset:
                break
            last = record.offset
            if not header.is_control:
                assert record.value is not None
                delta.replay_value(record.value)
    image, _ = delta.build(last, 1)
    return image


def _values(image: MetadataImage) -> set[bytes]:
    return {encode_record(record, image.metadata_version) for record in image_records(image)}


def test_every_kafka_record_encodes_back_to_its_bytes(kafka_dir: Path) -> None:
    seen = set()
    for header, records in batches_in(kafka_dir / DIRECTORY_NAME):
        for record in [] if header.is_control else records:
            assert record.value is not None
            decoded = decode_record(record.value)
            assert encode_record(decoded, 30) == record.value, decoded
            seen.add(type(decoded).__name__)
    assert len(seen) >= 12, seen


def test_our_snapshot_of_a_kafka_log_equals_kafkas_own_snapshots(kafka_dir: Path) -> None:
    directory = kafka_dir / DIRECTORY_NAME
    compared = 0
    for path in sorted(directory.glob("*.checkpoint")):
        end_offset = int(path.name.split("-")[0])
        if end_offset == 0:
            continue
        theirs = {
            record.value
            for header, records in decode_all(path.read_bytes())
            if not header.is_control
            for record in records
        }
        ours = _values(_image_up_to(directory, end_offset))
        # Kafka writes the features of a registration in the order of a hash map.
        assert {_without_feature_order(value) for value in theirs if value} == set(map(_without_feature_order, ours))
        compared += 1
    assert compared >= 2


def _without_feature_order(value: bytes) -> object:
    record = decode_record(value)
    features = getattr(record, "features", None)
    if features is None:
        return value
    return dataclasses.replace(record, features=tuple(sorted(features, key=lambda feature: feature.name)))  # type: ignore[type-var,call-arg]


def test_snapshot_and_later_records_give_the_same_image_as_the_whole_log(kafka_dir: Path, tmp_path: Path) -> None:
    shutil.copytree(kafka_dir / DIRECTORY_NAME, tmp_path / DIRECTORY_NAME)
    log = MetadataLog.open(OsDisk(), str(tmp_path), now_ms=0)
    replayed = log.replay()
    assert replayed.snapshot.end_offset > 0
    whole = _image_up_to(kafka_dir / DIRECTORY_NAME)
    assert _values(replayed.image) == _values(whole)
    assert (replayed.image.offset, replayed.kraft_version) == (whole.offset, 1)
    assert [voter.voter_id for voter in replayed.voters] == [1]
    election = log.read_election()
    assert election is not None
    assert (election.epoch, election.leader_id) == (2, 1)
    log.close()


def test_a_kafka_directory_can_be_used_here(kafka_dir: Path, tmp_path: Path) -> None:
    """Epoch 3 begins, and all data is still there."""
    shutil.copytree(kafka_dir, tmp_path / "data")
    whole = _image_up_to(kafka_dir / DIRECTORY_NAME)

    async def story() -> None:
        controller = driver(OsDisk(), str(tmp_path / "data"))
        await controller.start()
        assert controller.epoch == 3
        assert _values(controller.image) == _values(whole)
        await join(controller, incarnation=9)
        await controller.submit(CreateTopics((TopicToCreate("here", 1, 1),)))
        await controller.stop()

    asyncio.run(story())
    assert _invalid(_dump(tmp_path / "data")) == 0


def _dump(data_dir: Path) -> str:
    files = [
        str(path) for path in sorted((data_dir / DIRECTORY_NAME).iterdir()) if path.suffix in (".log", ".checkpoint")
    ]
    return run_tool("org.apache.kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", ",".join(files))


def _invalid(dump: str) -> int:
    return len(re.findall(r"isvalid: false|Could not deserialize|Error at|Unrecognized", dump))


_PAYLOAD = re.compile(r"payload: (\{.*\})$|(LeaderChange|KRaftVersion|KRaftVoters)\b", re.MULTILINE)


def _kinds(dump: str) -> list[str]:
    return [
        f"{json.loads(payload)['type']} v{json.loads(payload)['version']}" if payload else control
        for payload, control in _PAYLOAD.findall(dump)
    ]


def test_the_first_log_of_a_cluster_equals_kafkas_record_by_record(tmp_path: Path) -> None:
    """K20: the same types and versions in the same order, and the same bytes where they do not depend on the
    machine.
    """
    ours_dir = tmp_path / "ours"
    ours_dir.mkdir()
    prepare(OsDisk(), str(ours_dir))

    async def story() -> None:
        controller = driver(OsDisk(), str(ours_dir))
        await controller.start()
        epoch = await join(controller)
        await controller.submit(BrokerHeartbeat(1, epoch, controller.image.offset, cordoned_log_dirs=()))
        await controller.submit(BrokerHeartbeat(1, epoch, controller.image.offset, want_shut_down=True))
        await controller.stop()

    asyncio.run(story())
    with small_kafka(data_dir=tmp_path / "theirs") as broker:
        log_dir = broker.log_dir
        broker.stop()
    ours, theirs = _dump(ours_dir), _dump(log_dir)
    assert _invalid(ours) == 0

    def order(dump: str) -> list[str]:
        return [kind for kind in _kinds(dump) if not kind.startswith("NO_OP")]

    cordon = "BROKER_REGISTRATION_CHANGE_RECORD v3"  # comes with a heartbeat, before or after the unfencing
    assert [kind for kind in order(ours) if kind != cordon] == [kind for kind in order(theirs) if kind != cordon]

    def head(directory: Path) -> list[tuple[int, bytes | None, bytes | None]]:
        rows = [row for _, rows in batches_in(directory / DIRECTORY_NAME) for row in rows]
        return [(row.offset, row.key, row.value) for row in rows if row.offset in (0, 1, *range(3, 12))]

    assert head(ours_dir) == head(log_dir)


def test_kafkas_tools_read_our_log_and_our_snapshots(tmp_path: Path) -> None:
    prepare(OsDisk(), str(tmp_path))
    overrides = {"metadata.log.max.record.bytes.between.snapshots": "3000"}

    async def story() -> int:
        previous = -1
        for life in (1, 2):
            controller = driver(OsDisk(), str(tmp_path), seed=life, overrides=overrides)
            await controller.start()
            previous = await join(controller, incarnation=life, previous=previous)
            for number in range(40):
                topic = TopicToCreate(f"t{life}-{number}", 3, 1, configs=(("retention.ms", "1000"),))
                await controller.submit(CreateTopics((topic,)))
            for _ in range(2):
                await controller.submit(BrokerHeartbeat(1, previous, controller.image.offset, want_shut_down=True))
            await controller.stop()
        return len(controller.image.topics_by_name)

    assert asyncio.run(story()) == 80
    assert len(list((tmp_path / DIRECTORY_NAME).glob("*.checkpoint"))) > 2
    dump = _dump(tmp_path)
    assert _invalid(dump) == 0
    assert dump.count("SnapshotFooter") == len(list((tmp_path / DIRECTORY_NAME).glob("*.checkpoint")))
    assert dump.count("PARTITION_CHANGE_RECORD") >= 240


def test_kafka_starts_on_a_directory_of_this_project(tmp_path: Path) -> None:
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    data = tmp_path / "data"
    data.mkdir()
    prepare(OsDisk(), str(data))

    async def story() -> MetadataImage:
        controller = driver(OsDisk(), str(data), overrides={"metadata.log.max.record.bytes.between.snapshots": "3000"})
        await controller.start()
        epoch = await join(controller, log_dir=decode_uuid(read_meta(OsDisk(), str(data))["directory.id"]))
        for number in range(30):
            await controller.submit(
                CreateTopics((TopicToCreate(f"t{number}", 2, 1, configs=(("retention.ms", "9000000"),)),))
            )
        for _ in range(2):
            await controller.submit(BrokerHeartbeat(1, epoch, controller.image.offset, want_shut_down=True))
        await controller.stop()
        (data / ".kafka_cleanshutdown").write_text(json.dumps({"version": 0, "brokerEpoch": epoch}))
        return controller.image

    image = asyncio.run(story())
    with small_kafka(data_dir=tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        topics = admin.list_topics(timeout=60).topics
        assert set(image.topics_by_name) <= set(topics)
        assert [partition.leader for partition in topics["t7"].partitions.values()] == [1, 1]
        producer = Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"})
        producer.produce("t7", b"x", partition=1)
        assert producer.flush(60) == 0
        broker.stop()
    there = _image_up_to(data / DIRECTORY_NAME)
    partition = there.partition("t7", 1)
    assert partition is not None
    assert partition.leader_recovery_state == 0, "the shutdown was clean: Kafka elects without data loss"
    assert there.topics_by_name["t7"].id == image.topics_by_name["t7"].id
