"""Planning and reading against brokers of several ages, over real sockets: no Spark session."""

from __future__ import annotations

import pytest

from fenceline.client.producer.producer import Producer
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey
from pyspark_fenceline.errors import DataLossError
from tests.client.scripted_cluster import ScriptedCluster
from tests.spark.driver import QUICK, Driver

OLD = {
    # Kafka 2.0: no epochs in ListOffsets, Fetch and Metadata, OffsetForLeaderEpoch is for replicas.
    ApiKey.FETCH: (4, 8),
    ApiKey.LIST_OFFSETS: (1, 3),
    ApiKey.METADATA: (0, 6),
}
KAFKA_2_1 = {
    ApiKey.FETCH: (4, 10),
    ApiKey.LIST_OFFSETS: (1, 4),
    ApiKey.METADATA: (0, 7),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 2),
}
KAFKA_2_3 = {
    ApiKey.FETCH: (4, 11),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.METADATA: (0, 8),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 3),
}
KAFKA_2_4 = {
    ApiKey.FETCH: (4, 11),
    ApiKey.LIST_OFFSETS: (1, 5),
    ApiKey.METADATA: (0, 9),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (0, 3),
}


def write(cluster: ScriptedCluster, tp: TopicPartition, first: int, count: int) -> None:
    with Producer(cluster.bootstrap, **QUICK, **{"batch.size": 1, "linger.ms": 0}) as producer:
        for number in range(first, first + count):
            producer.send(tp.topic, b"%d" % number, partition=tp.partition)
            producer.flush()


@pytest.mark.parametrize("versions", [{}, KAFKA_2_4, KAFKA_2_3, KAFKA_2_1])
def test_a_truncation_is_detected_and_rewound(versions: dict[ApiKey, tuple[int, int]]) -> None:
    with ScriptedCluster(versions=versions) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        with Driver(cluster.bootstrap) as strict, Driver(cluster.bootstrap, onTruncation="rewind") as lax:
            end, rows = strict.batch()
            assert [value for _, _, value in rows] == [b"%d" % number for number in range(15)]
            cluster.logs[tp].elect(1, cut_to=10)
            write(cluster, tp, 100, 10)
            with pytest.raises(DataLossError) as error:
                strict.batch(end)
            assert [(loss.divergent_offset, loss.offset) for loss in error.value.losses] == [(10, 15)]
            end, rows = lax.batch(end)
            assert rows == [(10 + number, 1, b"%d" % (100 + number)) for number in range(10)]
            assert [one["resume_offset"] for one in end["truncations"]] == [10]


def test_brokers_without_epochs_work_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with ScriptedCluster(versions=OLD) as cluster:
        del cluster.versions[ApiKey.OFFSET_FOR_LEADER_EPOCH]
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        with Driver(cluster.bootstrap) as driver:
            end, rows = driver.batch()
            assert len(rows) == 15
            assert "leader_epoch" in str(end)
            assert caplog.text.count("keep no leader epochs") == 1
            cluster.logs[tp].elect(1, cut_to=10)
            with pytest.raises(DataLossError) as error:
                driver.batch(end)
            assert [(loss.divergent_offset, loss.offset) for loss in error.value.losses] == [(None, 15)]
            # The log has grown again: nothing shows that its records were replaced.
            write(cluster, tp, 100, 10)
            _, rows = driver.batch(end)
            assert [offset for offset, _, _ in rows] == list(range(15, 20))


@pytest.mark.parametrize("format_is_old", [False, True])
def test_brokers_that_deny_epoch_requests_work_with_a_warning(
    format_is_old: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka 2.1 with an authorizer requires ClusterAction; and a topic with an old message format has a leader
    epoch, but none in its records."""
    with ScriptedCluster(versions=KAFKA_2_1) as cluster:
        (tp,) = cluster.add_topic("t")
        write(cluster, tp, 0, 15)
        if format_is_old:
            cluster.logs[tp].end_of_epoch = lambda _: (-1, -1)
        else:
            denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            cluster.fault_rule = lambda key: denied if key is ApiKey.OFFSET_FOR_LEADER_EPOCH else None
        with Driver(cluster.bootstrap) as driver:
            end, rows = driver.batch()
            assert len(rows) == 15
            assert caplog.text.count("keep no leader epochs") == 1
            write(cluster, tp, 15, 5)
            end, rows = driver.batch(end)
            assert [offset for offset, _, _ in rows] == list(range(15, 20))
            cluster.logs[tp].elect(1, cut_to=10)
            with pytest.raises(DataLossError) as error:
                driver.batch(end)
            assert [(loss.divergent_offset, loss.offset) for loss in error.value.losses] == [(None, 20)]
