"""The client with brokers limited to the versions of Apache Kafka 2.1, 2.3 and 2.4.

The brokers are current ones, which still support these versions. Their ApiVersions are restricted to those of the
release, so every request is sent as it would be there. A scripted cluster provides elections and truncations.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.client.admin.admin import Admin, NewTopic
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core import connection
from fenceline.client.core.connection import Connection
from fenceline.client.core.errors import LogTruncationError, OffsetOutOfRangeError
from fenceline.client.core.leader_epochs import GUESSES
from fenceline.client.core.offsets import CommittedOffset
from fenceline.client.producer.producer import Producer
from fenceline.client.reader.ranges import OffsetRange
from fenceline.client.reader.reader import RangeReader
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.records.build import build_batch
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.client.scripted_cluster import HANG_UP, Log, ScriptedCluster

Unique = Callable[[str], str]
E = TypeVar("E", bound=Exception)
CODECS: Final = ["none", "gzip", "snappy", "lz4", "zstd"]
KAFKA_2_1: Final = {
    ApiKey.PRODUCE: 7,
    ApiKey.FETCH: 10,
    ApiKey.LIST_OFFSETS: 4,
    ApiKey.METADATA: 7,
    ApiKey.OFFSET_COMMIT: 6,
    ApiKey.OFFSET_FETCH: 5,
    ApiKey.FIND_COORDINATOR: 2,
    ApiKey.JOIN_GROUP: 3,
    ApiKey.HEARTBEAT: 2,
    ApiKey.LEAVE_GROUP: 2,
    ApiKey.SYNC_GROUP: 2,
    ApiKey.DESCRIBE_GROUPS: 2,
    ApiKey.LIST_GROUPS: 2,
    ApiKey.API_VERSIONS: 2,
    ApiKey.CREATE_TOPICS: 3,
    ApiKey.DELETE_TOPICS: 3,
    ApiKey.DELETE_RECORDS: 1,
    ApiKey.INIT_PRODUCER_ID: 1,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 2,
    ApiKey.DESCRIBE_CONFIGS: 2,
    ApiKey.ALTER_CONFIGS: 1,
    ApiKey.CREATE_PARTITIONS: 1,
    ApiKey.DELETE_GROUPS: 1,
}
KAFKA_2_3: Final = {
    **KAFKA_2_1,
    ApiKey.FETCH: 11,
    ApiKey.LIST_OFFSETS: 5,
    ApiKey.METADATA: 8,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: 3,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 0,
}
KAFKA_2_4: Final = {
    **KAFKA_2_3,
    ApiKey.PRODUCE: 8,
    ApiKey.METADATA: 9,
    ApiKey.OFFSET_COMMIT: 8,
    ApiKey.OFFSET_FETCH: 6,
    ApiKey.FIND_COORDINATOR: 3,
    ApiKey.JOIN_GROUP: 6,
    ApiKey.HEARTBEAT: 4,
    ApiKey.LEAVE_GROUP: 4,
    ApiKey.SYNC_GROUP: 4,
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.LIST_GROUPS: 3,
    ApiKey.API_VERSIONS: 3,
    ApiKey.CREATE_TOPICS: 5,
    ApiKey.DELETE_TOPICS: 4,
    ApiKey.INIT_PRODUCER_ID: 2,
    ApiKey.DELETE_GROUPS: 2,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
    ApiKey.OFFSET_DELETE: 0,
}
RELEASES: Final = {"2.1": KAFKA_2_1, "2.3": KAFKA_2_3, "2.4": KAFKA_2_4}


@pytest.fixture(params=RELEASES, autouse=True)
def release(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every connection sees the API versions of that release, and no other version is requested."""
    newest = RELEASES[request.param]
    learn, choose, spoken = connection._fetch_api_versions, Connection.version_for, dict[ApiKey, int]()

    async def learn_less(made: Connection, config: Any) -> None:
        await learn(made, config)
        made.versions = {
            key: (low, min(high, newest[ApiKey(key)])) for key, (low, high) in made.versions.items() if key in newest
        }
        assert all(low <= high for low, high in made.versions.values()), "the broker no longer supports these versions"

    def note(made: Connection, key: ApiKey) -> int:
        spoken[key] = max(spoken.get(key, 0), version := choose(made, key))
        return version

    monkeypatch.setattr(connection, "_fetch_api_versions", learn_less)
    monkeypatch.setattr(Connection, "version_for", note)
    yield request.param
    assert spoken, "no request was observed"
    assert all(version <= newest[key] for key, version in spoken.items()), spoken


@pytest.fixture
def admin(bootstrap: str, release: str) -> Iterator[Admin]:
    with Admin(bootstrap) as client:
        yield client


@pytest.fixture
def tp(admin: Admin, unique: Unique) -> Iterator[TopicPartition]:
    """The only partition of a new topic."""
    topic = unique("older")
    admin.create_topics([NewTopic(topic, 1, 1)])
    yield TopicPartition(topic, 0)
    admin.delete_topics([topic])


def fill(bootstrap: str, tp: TopicPartition, count: int, **config: Any) -> list[bytes]:
    values = [b"%d" % number for number in range(count)]
    with Producer(bootstrap, **config) as producer:
        for delivery in [producer.send(tp.topic, value, b"k", partition=tp.partition) for value in values]:
            delivery.result(60)
    return values


def read(consumer: Consumer, count: int) -> list[bytes | None]:
    """Reads at least that many."""
    found: list[bytes | None] = []
    eventually(lambda: found.extend(r.value for r in consumer.poll(100)) or len(found) >= count, f"{count} records")
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_records_are_produced_and_consumed(bootstrap: str, tp: TopicPartition, codec: str) -> None:
    values = fill(bootstrap, tp, 50, **{"compression.type": codec})
    with Consumer(bootstrap, **{"auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([tp])
        assert read(consumer, 50) == values
        consumer.seek(tp, 10, 0)
        rows: list[bytes] = []
        eventually(lambda: rows.extend(consumer.poll_arrow(100).column("value").to_pylist()) or len(rows) >= 40)
        assert rows == values[10:]


def test_group_resumes_from_its_committed_offset(
    bootstrap: str, tp: TopicPartition, admin: Admin, unique: Unique
) -> None:
    values, group = fill(bootstrap, tp, 20), unique("older-group")
    config = {"group.id": group, "auto.offset.reset": "earliest", "max.poll.records": 8}
    with Consumer(bootstrap, **config) as consumer:
        consumer.subscribe([tp.topic])
        assert read(consumer, 1) == values[:8]
        consumer.commit()
        assert consumer.committed([tp]) == {tp: CommittedOffset(8, 0)}
        assert [len(each.assignment) for each in admin.describe_groups([group])[group].members] == [1]
    assert admin.list_group_offsets(group) == {tp: CommittedOffset(8, 0)}
    with Consumer(bootstrap, **config) as consumer:
        consumer.subscribe([tp.topic])
        assert read(consumer, 12) == values[8:]
    assert group in [each.group_id for each in admin.list_groups()]
    eventually(lambda: admin.delete_groups([group]) is None, "it is empty, and goes")
    assert group not in [each.group_id for each in admin.list_groups()]


def test_range_is_read_and_a_diverged_log_is_reported(bootstrap: str, tp: TopicPartition) -> None:
    values = fill(bootstrap, tp, 20)
    with RangeReader(bootstrap) as reader:
        found = [record.value for batch in reader.read({tp: OffsetRange(5, 15, 0)}, arrow=False) for record in batch]
        assert found == values[5:15]
        with pytest.raises((LogTruncationError, OffsetOutOfRangeError)):
            list(reader.read({tp: OffsetRange(30, 40, 0)}))


def test_offsets_and_topics(bootstrap: str, tp: TopicPartition, admin: Admin, release: str) -> None:
    fill(bootstrap, tp, 20)
    assert [admin.list_offsets({tp: spec})[tp].offset for spec in ("earliest", "latest")] == [0, 20]
    assert admin.list_offsets({tp: "latest"})[tp].leader_epoch == 0
    assert admin.offsets_for_leader_epoch({tp: 0})[tp].end_offset == 20
    assert admin.delete_records({tp: 7}) == {tp: 7}
    assert admin.list_offsets({tp: "earliest"})[tp].offset == 7
    admin.create_partitions({tp.topic: 3})
    eventually(lambda: len(admin.metadata([tp.topic]).topics[tp.topic].partitions) == 3, "it has grown")
    assert admin.describe_cluster().brokers
    resource = ("topic", tp.topic)
    if release == "2.1":
        # It has no IncrementalAlterConfigs.
        with pytest.raises(PeerError) as refused:
            admin.alter_configs({resource: {"retention.ms": "-1"}})
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        assert "INCREMENTAL_ALTER_CONFIGS" in str(refused.value)
        return
    admin.alter_configs({resource: {"retention.ms": "-1"}})
    eventually(
        lambda: admin.describe_configs([resource])[resource]["retention.ms"].value == "-1", "the value is returned"
    )


def test_groups_are_described_reset_and_deleted(
    bootstrap: str, tp: TopicPartition, admin: Admin, unique: Unique
) -> None:
    fill(bootstrap, tp, 20)
    group = unique("older-group")
    admin.alter_group_offsets(group, {tp: CommittedOffset(15, 0)})

    def command(*words: str) -> Any:
        done = CliRunner().invoke(app, ["groups", *words, "--json", "--bootstrap", bootstrap])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    (row,) = command("describe", group)["offsets"]
    assert (row["current_offset"], row["epoch"], row["log_end"], row["lag"], row["mark"]) == (15, 0, 20, 5, None)
    (row,) = command("reset", group, tp.topic, "--to-earliest", "--execute")["offsets"]
    assert (row["current_offset"], row["new_offset"]) == (15, 0)
    assert admin.list_group_offsets(group)[tp].offset == 0
    listed = {each["group"]: each for each in command("list", "--lag")}
    assert (listed[group]["state"], listed[group]["lag"], listed[group]["members"]) == ("Empty", 20, 0)
    named = {state: [each["group"] for each in command("list", "--state", state)] for state in ("Empty", "Stable")}
    assert group in named["Empty"]
    assert group not in named["Stable"]
    assert command("delete", group)["deleted"] == [group]
    assert group not in [each.group_id for each in admin.list_groups()]


def test_a_group_with_members_is_not_reset(bootstrap: str, tp: TopicPartition, unique: Unique) -> None:
    fill(bootstrap, tp, 5)
    group = unique("older-group")
    with Consumer(bootstrap, **{"group.id": group, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([tp.topic])
        read(consumer, 5)
        words = ["groups", "reset", group, tp.topic, "--to-earliest", "--execute", "--bootstrap", bootstrap]
        refused = CliRunner().invoke(app, words)
        assert refused.exit_code == 1
        assert "Stable" in refused.output


# -- Truncation (KIP-320): metadata before 2.4 has no reliable epochs, so leaders are asked for theirs. Leaders
# of 2.1 do not return it either, but reject any other. ------------------------------------------------------------

QUICK: Final = {"retry.backoff.ms": 1, "retry.backoff.max.ms": 5, "reconnect.backoff.ms": 1, "fetch.max.wait.ms": 10}


@pytest.fixture
def scripted() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(nodes=2, versions=dict.fromkeys(KAFKA_2_4, (0, 18))) as cluster:
        yield cluster


@pytest.fixture
def log(scripted: ScriptedCluster) -> Log:
    """Of ten records, of which node 1 is the leader."""
    (made,) = scripted.add_topic("t")
    write(scripted.logs[made], 10)
    return scripted.logs[made]


def write(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(bytes(build_batch([(0, None, b"of epoch %d" % log.leader_epoch, ())])))


T: Final = TopicPartition("t", 0)


@pytest.fixture
def scripted_consumer(scripted: ScriptedCluster, log: Log) -> Iterator[Consumer]:
    config = {**QUICK, "auto.offset.reset": "none", "max.partition.fetch.bytes": 1}
    with Consumer(scripted.bootstrap, **config) as consumer:
        consumer.assign([T])
        yield consumer


def reported(consumer: Consumer, kind: type[E]) -> E:
    found: list[E] = []

    def poll() -> bool:
        try:
            assert consumer.poll(20) == []
        except kind as error:
            found.append(error)
        return bool(found)

    eventually(poll, "the error is raised")
    return found[0]


def questions(cluster: ScriptedCluster) -> list[tuple[int, int]]:
    """The requested epoch and the current leader epoch of each OffsetForLeaderEpoch request."""
    return [
        (asked.leader_epoch, asked.current_leader_epoch)
        for key, _, request in list(cluster.requests)
        if key is ApiKey.OFFSET_FOR_LEADER_EPOCH
        for topic in request.topics
        for asked in topic.partitions
    ]


@pytest.mark.parametrize("leader", [1, 2], ids=["the same leader", "another leader"])
def test_truncation_is_reported_with_the_divergence_offset(
    scripted: ScriptedCluster, log: Log, scripted_consumer: Consumer, leader: int
) -> None:
    scripted_consumer.seek(T, 0)
    assert len(read(scripted_consumer, 10)) == 10
    with scripted.lock:
        log.elect(leader, cut_to=6)
        write(log, 20)
    error = reported(scripted_consumer, LogTruncationError)
    assert (error.truncated_from, error.divergent_offset, error.divergent_epoch) == (10, 6, 0)
    # With the leader's current epoch; and no record of it was fetched without that request.
    assert questions(scripted) == [(0, 1)]
    scripted_consumer.seek(T, error.divergent_offset, error.divergent_epoch)
    assert read(scripted_consumer, 20) == [b"of epoch 1"] * 20


def test_position_is_validated_before_the_first_fetch(
    scripted: ScriptedCluster, log: Log, scripted_consumer: Consumer
) -> None:
    """As from a committed offset: while the consumer was down, the log was truncated and grew longer than before."""
    log.elect(1, cut_to=6)
    write(log, 20)
    scripted_consumer.seek(T, 10, 0)
    assert reported(scripted_consumer, LogTruncationError).divergent_offset == 6
    assert scripted.fetches == []


def test_unknown_epoch_on_a_stale_leader_is_no_truncation(
    scripted: ScriptedCluster, log: Log, scripted_consumer: Consumer
) -> None:
    """`gaps.md G7`: it was deposed without noticing, so it does not know the epoch that was read."""
    scripted_consumer.seek(T, 10, 1)
    before = scripted.seen[ApiKey.METADATA]
    eventually(lambda: scripted_consumer.poll(10) or scripted.seen[ApiKey.METADATA] >= before + 3, "it waits")
    assert questions(scripted) == []
    with scripted.lock:
        log.elect(2)
        write(log, 5)
    assert read(scripted_consumer, 5) == [b"of epoch 1"] * 5
    assert scripted_consumer.truncations() == []
    assert set(questions(scripted)) == {(1, 1)}


@pytest.mark.parametrize("seed", range(5))
def test_elections_without_truncation_report_nothing(
    scripted: ScriptedCluster, log: Log, scripted_consumer: Consumer, seed: int
) -> None:
    """For any leader, any rejections on the way, and any metadata lag."""
    rng = random.Random(seed)
    scripted_consumer.seek(T, 0)
    found: list[bytes | None] = []
    for _ in range(8):
        with scripted.lock:
            log.elect(rng.choice([1, 2]))
            write(log, 5)
            for key in (ApiKey.LIST_OFFSETS, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.FETCH):
                refusals = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH, HANG_UP, None]
                scripted.faults[key] = [rng.choice(refusals) for _ in range(3)]
        found += read(scripted_consumer, rng.randint(1, 5))
    found += read(scripted_consumer, 50 - len(found)) if len(found) < 50 else []
    assert found == log.values()
    assert scripted_consumer.truncations() == []


@pytest.mark.parametrize("behind", [1, 3, 3 * GUESSES])
def test_stale_metadata_epoch_does_not_hide_a_truncation(
    scripted: ScriptedCluster, log: Log, scripted_consumer: Consumer, release: str, behind: int
) -> None:
    """E57: during a reassignment, metadata before 2.4 keeps its old epoch."""
    scripted_consumer.seek(T, 0)
    assert len(read(scripted_consumer, 10)) == 10
    with scripted.lock:
        log.named_epoch = None if release == "2.4" else 0
        for _ in range(behind - 1):
            log.elect(1)
        log.elect(1, cut_to=6)
        write(log, 20)
    assert reported(scripted_consumer, LogTruncationError).divergent_offset == 6
    assert set(questions(scripted)) == {(0, behind)}


@pytest.fixture
def log_behind_metadata(log: Log) -> Log:
    """Created before the consumer, which fetches metadata when it starts."""
    log.named_epoch = 1
    return log


@pytest.mark.parametrize("release", ["2.1"], indirect=True)
def test_leader_unaware_of_its_epoch_is_not_trusted(
    scripted: ScriptedCluster, log_behind_metadata: Log, scripted_consumer: Consumer
) -> None:
    """No record is read in the previous epoch and no truncation reported until the leader knows its epoch."""
    scripted_consumer.seek(T, 2, 0)
    before = scripted.seen[ApiKey.LIST_OFFSETS]
    eventually(lambda: scripted_consumer.poll(10) or scripted.seen[ApiKey.LIST_OFFSETS] >= before + 6, "it is asked")
    assert (questions(scripted), scripted.fetches) == ([], [])
    with scripted.lock:
        log_behind_metadata.elect(1)
        write(log_behind_metadata, 5)
    assert len(read(scripted_consumer, 13)) == 13
    assert set(questions(scripted)) == {(0, 1)}


def test_end_offset_includes_its_epoch(scripted: ScriptedCluster, log: Log) -> None:
    """Spark's source plans with it; once the way is known, it takes one request."""
    with Admin(scripted.bootstrap, **QUICK) as admin:
        for leader in (1, 2, 2):
            log.elect(leader)
            end = admin.list_offsets({T: "latest"})[T]
            assert (end.offset, end.leader_epoch) == (10, log.leader_epoch)
        before = scripted.seen[ApiKey.LIST_OFFSETS]
        assert admin.list_offsets({T: "latest"})[T].leader_epoch == log.leader_epoch
        assert scripted.seen[ApiKey.LIST_OFFSETS] == before + 1


def test_steady_reading_requests_no_metadata(scripted: ScriptedCluster, log: Log, scripted_consumer: Consumer) -> None:
    scripted_consumer.seek(T, 0)
    first = read(scripted_consumer, 1)
    before = scripted.seen[ApiKey.METADATA]
    write(log, 40)
    read(scripted_consumer, 50 - len(first))
    assert len(scripted.fetches) >= 50, "one record per poll"
    # One request may have been in flight.
    assert scripted.seen[ApiKey.METADATA] <= before + 1


@pytest.mark.parametrize("code", [ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED])
def test_unauthorized_client_logs_a_warning_and_continues(
    scripted: ScriptedCluster,
    log: Log,
    scripted_consumer: Consumer,
    release: str,
    code: ErrorCode,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kafka 2.1 requires ClusterAction; without it only records of an older epoch reveal a truncation."""
    scripted.fault_rule = lambda key: code if key is ApiKey.OFFSET_FOR_LEADER_EPOCH else None
    scripted_consumer.seek(T, 2, 0)
    if release != "2.1":
        assert reported(scripted_consumer, PeerError).code is code
        return
    assert len(read(scripted_consumer, 8)) == 8
    with scripted.lock:
        log.elect(2)
        write(log, 5)
    assert len(read(scripted_consumer, 5)) == 5
    assert "requires the ClusterAction permission" in caplog.text
    with scripted.lock:
        # The returning leader never knew epoch 1 and has more records of epoch 0.
        log.batches, log.leader, log.leader_epoch = log.batches[:10], 1, 0
        write(log, 10)
        log.epochs = [(0, 0)]
        log.elect(1)
    assert reported(scripted_consumer, LogTruncationError).divergent_offset == -1
