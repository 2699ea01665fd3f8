"""Which silent brokers the controller fences: by the reports of their followers, and by what it has heard itself."""

from __future__ import annotations

import pytest

from fenceline.controller.brokers import is_missed_by_followers
from fenceline.controller.requests import FenceSilentBroker, SilentBroker
from fenceline.controller.silence import REPORT_VALID_MS
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord
from tests.controller.helpers import Cluster

SESSION_MS = 9_000
LEADER = 1


@pytest.fixture
def cluster() -> Cluster:
    """Broker 1 leads a partition with the followers 2, 3 and 4, and broker 5 has nothing to do with it. All have sent a
    heartbeat at 0."""
    cluster = Cluster(5, session_timeout_ms=SESSION_MS)
    cluster.create("t", (1, 2, 3, 4))
    cluster.create("other", (2, 1), (5, 2))
    cluster.now_ms = 10_000
    return cluster


def silent(cluster: Cluster, broker: int = LEADER) -> SilentBroker:
    return SilentBroker(broker, cluster.epochs[broker])


def report(cluster: Cluster, *reporters: int, broker: int = LEADER) -> None:
    for each in reporters:
        cluster.controller.state.silence.report(each, (silent(cluster, broker),), cluster.now_ms)


def is_missed(cluster: Cluster, broker: int = LEADER) -> bool:
    return is_missed_by_followers(cluster.controller.state, silent(cluster, broker), cluster.now_ms)


def fence(cluster: Cluster, broker: int = LEADER, *, since_ms: int | None = None) -> bool:
    """Whether the broker was fenced."""
    since_ms = cluster.now_ms if since_ms is None else since_ms
    cluster.ask(FenceSilentBroker(broker, cluster.epochs[broker], since_ms))
    return bool(cluster.records)


def test_broker_that_a_majority_of_its_followers_misses_is_fenced(cluster: Cluster) -> None:
    """C16: others lead first, in a higher epoch, then it is fenced."""
    before = cluster.partition("t")
    report(cluster, 2, 3)
    assert fence(cluster)
    assert cluster.records[-1] == BrokerRegistrationChangeRecord(LEADER, cluster.epochs[LEADER], fenced=1)
    after = cluster.partition("t")
    assert after.leader in (2, 3, 4)
    assert after.leader_epoch == before.leader_epoch + 1
    assert LEADER not in after.isr
    assert cluster.controller.state.silence.fenced_count == 1


@pytest.mark.parametrize("reporters", [(), (2,), (2, 5), (5,)])
def test_minority_and_strangers_fence_no_broker(cluster: Cluster, reporters: tuple[int, ...]) -> None:
    """Broker 5 follows no partition that the leader leads."""
    report(cluster, *reporters)
    assert not fence(cluster)


def test_only_in_sync_followers_count(cluster: Cluster) -> None:
    """Brokers that are fenced are out of every in-sync set: one of the remaining two followers is no majority, both
    are."""
    cluster.heartbeat(4, want_fence=True)
    report(cluster, 2, 4)
    assert not is_missed(cluster)
    report(cluster, 3)
    assert is_missed(cluster)


def test_broker_without_followers_is_not_fenced(cluster: Cluster) -> None:
    """No other broker could lead its partitions; fencing it would only take them away."""
    cluster.create("alone", (5,))
    for each in (2, 3, 4):
        cluster.controller.state.silence.report(each, (silent(cluster, 4),), cluster.now_ms)
    assert not is_missed(cluster, 4), "it leads nothing"


def test_reports_are_forgotten_when_they_are_withdrawn_or_old(cluster: Cluster) -> None:
    report(cluster, 2, 3)
    assert is_missed(cluster)
    cluster.controller.state.silence.report(3, (), cluster.now_ms)
    assert not is_missed(cluster)
    report(cluster, 3)
    assert is_missed(cluster)
    cluster.now_ms += REPORT_VALID_MS
    assert not is_missed(cluster)
    assert cluster.controller.state.silence.reported(cluster.now_ms) == set()


def test_heartbeat_outweighs_all_reports(cluster: Cluster) -> None:
    """It arrived after the controller began to ask (C18)."""
    report(cluster, 2, 3, 4)
    asked_ms = cluster.now_ms
    cluster.now_ms += 1
    cluster.controller.state.sessions.contact(LEADER, cluster.epochs[LEADER], cluster.now_ms)
    assert not fence(cluster, since_ms=asked_ms)
    assert fence(cluster, since_ms=cluster.now_ms)


def test_reports_about_a_previous_incarnation_do_not_count(cluster: Cluster) -> None:
    reported = silent(cluster)
    cluster.register(LEADER, incarnation=2)
    cluster.heartbeat(LEADER)
    for each in (2, 3, 4):
        cluster.controller.state.silence.report(each, (reported,), cluster.now_ms)
    assert not is_missed(cluster)
    cluster.ask(FenceSilentBroker(*reported, cluster.now_ms))
    assert cluster.records == []


def test_fenced_broker_returns_with_its_next_heartbeat(cluster: Cluster) -> None:
    report(cluster, 2, 3, 4)
    assert fence(cluster)
    epoch = cluster.epochs[LEADER]
    assert not cluster.heartbeat(LEADER).is_fenced
    assert cluster.image.brokers[LEADER].epoch == epoch


def test_the_next_fencing_of_one_broker_must_wait_longer_each_time(cluster: Cluster) -> None:
    """A false alarm costs one election; what causes it again and again must not."""
    for times in range(3):
        cluster.create(f"led-{times}", (1, 2, 3))
        report(cluster, 2, 3, 4)
        assert fence(cluster)
        pause_ms = SESSION_MS << times
        cluster.now_ms += pause_ms - 1
        cluster.heartbeat(LEADER)
        cluster.create(f"led-again-{times}", (1, 2, 3))
        report(cluster, 2, 3, 4)
        assert not fence(cluster), times
        cluster.now_ms += 1
    cluster.now_ms += SESSION_MS << 6
    for again in range(2):
        cluster.create(f"led-at-last-{again}", (1, 2, 3))
        report(cluster, 2, 3, 4)
        assert fence(cluster) == (not again), "it begins anew after a long time"
        cluster.now_ms += SESSION_MS - 1
        cluster.heartbeat(LEADER)


def test_new_term_begins_without_reports(cluster: Cluster) -> None:
    report(cluster, 2, 3, 4)
    controller = cluster.controller
    controller.activate(controller.image, controller.next_offset, cluster.now_ms)
    assert not is_missed(cluster)
