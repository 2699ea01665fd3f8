"""Partitions replicated by Fenceline and Kafka 4.3.1 together: under any leader, all replicas have the same bytes."""

from __future__ import annotations

import json

import pytest

from fenceline.cli.metadata_files import MetadataFiles
from fenceline.ids import LOSSES_TOPIC
from fenceline.metadata.image import LeaderRecoveryState
from tests.scheduling import CLUSTERS
from tests.support.mixed_replication import (
    BEHIND,
    CODECS,
    DECIDED,
    ELECTED,
    MOVED,
    MOVES,
    SPARSE,
    TORN,
    UNDECIDED,
    Lived,
    Story,
)
from tests.support.partition_files import batches, epochs, evidence, log_bytes, values
from tests.support.same_metadata import image_before

pytestmark = [pytest.mark.kafka, pytest.mark.together(CLUSTERS), pytest.mark.timeout(900)]
EVERYWHERE = [(MOVED, index) for index in range(len(CODECS))] + [(DECIDED, 0), (SPARSE, 0)]
"""What all three brokers have."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (("broker,controller", "broker", "kafka:broker"), 2, 3),
            id="2+1",
        ),
        pytest.param(
            (("broker", "kafka:broker,controller", "kafka:broker"), 1, 3),
            id="1+2",
        ),
    ],
)
def lived(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    """Fenceline controls the first cluster, Kafka the second."""
    kinds, ours, theirs = request.param
    return Story(tmp_path_factory.mktemp("mixed"), kinds, ours=ours, theirs=theirs).live()


def test_leaders_move_both_ways(lived: Lived) -> None:
    assert {("kafka", "fenceline"), ("fenceline", "kafka")} <= lived.handed
    for index in range(len(CODECS)):
        assert lived.led[index] == set(lived.directories)
        assert len(set(lived.epochs[index])) > MOVES // 2
        assert lived.epochs[index] == sorted(lived.epochs[index])


def test_no_acknowledged_record_is_lost_or_duplicated(lived: Lived) -> None:
    assert not lived.doubled
    for index, acknowledged in enumerate(lived.acknowledged):
        found = values(lived.directories[lived.ours], MOVED, index)
        assert len(acknowledged) > 10 * MOVES
        assert {offset: found.get(offset) for offset in acknowledged} == acknowledged
        assert len(set(found.values())) == len(found) == len(acknowledged) + 1


@pytest.mark.parametrize(("topic", "index"), EVERYWHERE)
def test_replicas_are_equal_byte_for_byte(lived: Lived, topic: str, index: int) -> None:
    whole = log_bytes(lived.directories[lived.theirs], topic, index)
    assert whole
    for directory in lived.directories.values():
        assert log_bytes(directory, topic, index) == whole
    assert len({tuple(epochs(directory, topic, index)) for directory in lived.directories.values()}) == 1
    assert epochs(lived.directories[lived.ours], topic, index)


def test_batches_of_every_kind_are_replicated(lived: Lived) -> None:
    """Compressed by each codec, of idempotent producers, transactional, and markers."""
    directory = lived.directories[lived.ours]
    headers = [header for topic, index in EVERYWHERE for header, _ in batches(directory, topic, index)]
    assert {header.codec.name.lower() for header in headers} >= {"none", "lz4", "zstd", "snappy"}
    assert any(header.producer_id >= 0 and not header.is_transactional for header in headers)
    assert any(header.is_transactional and not header.is_control for header in headers)
    assert any(header.is_control for header in headers)


def test_committed_transactions_are_equal_under_any_leader(lived: Lived) -> None:
    assert lived.committed
    assert lived.read_committed == {lived.theirs: lived.committed, lived.ours: lived.committed}


@pytest.mark.parametrize("index", range(2))
@pytest.mark.parametrize("topic", [TORN, ELECTED])
def test_unclean_election_truncates_the_other_broker(lived: Lived, topic: str, index: int) -> None:
    """0: Kafka follows Fenceline's history; 1: Fenceline follows Kafka's, and keeps the truncated records."""
    ours, theirs = lived.directories[lived.ours], lived.directories[lived.theirs]
    assert log_bytes(ours, topic, index) == log_bytes(theirs, topic, index)
    assert epochs(ours, topic, index) == epochs(theirs, topic, index)
    found = [each for each in values(ours, topic, index).values() if each != UNDECIDED]
    assert found == lived.kept[topic, index]
    assert lived.lost[topic, index]
    assert evidence(ours, topic, index).endswith(lived.lost[topic, index]) is (index == 1)


def test_no_unclean_leader_before_the_tool_requests_it(lived: Lived) -> None:
    """`kafka-leader-election --election-type unclean`, under a controller of either kind."""
    assert lived.without_leader == {0: -1, 1: -1}


@pytest.mark.parametrize("topic", [TORN, ELECTED])
def test_receipts_match_the_lost_records(lived: Lived, topic: str) -> None:
    (torn,) = (each for each in lived.receipts if (each["topic"], each["partition"]) == (topic, 1))
    assert (torn["start_offset"], torn["end_offset_exclusive"], torn["records"]) == (50, 150, 100)
    assert torn["bytes"] == len(lived.lost[topic, 1])
    # After kill -9 a replica knows only the high watermark of the last checkpoint.
    assert torn["class"] in ("committed", "maybe_acknowledged")
    assert torn["cause"] == "divergence"
    assert (torn["replica"], torn["leader"]) == (lived.ours, lived.theirs)


def test_receipts_are_delivered_to_a_ledger_led_by_kafka_alone(lived: Lived) -> None:
    """Kafka's files hold each Fenceline receipt from before and after the topic moved once."""
    assert lived.kinds[lived.ledger_led_by] == "kafka"
    whole = log_bytes(lived.directories[lived.theirs], LOSSES_TOPIC)
    assert whole
    assert not log_bytes(lived.directories[lived.ours], LOSSES_TOPIC)
    ids = {each["id"] for each in map(json.loads, values(lived.directories[lived.theirs], LOSSES_TOPIC, 0).values())}
    assert len(ids) == len(lived.receipts) > 2


def test_no_other_acknowledged_record_is_reported_lost(lived: Lived) -> None:
    """Records that followers truncated during leader changes had not been committed."""
    assert not [each for each in lived.receipts if each["topic"] == MOVED and each["class"] == "committed"]


def test_recovering_leader_aborts_transactions_left_open_by_kafka(lived: Lived) -> None:
    """`recovery.md V38`: by a marker that Kafka replicates, too."""
    directory = lived.directories[lived.ours]
    assert UNDECIDED in values(directory, TORN, 0).values()
    assert any(header.is_control for header, _ in batches(directory, TORN, 0))
    assert lived.read_torn == dict.fromkeys((lived.ours, lived.theirs), lived.kept[TORN, 0])


def test_no_partition_stays_in_recovery(lived: Lived) -> None:
    """`recovery.md V28`, V38: Fenceline leaders report their recovery to a controller of either kind."""
    log_dir = lived.directories[lived.controller]
    image = image_before(log_dir, 1 + max(entry.offset for entry in MetadataFiles.at(log_dir).log_entries())).image
    states = {
        (topic.name, index): partition.leader_recovery_state
        for topic in image.topics_by_name.values()
        for index, partition in enumerate(topic.partitions)
        if lived.ours in partition.replicas  # Kafka's leader reports it only when another replica joins
    }
    assert {(topic, index) for topic in (TORN, ELECTED) for index in range(2)} <= states.keys()
    assert set(states.values()) == {LeaderRecoveryState.RECOVERED}


@pytest.mark.parametrize(("index", "leader_is_ours"), [(0, True), (1, False)])
def test_follower_far_behind_restarts_its_log(lived: Lived, index: int, leader_is_ours: bool) -> None:
    ours, theirs = (log_bytes(lived.directories[each], BEHIND, index) for each in (lived.ours, lived.theirs))
    leaders, followers = (ours, theirs) if leader_is_ours else (theirs, ours)
    assert followers
    assert len(followers) < len(leaders)
    assert leaders.endswith(followers)
    follower = lived.theirs if leader_is_ours else lived.ours
    assert min(values(lived.directories[follower], BEHIND, index)) <= lived.began_at[index]


def test_only_replica_moves_between_fenceline_and_kafka(lived: Lived) -> None:
    at_kafka, at_fenceline, back_at_kafka = lived.migrated
    assert 0 < len(at_kafka) < len(at_fenceline) < len(back_at_kafka)
    assert at_fenceline.startswith(at_kafka)
    assert back_at_kafka.startswith(at_fenceline)
