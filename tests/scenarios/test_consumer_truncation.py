"""Consumers across unclean elections, on a cluster of Fenceline and on one of Apache Kafka.

A consumer that read records which an election discarded detects the truncation: in its fetches, at a seek with an
epoch, and when it starts from its committed offset. If the old leader is a Fenceline broker, its loss receipt is
attached to the error once it has truncated its log. Consumers also follow leader hints in fetch responses, without
requesting metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest

from fenceline.client import LogTruncationError
from fenceline.errors import PeerError
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from tests.scheduling import CLUSTERS
from tests.support.unclean_story import (
    FIRST,
    KEPT,
    LOST,
    SECOND,
    WAIT_S,
    UncleanStory,
    cluster_of,
    read,
    reported,
    said,
)
from tests.support.watched_consumer import Asked, Learned, WatchedConsumer

pytestmark = pytest.mark.timeout(600)

ANEW: Final = 20
KINDS: Final = ["fenceline", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.together(CLUSTERS)])]


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    with cluster_of(request.param, tmp_path_factory.mktemp("unclean")) as running:
        running.wait_ready()
        running.wait_complete()
        yield running


@pytest.fixture
def story(cluster: MixedCluster) -> Iterator[UncleanStory]:
    made = UncleanStory(cluster)
    yield made
    made.mend()


def test_polling_consumers_of_every_policy_detect_the_truncation(story: UncleanStory) -> None:
    kept, lost = story.part()
    met: list[LogTruncationError] = []

    def decide(error: LogTruncationError) -> str:
        met.append(error)
        return "rewind"

    policies: dict[str, dict[str, Any]] = {
        "fail": {},
        "rewind": {"on.truncation": "rewind"},
        "latest": {"on.truncation": "latest"},
        "function": {"on.truncation": decide},
        "earliest": {"auto.offset.reset": "earliest"},
        "near": {"client.rack": "c"},
    }
    consumers = {name: story.consumer(**config) for name, config in policies.items()}
    watched = WatchedConsumer(consumers["fail"], story.tp)
    try:
        for consumer in consumers.values():
            consumer.seek(story.tp, 0)
            assert read(consumer, KEPT + LOST) == [*kept, *lost]
        epoch = consumers["fail"].position_and_epoch(story.tp).leader_epoch
        story.lead_uncleanly(SECOND, instead_of=FIRST)
        anew = story.write(ANEW, "new")

        for name in ("fail", "earliest", "near"):
            error = reported(consumers[name])
            assert said([error]) == [(KEPT + LOST, KEPT)], name
            assert (error.leader_epoch, error.epochs[-1]) == (epoch, epoch)
            assert said([reported(consumers[name])]) == [(KEPT + LOST, KEPT)], "until a seek"
        # Within one round trip after learning the new leader: no fetch goes to it before the error.
        found = story.partition()
        assert found is not None
        assert watched.asked_since(Learned(SECOND, found.leader_epoch), ApiKey.FETCH) == []
        for name in ("fail", "earliest", "near"):
            consumers[name].seek(story.tp, error.divergent_offset, error.divergent_epoch)
        for name in ("fail", "earliest", "near", "rewind", "function"):
            assert read(consumers[name], ANEW) == anew, name
        assert said(met) == [(KEPT + LOST, KEPT)]
        latest = consumers["latest"]
        eventually(lambda: latest.poll(200) or latest.truncations(), "it has met it")
        assert latest.poll(500) == []
        assert latest.position(story.tp) == KEPT + ANEW
        later = story.write(1, "later")
        for name, consumer in consumers.items():
            assert read(consumer, 1) == later, name
            assert said(consumer.truncations()) == [(KEPT + LOST, KEPT)], name
    finally:
        for consumer in consumers.values():
            consumer.close()


def test_starts_and_seeks_with_an_epoch_detect_the_loss_and_its_receipt(story: UncleanStory) -> None:
    group = {"group.id": story.tp.topic}
    with story.consumer(**group) as consumer:
        consumer.commit({story.tp: 0})  # creates the offsets topic while all brokers are up
    story.part()
    with story.consumer(**group) as consumer:
        consumer.seek(story.tp, 0)
        read(consumer, KEPT + LOST)
        consumer.commit()
        epoch = consumer.position_and_epoch(story.tp).leader_epoch
    story.lead_uncleanly(SECOND, instead_of=FIRST)
    anew = story.write(ANEW, "new")

    # The committed offset is beyond the truncation point, and beyond the new log end.
    with story.consumer(**group, **{"auto.offset.reset": "latest"}) as consumer:
        error = reported(consumer)
        assert said([error]) == [(KEPT + LOST, KEPT)]
        assert error.epochs == (epoch,)

    with story.consumer() as consumer:
        for offset in (KEPT + LOST, KEPT + 1):  # beyond the new log end, and within the new log
            consumer.seek(story.tp, offset, epoch)
            assert said([reported(consumer)]) == [(offset, KEPT)]
        consumer.seek(story.tp, KEPT, epoch)
        assert read(consumer, ANEW) == anew, "the log is unchanged up to this offset"
        consumer.seek(story.tp, KEPT + 1)
        assert read(consumer, ANEW - 1) == anew[1:], "a seek without an epoch is not validated"

        story.restart(FIRST)

        def has_receipt() -> bool:
            try:
                return bool(consumer.loss_receipts(error, timeout_ms=5000)) != story.is_kafka
            except PeerError:
                return False

        eventually(has_receipt, "the receipt is there, or there is none", wait_s=WAIT_S)
    with story.consumer(**group, **{"truncation.evidence.timeout.ms": 20_000}) as consumer:
        error = reported(consumer)
    assert said([error]) == [(KEPT + LOST, KEPT)]
    if story.is_kafka:
        assert error.evidence == ()
        return
    (receipt,) = error.evidence
    assert (receipt.start_offset, receipt.end_offset_exclusive) == (KEPT, KEPT + LOST)
    assert (receipt.replica, receipt.records) == (FIRST, LOST)
    assert receipt.id[:12] in str(error)


def test_truncation_by_a_returning_leader_with_an_older_log_is_detected(story: UncleanStory) -> None:
    """It reports an end of the previous epoch that lies past the point where its log diverged (`gaps.md G6`)."""
    kept, _ = story.part()
    story.lead_uncleanly(SECOND, instead_of=FIRST)
    anew = story.write(LOST + ANEW, "new")
    stops = {"beyond what it has": KEPT + LOST + ANEW, "within what it has": KEPT + ANEW, "before": KEPT}
    consumers = {name: story.consumer() for name in stops}
    try:
        for name, end in stops.items():
            consumers[name].seek(story.tp, 0)
            assert read(consumers[name], end) == [*kept, *anew][:end]
        story.lead_uncleanly(FIRST, instead_of=SECOND)
        # Until they know the new leader, polls return records fetched from the old one: a reader cannot detect it yet.
        for name in stops:
            story.await_leader_known(consumers[name])
        for name, end in stops.items():
            if end > KEPT:
                error = reported(consumers[name])
                assert said([error]) == [(end, KEPT)], name
                consumers[name].seek(story.tp, error.divergent_offset, error.divergent_epoch)
        later = story.write(1, "later")
        expected = [f"lost{number}".encode() for number in range(LOST)] + later
        for name, consumer in consumers.items():
            assert read(consumer, LOST + 1) == expected, name
    finally:
        for consumer in consumers.values():
            consumer.close()


def test_kip951_a_consumer_follows_leaders_named_in_fetch_responses(story: UncleanStory) -> None:
    values = story.write(KEPT, "kept")
    with story.consumer(**{"metadata.max.age.ms": 3_600_000}) as consumer:
        watched = WatchedConsumer(consumer, story.tp)
        consumer.seek(story.tp, 0)
        assert read(consumer, KEPT) == values
        watched.leave_alone()
        begun = len(watched.story)
        for leader in (SECOND, FIRST):
            story.move_to(leader)
            more = story.write(ANEW, f"of-{leader}-")
            assert read(consumer, ANEW) == more
            assert watched.read_from()[-1] == leader
        assert Asked(ApiKey.METADATA, None) not in watched.story[begun:]
        assert consumer.truncations() == []


def test_kip392_a_consumer_reads_from_the_replica_in_its_rack(story: UncleanStory) -> None:
    values = story.write(KEPT, "kept")
    with story.consumer(**{"client.rack": "c"}) as consumer:
        watched = WatchedConsumer(consumer, story.tp)
        consumer.seek(story.tp, 0)
        assert read(consumer, KEPT) == values
        eventually(lambda: consumer.poll(100) or watched.read_from()[-1] == SECOND, "it is sent to the replica")
        more = story.write(ANEW, "near")
        asked = len(watched.read_from())
        assert read(consumer, ANEW) == more
        assert SECOND in watched.read_from()[asked - 1 :]

        story.cluster.node(SECOND).kill()
        more = story.write(ANEW, "far")
        assert read(consumer, ANEW) == more
        assert watched.read_from()[-1] == FIRST

        story.restart(SECOND)
        eventually(lambda: consumer.poll(100) or watched.read_from()[-1] == SECOND, "it is sent there again")
        more = story.write(ANEW, "again")
        assert read(consumer, ANEW) == more
        assert consumer.truncations() == []
