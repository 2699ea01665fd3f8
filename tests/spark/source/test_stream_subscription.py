"""Which partitions a stream reads, and from where. No Spark session, no broker."""

from __future__ import annotations

import pytest

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.errors import DataLossError
from tests.spark.fakes import FakeCluster
from tests.spark.streams import ALL, cluster_with, ends, make, reads

pytestmark = pytest.mark.usefixtures("no_idle_wait")


def test_new_partitions_are_read_from_their_beginning() -> None:
    cluster = cluster_with(5)
    reader = make(cluster)
    end = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.logs[TopicPartition("t", 1)] = type(cluster.log("t"))()
    assert reader.latestOffset(end, ALL) == end
    cluster.log("t", 1).append(3)
    later = reader.latestOffset(end, ALL)
    assert reads(reader, end, later) == {"t-1": (0, 3)}


def test_patterns_include_new_topics_and_exclude_internal_ones() -> None:
    cluster = FakeCluster(ta=1, x=1)
    cluster.create("t__internal", 1)
    cluster.internal.add("t__internal")
    cluster.log("ta").append(1)
    reader = make(cluster, subscribePattern="t.*")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert ends(end) == {"ta-0": 1}
    cluster.create("tb", 1)
    cluster.log("tb").append(2)
    assert ends(reader.latestOffset(end, ALL)) == {"ta-0": 1, "tb-0": 2}


def test_assigned_partitions_only() -> None:
    cluster = cluster_with(1, 2, 3)
    reader = make(cluster, assign='{"t":[0,2]}')
    assert ends(reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": 1, "t-2": 3}


def test_a_topic_that_does_not_exist_is_named() -> None:
    reader = make(FakeCluster(), subscribe="nosuch")
    with pytest.raises(OperatorError, match="nosuch"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_explicit_starting_offsets_must_name_all_existing_partitions() -> None:
    cluster = cluster_with(5, 5)
    for wrong in ('{"t":{"0":1}}', '{"t":{"0":1,"1":1,"2":1}}'):
        reader = make(cluster, startingOffsets=wrong)
        with pytest.raises(OperatorError, match="you must specify all TopicPartitions"):
            reader.latestOffset(reader.initialOffset(), ALL)
    reader = make(cluster, startingOffsets='{"t":{"0":1,"1":9}}')
    with pytest.raises(OperatorError, match="beyond the end"):
        reader.latestOffset(reader.initialOffset(), ALL)
    cluster.log("t").start = 3
    reader = make(cluster, startingOffsets='{"t":{"0":1,"1":0}}')
    with pytest.raises(DataLossError, match="OFFSETS_EXPIRED"):
        reader.latestOffset(reader.initialOffset(), ALL)
    lax = make(cluster, startingOffsets='{"t":{"0":1,"1":9}}', failOnDataLoss="false")
    end = lax.latestOffset(lax.initialOffset(), ALL)
    assert reads(lax, lax.initialOffset(), end) == {"t-0": (3, 5)}


def test_starting_timestamps() -> None:
    cluster = cluster_with(5)
    cluster.log("t").timestamps = {i: i * 10 for i in range(5)}
    reader = make(cluster, startingTimestamp="25")
    assert reads(reader, reader.initialOffset(), reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": (3, 5)}
    reader = make(cluster, startingTimestamp="99")
    with pytest.raises(OperatorError, match="No offset matched"):
        reader.latestOffset(reader.initialOffset(), ALL)
    reader = make(cluster, startingTimestamp="99", startingOffsetsByTimestampStrategy="latest")
    assert ends(reader.latestOffset(reader.initialOffset(), ALL)) == {"t-0": 5}


def expired_topic(cluster: FakeCluster, name: str) -> None:
    """With a log from 800 to 1000."""
    cluster.create(name, 1)
    cluster.log(name).append(1000)
    cluster.log(name).start = 800


@pytest.mark.parametrize("how", ["subscribePattern", "subscribe", "assign"])
def test_an_added_topic_has_no_earlier_losses(how: str) -> None:
    cluster = FakeCluster(ta=1)
    cluster.log("ta").append(1)
    one, both = {
        "subscribe": ("ta", "ta,tb"),
        "subscribePattern": ("t[a]", "t.*"),
        "assign": ('{"ta":[0]}', '{"ta":[0],"tb":[0]}'),
    }[how]
    first = make(cluster, **{how: one})
    end = first.latestOffset(first.initialOffset(), ALL)
    expired_topic(cluster, "tb")
    reader = make(cluster, **{how: both})
    later = reader.latestOffset(end, ALL)
    assert reads(reader, end, later) == {"tb-0": (800, 1000)}
    # A replay reads the same, and records that expire from now on are reported.
    assert reads(make(cluster, **{how: both}), end, later) == {"tb-0": (800, 1000)}
    cluster.log("tb").start = 900
    with pytest.raises(DataLossError, match="offsets 800 to 899 were deleted"):
        make(cluster, **{how: both}).partitions(end, later)


def test_a_partition_assigned_later_has_no_earlier_losses() -> None:
    cluster = cluster_with(5, 1000)
    first = make(cluster, assign='{"t":[0]}')
    end = first.latestOffset(first.initialOffset(), ALL)
    cluster.log("t", 1).start = 800
    reader = make(cluster, assign='{"t":[0,1]}')
    assert reads(reader, end, reader.latestOffset(end, ALL)) == {"t-1": (800, 1000)}


def test_a_partition_added_to_its_topic_reports_expired_records() -> None:
    cluster = cluster_with(5)
    first = make(cluster)
    end = first.latestOffset(first.initialOffset(), ALL)
    cluster.logs[TopicPartition("t", 1)] = type(cluster.log("t"))([0] * 1000, start=800)
    with pytest.raises(DataLossError, match="offsets 0 to 799 were deleted"):
        make(cluster).latestOffset(end, ALL)


def test_records_expired_after_discovery_of_the_topic_are_reported() -> None:
    cluster = FakeCluster(ta=1)
    cluster.log("ta").append(1)
    reader = make(cluster, subscribePattern="t.*", onExpired="continue")
    end = reader.latestOffset(reader.initialOffset(), ALL)
    cluster.create("tb", 1)
    assert reader.latestOffset(end, ALL) == end
    cluster.log("tb").append(1000)
    cluster.log("tb").start = 800
    later = reader.latestOffset(end, ALL)
    assert [(loss["offset"], loss["log_start_offset"]) for loss in later["expired"]] == [(0, 800)]
    assert reads(reader, end, later) == {"tb-0": (800, 1000)}
    # A recreated topic of the same name is a different topic.
    cluster.delete("tb")
    cluster.create("tb", 1)
    cluster.log("tb").append(10)
    later = reader.latestOffset(end, ALL)
    assert reads(reader, end, later) == {"tb-0": (0, 10)}
