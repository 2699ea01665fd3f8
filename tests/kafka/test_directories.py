"""Whole data directories handed from one server to the other and back: no data is lost or read differently."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fenceline.ids import LOSSES_TOPIC
from fenceline.records.batch import Codec
from fenceline.records.build import Row, build_batch
from fenceline.records.decode import decode_all
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.testing.node import EmbeddedNode
from fenceline.wire.apis import ApiKey
from tests.kafka.conftest import SAME_SETTINGS
from tests.support.raw import RawConnection, plain

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "small-segments": {"segment.bytes": "1048576", "retention.ms": "-1"},
    "stamped": {"message.timestamp.type": "LogAppendTime", "compression.type": "zstd"},
    "compacted": {"cleanup.policy": "compact"},
}
PARTITIONS = 3
GROUPS = ("g1", "g2", "g3")


class Life:
    """Writes to a server and reads its whole state. The producer persists across server changes."""

    def __init__(self) -> None:
        self.producer_id = -1
        self.sequence = 0
        self.round = 0
        self.epoch = 0
        """Leader epoch at the last write; the server that comes next leads with a higher one."""
        self.now_ms = int(time.time() * 1000) - 100_000

    def begin(self, port: int) -> None:
        with RawConnection(port) as server:
            rows = [
                {
                    "name": name,
                    "num_partitions": PARTITIONS,
                    "replication_factor": 1,
                    "configs": [{"name": key, "value": value} for key, value in configs.items()],
                }
                for name, configs in TOPICS.items()
            ]
            answer = server.call(ApiKey.CREATE_TOPICS, 7, {"topics": rows, "timeout": 60_000})
            assert all(row.error_code == 0 for row in answer.topics), answer
            _await_leaders(server)
            self.producer_id = _retry(
                lambda: server.call(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None}),
                lambda each: each.error_code,
            ).producer_id

    def write(self, port: int) -> None:
        """Writes one round: every codec, an idempotent producer whose last batch is sent twice, group offsets."""
        self.round += 1
        with RawConnection(port) as server:
            for topic in TOPICS:
                for partition, codec in ((p, c) for p in range(PARTITIONS) for c in Codec):
                    rows: list[Row] = [
                        (self.now_ms + n, b"k%d" % n, f"{self.round} {codec.name} {n}".encode(), (("h", b"v"),))
                        for n in range(5)
                    ]
                    assert _produce(server, topic, partition, bytes(build_batch(rows, codec=codec))) == 0
            for _ in range(25):  # larger than a segment
                rows = [(self.now_ms, b"k", bytes(60_000), ())]
                assert _produce(server, "small-segments", 0, bytes(build_batch(rows))) == 0
            if self.sequence:
                assert self._produce_once(server, self.sequence - 1) == 0, "the batch of the round before, again"
                assert self._produce_once(server, self.sequence + 5) == 45, "a sequence with a gap"
            for _ in range(3):
                assert self._produce_once(server, self.sequence) == 0
                self.sequence += 1
            assert self._produce_once(server, self.sequence - 1) == 0
            self._commit(server)
            self.epoch = _latest(server, "plain", 0).leader_epoch
            if self.round == 2:
                cut = {"partition_index": 1, "offset": 7}
                fields = {"topics": [{"name": "plain", "partitions": [cut]}], "timeout": 60_000}
                assert server.call(ApiKey.DELETE_RECORDS, 2, fields).topics[0].partitions[0].error_code == 0

    def _produce_once(self, server: RawConnection, sequence: int) -> int:
        rows = [(self.now_ms, b"idempotent", b"%d" % sequence, ())]
        batch = build_batch(rows, producer_id=self.producer_id, producer_epoch=0, base_sequence=sequence)
        return _produce(server, "plain", 0, bytes(batch))

    def _commit(self, server: RawConnection) -> None:
        for group in GROUPS:
            _await_coordinator(server, group)
            row = {"partition_index": self.round % PARTITIONS, "committed_offset": self.round * 3}
            topics = [{"name": "plain", "partitions": [row | {"committed_metadata": f"round {self.round}"}]}]
            fields = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
            answer = _retry(
                lambda: server.call(ApiKey.OFFSET_COMMIT, 8, fields),  # noqa: B023
                lambda each: each.topics[0].partitions[0].error_code,
            )
            assert answer.topics[0].partitions[0].error_code == 0, answer


def _produce(server: RawConnection, topic: str, partition: int, records: bytes) -> int:
    rows = [{"index": partition, "records": records}]
    fields = {"acks": -1, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": rows}]}
    return int(server.call(ApiKey.PRODUCE, 9, fields).responses[0].partition_responses[0].error_code)


def _retry(ask: Callable[[], Any], code: Callable[[Any], int]) -> Any:
    """Retries until success or a non-retriable error."""
    deadline = time.monotonic() + 60
    while True:
        answer = ask()
        if code(answer) not in (3, 5, 6, 14, 15, 16) or time.monotonic() > deadline:
            return answer
        time.sleep(0.02)


def _await_leaders(server: RawConnection) -> None:
    for topic in TOPICS:
        asked = [{"partition_index": p, "timestamp": -1, "current_leader_epoch": -1} for p in range(PARTITIONS)]
        fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": asked}]}
        _retry(
            lambda: server.call(ApiKey.LIST_OFFSETS, 5, fields),  # noqa: B023
            lambda each: max(row.error_code for row in each.topics[0].partitions),
        )


def _await_coordinator(server: RawConnection, group: str) -> None:
    fields = {"key": group, "key_type": 0}
    found = _retry(lambda: server.call(ApiKey.FIND_COORDINATOR, 3, fields), lambda each: each.error_code)
    assert found.error_code == 0, found


def held(port: int, life: Life) -> dict[str, Any]:
    """The whole state of a server: topics and ids, settings, offsets, every record, epochs, producers, groups."""
    seen: dict[str, Any] = {}
    with RawConnection(port) as server:
        _await_leaders(server)
        reported = server.call(ApiKey.METADATA, 12, {"topics": None, "allow_auto_topic_creation": False})
        seen["cluster"] = reported.cluster_id
        # Fenceline logs records that were deleted before a group read them, at no fixed time.
        seen["topics"] = {
            row.name: (str(row.topic_id), len(row.partitions)) for row in reported.topics if row.name != LOSSES_TOPIC
        }
        asked = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in TOPICS]
        answer = server.call(ApiKey.DESCRIBE_CONFIGS, 4, {"resources": asked})
        seen["configs"] = {
            row.resource_name: {each.name: each.value for each in row.configs if each.config_source == 1}
            for row in answer.results
        }
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                seen[f"{topic}-{partition}"] = _partition(server, topic, partition)
        for partition in range(PARTITIONS):
            seen[f"epochs of plain-{partition}"] = _epochs(server, partition, life.epoch)
        indexes = list(range(PARTITIONS))
        answer = server.call(
            ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": [{"name": "plain", "partition_indexes": indexes}]}
        )
        seen["producers"] = sorted(plain(answer)["topics"][0]["partitions"], key=repr)
        for group in GROUPS:
            _await_coordinator(server, group)
            fields = {"groups": [{"group_id": group, "topics": None}], "require_stable": True}
            found = _retry(
                lambda: server.call(ApiKey.OFFSET_FETCH, 8, fields),  # noqa: B023
                lambda each: each.groups[0].error_code,
            )
            rows = [
                (topic.name, row.partition_index, row.committed_offset, row.metadata)
                for topic in found.groups[0].topics
                for row in topic.partitions
            ]
            seen[group] = (int(found.groups[0].error_code), sorted(rows))
    return seen


def _partition(server: RawConnection, topic: str, partition: int) -> Any:
    bounds = []
    for timestamp in (-2, -1):
        asked = [{"partition_index": partition, "timestamp": timestamp, "current_leader_epoch": -1}]
        answer = server.call(
            ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": asked}]}
        )
        bounds.append(answer.topics[0].partitions[0].offset)
    start, end = bounds
    batches = []
    while start < end:
        asked = [{"partition": partition, "fetch_offset": start, "partition_max_bytes": 1 << 20}]
        topics = [{"topic": topic, "partitions": asked}]
        answer = server.call(
            ApiKey.FETCH, 12, {"replica_id": -1, "min_bytes": 1, "max_bytes": 1 << 25, "topics": topics}
        )
        row = answer.responses[0].partitions[0]
        assert row.error_code == 0, row
        for header, records in decode_all(row.records, allow_partial_tail=True):
            if header.next_offset > start:
                batches.append((header, records))
                start = header.next_offset
    return bounds, batches


def _latest(server: RawConnection, topic: str, partition: int) -> Any:
    asked = [{"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}]
    fields = {"replica_id": -1, "topics": [{"name": topic, "partitions": asked}]}
    return server.call(ApiKey.LIST_OFFSETS, 5, fields).topics[0].partitions[0]


def _epochs(server: RawConnection, partition: int, up_to: int) -> list[Any]:
    """Each epoch's end, and whether a diverging reader is answered so (`epochs.md E8-E13`)."""
    end = _latest(server, "plain", partition).offset
    found: list[Any] = []
    for epoch in range(up_to + 1):
        asked = [{"partition": partition, "current_leader_epoch": -1, "leader_epoch": epoch}]
        fields: dict[str, Any] = {"replica_id": -1, "topics": [{"topic": "plain", "partitions": asked}]}
        row = server.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, fields).topics[0].partitions[0]
        found.append((epoch, int(row.error_code), row.leader_epoch, row.end_offset))
        for offset in sorted({0, 7, end // 3, end // 2, end - 1, end, end + 1, row.end_offset, row.end_offset + 1}):
            wanted = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1}
            topics = [{"topic": "plain", "partitions": [wanted | {"last_fetched_epoch": epoch}]}]
            fields = {"replica_id": -1, "min_bytes": 0, "max_bytes": 1, "topics": topics}
            answer = server.call(ApiKey.FETCH, 12, fields).responses[0].partitions[0]
            found.append((epoch, offset, int(answer.error_code), plain(answer.diverging_epoch)))
    return found


def _compare(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert after[name] == value, name


def _goes_on(side: ApacheKafka | EmbeddedNode, life: Life, before: dict[str, Any]) -> dict[str, Any]:
    """One side takes over the other's state and writes more; returns its state afterwards."""
    side.start()
    _compare(before, held(side.port, life))
    life.write(side.port)
    return held(side.port, life)


def _clean_mark(root: Path) -> bool:
    return (root / "data" / ".kafka_cleanshutdown").exists()


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[ApacheKafka, EmbeddedNode]]:
    """Apache Kafka and Fenceline on one directory; neither runs yet."""
    kafka = small_kafka(data_dir=tmp_path, overrides=SAME_SETTINGS)
    node = EmbeddedNode(data_dir=tmp_path, overrides=SAME_SETTINGS)
    try:
        yield kafka, node
    finally:
        kafka.close()
        node.close()


def test_directory_alternates_between_kafka_and_fenceline(
    both: tuple[ApacheKafka, EmbeddedNode], tmp_path: Path
) -> None:
    """Kafka, stopped -> Fenceline, stopped -> Kafka, killed -> Fenceline, killed -> Kafka."""
    kafka, node = both
    life = Life()
    kafka.start()
    life.begin(kafka.port)
    life.write(kafka.port)
    before = held(kafka.port, life)
    kafka.stop()
    assert _clean_mark(tmp_path)

    before = _goes_on(node, life, before)
    assert node.stop() == 0
    assert _clean_mark(tmp_path)

    before = _goes_on(kafka, life, before)
    kafka.kill()
    assert not _clean_mark(tmp_path)

    before = _goes_on(node, life, before)
    node.kill()

    _goes_on(kafka, life, before)
    assert life.epoch >= 4


def test_kafka_continues_a_directory_created_by_fenceline(both: tuple[ApacheKafka, EmbeddedNode]) -> None:
    kafka, node = both
    life = Life()
    node.start()
    life.begin(node.port)
    life.write(node.port)
    before = held(node.port, life)
    assert node.stop() == 0

    before = _goes_on(kafka, life, before)
    kafka.stop()

    node.start()
    _compare(before, held(node.port, life))
