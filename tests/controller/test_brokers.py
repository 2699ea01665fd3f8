"""Registration, heartbeats and fencing (controller.md C11-C20, since_4_0.md K21-K25)."""

from __future__ import annotations

from uuid import UUID

import pytest

from fenceline.controller.brokers import BrokerControlState, begin_sessions, state_of
from fenceline.controller.requests import FenceStaleBroker, RegisterBroker, UnregisterBroker
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import SUPPORTED, Levels
from fenceline.metadata.image import Endpoint, LeaderRecoveryState
from fenceline.metadata.node_records import BrokerRegistrationChangeRecord, RegisterBrokerRecord, UnregisterBrokerRecord
from fenceline.metadata.records import PartitionChangeRecord
from tests.controller.helpers import CLUSTER, Cluster


def _code(error: pytest.ExceptionInfo[PeerError]) -> ErrorCode:
    return error.value.code


def test_a_new_broker_is_fenced_and_its_epoch_is_the_offset_of_its_first_record() -> None:
    cluster = Cluster(0)
    offset = cluster.controller.next_offset
    assert cluster.register(1) == offset
    assert state_of(cluster.image.brokers[1]) is BrokerControlState.FENCED


def test_unfenced_only_after_it_has_applied_its_registration() -> None:
    cluster = Cluster(0)
    epoch = cluster.register(1)
    early = cluster.heartbeat(1, offset=epoch - 1)
    assert (early.is_caught_up, early.is_fenced) == (False, True)
    assert cluster.records == []
    late = cluster.heartbeat(1, offset=epoch)
    assert (late.is_caught_up, late.is_fenced) == (True, False)
    assert cluster.records == [BrokerRegistrationChangeRecord(1, epoch, fenced=-1)]


def test_want_fence_keeps_it_fenced() -> None:
    cluster = Cluster(0)
    cluster.register(1)
    assert cluster.heartbeat(1, want_fence=True).is_fenced


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"cluster_id": "other"}, ErrorCode.INCONSISTENT_CLUSTER_ID),
        ({"log_dirs": ()}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": (UUID(int=1),)}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": (UUID(int=777), UUID(int=777))}, ErrorCode.INVALID_REGISTRATION),
        ({"log_dirs": (UUID(int=10_001),)}, ErrorCode.INVALID_REGISTRATION),
        ({"is_migrating_zk_broker": True}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        ({"features": {**SUPPORTED, "metadata.version": Levels(7, 29)}}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": {"metadata.version": Levels(7, 30)}}, ErrorCode.UNSUPPORTED_VERSION),
        ({"features": {}}, ErrorCode.INVALID_REGISTRATION),
        *(
            (change, ErrorCode.INVALID_REQUEST)
            for change in (
                {"broker_id": -1},
                {"endpoints": (Endpoint("PLAINTEXT", "h", 1, 4),)},
                {"endpoints": (Endpoint("PLAINTEXT", "h", 1, -1),)},
                {"features": {**SUPPORTED, "other": Levels(2, 1)}},
                {"features": {**SUPPORTED, "other": Levels(-1, 1)}},
            )
        ),
    ],
)
def test_rejected_registrations(change: dict[str, object], code: ErrorCode) -> None:
    """C11; C4: Kafka fails on values that no record may hold, and accepts a negative id."""
    cluster = Cluster(1)
    good: dict[str, object] = {
        "broker_id": 2,
        "cluster_id": CLUSTER,
        "incarnation_id": UUID(int=5),
        "endpoints": (Endpoint("PLAINTEXT", "h", 1, 0),),
        "features": SUPPORTED,
        "log_dirs": (UUID(int=777),),
    }
    with pytest.raises(PeerError) as error:
        cluster.ask(RegisterBroker(**{**good, **change}))  # type: ignore[arg-type]
    assert _code(error) is code
    cluster.ask(RegisterBroker(**good))  # type: ignore[arg-type]


def test_another_incarnation_waits_until_the_session_ends() -> None:
    cluster = Cluster(1)
    with pytest.raises(PeerError) as error:
        cluster.register(1, incarnation=2)
    assert _code(error) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    cluster.now_ms += 9000
    cluster.register(1, incarnation=2)


def test_the_broker_of_this_process_does_not_wait_at_its_start() -> None:
    cluster = Cluster(2)
    begin_sessions(cluster.controller.state, cluster.now_ms, dead=frozenset({1}))
    cluster.register(1, incarnation=2)
    with pytest.raises(PeerError):
        cluster.register(2, incarnation=2)


def test_the_same_incarnation_keeps_epoch_and_flags() -> None:
    """C12."""
    cluster = Cluster(1)
    epoch = cluster.epochs[1]
    assert cluster.register(1) == epoch
    assert not cluster.image.brokers[1].fenced


@pytest.mark.parametrize("epoch", [-1, 99_999])
def test_another_epoch_is_stale(epoch: int) -> None:
    cluster = Cluster(1)
    with pytest.raises(PeerError) as error:
        cluster.heartbeat(1, epoch=epoch)
    assert _code(error) is ErrorCode.STALE_BROKER_EPOCH


def test_a_silent_broker_is_fenced_after_the_session_timeout_one_at_a_time() -> None:
    """C17."""
    cluster = Cluster(3)
    cluster.create("t", (2, 1), (3, 1))
    cluster.now_ms = 8999
    cluster.heartbeat(1)
    cluster.ask(FenceStaleBroker())
    assert cluster.records == []
    cluster.now_ms = 9000
    cluster.ask(FenceStaleBroker())
    assert cluster.records[-1] == BrokerRegistrationChangeRecord(2, cluster.epochs[2], fenced=1)
    assert cluster.partition("t", 0).leader == 1
    assert cluster.partition("t", 1).leader == 3
    cluster.ask(FenceStaleBroker())
    assert cluster.partition("t", 1).leader == 1
    cluster.ask(FenceStaleBroker())
    assert cluster.records == []


def test_a_killed_only_replica_gives_kafkas_records() -> None:
    """K22, record by record."""
    cluster = Cluster(2)
    topic = cluster.create("t", (2,))
    cluster.now_ms = 9000
    cluster.heartbeat(1)
    cluster.ask(FenceStaleBroker())
    assert cluster.records == [
        PartitionChangeRecord(0, topic, isr=(), leader=-1, eligible_leader_replicas=(2,), last_known_elr=(2,)),
        BrokerRegistrationChangeRecord(2, cluster.epochs[2], fenced=1),
    ]
    cluster.register(2, incarnation=2)
    assert cluster.records[0] == PartitionChangeRecord(0, topic, eligible_leader_replicas=())
    assert isinstance(cluster.records[1], RegisterBrokerRecord)
    assert cluster.epochs[2] == cluster.controller.next_offset - 2
    cluster.heartbeat(2)
    assert cluster.records == [
        BrokerRegistrationChangeRecord(2, cluster.epochs[2], fenced=-1),
        PartitionChangeRecord(0, topic, isr=(2,), leader=2, leader_recovery_state=1, last_known_elr=()),
    ]
    assert cluster.partition("t").leader_recovery_state is LeaderRecoveryState.RECOVERING


def test_a_clean_restart_is_a_clean_election() -> None:
    cluster = Cluster(1)
    cluster.create("t", (1,))
    going = cluster.heartbeat(1, want_shut_down=True)
    assert not going.should_shut_down
    assert cluster.records[0] == BrokerRegistrationChangeRecord(1, cluster.epochs[1], in_controlled_shutdown=1)
    assert cluster.partition("t")._replace(directories=()) == (
        (1,),
        (),
        -1,
        1,
        1,
        LeaderRecoveryState.RECOVERED,
        (),
        (1,),
        (1,),
        (),
        (),
    )
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down
    cluster.now_ms += 9000
    cluster.register(1, incarnation=2, previous=cluster.epochs[1])
    cluster.heartbeat(1)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.elr, partition.last_known_elr) == (1, (1,), (), ())
    assert partition.leader_recovery_state is LeaderRecoveryState.RECOVERED
    assert partition.leader_epoch == 2


def test_a_broker_that_leads_nothing_may_stop_at_once() -> None:
    cluster = Cluster(1)
    answer = cluster.heartbeat(1, want_shut_down=True)
    assert (answer.should_shut_down, answer.is_fenced) == (True, True)
    assert cluster.records == [BrokerRegistrationChangeRecord(1, cluster.epochs[1], fenced=1)]


def test_controlled_shutdown_waits_until_the_others_applied_the_change() -> None:
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down
    assert cluster.partition("t").leader == 2
    behind = cluster.heartbeat(1, want_shut_down=True)
    assert not behind.should_shut_down, "broker 2 has not applied the change yet"
    cluster.heartbeat(2)
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down


def test_unregistering_empties_isr_and_elr() -> None:
    cluster = Cluster(2)
    cluster.create("t", (2, 1))
    epoch = cluster.epochs[2]
    cluster.ask(UnregisterBroker(2))
    assert cluster.records[-1] == UnregisterBrokerRecord(2, epoch)
    assert cluster.partition("t").isr == (1,)
    assert 2 not in cluster.image.brokers
    with pytest.raises(PeerError) as error:
        cluster.ask(UnregisterBroker(2))
    assert error.value.message == "Broker ID 2 is not currently registered"


def test_cordoned_directories_are_recorded_once() -> None:
    cluster = Cluster(1)
    cluster.heartbeat(1, cordoned_log_dirs=())
    assert cluster.records == [BrokerRegistrationChangeRecord(1, cluster.epochs[1], cordoned_log_dirs=())]
    cluster.heartbeat(1, cordoned_log_dirs=())
    assert cluster.records == []


def test_offline_directories_take_their_replicas_offline() -> None:
    cluster = Cluster(1)
    first, second = UUID(int=501), UUID(int=502)
    cluster.register(2, log_dirs=(first, second))
    cluster.heartbeat(2)
    cluster.create("t", (2, 1))
    cluster.heartbeat(2, offline_log_dirs=(first,))
    assert cluster.image.brokers[2].log_dirs == (second,)
    assert cluster.partition("t").leader == 2, "its directory was never assigned: it is in none that went offline"


def test_a_registration_does_not_start_a_session() -> None:
    """K24: a heartbeat starts it."""
    cluster = Cluster(0)
    cluster.register(1)
    cluster.register(1, incarnation=2)
    cluster.heartbeat(1, want_fence=True)
    with pytest.raises(PeerError) as error:
        cluster.register(1, incarnation=3)
    assert _code(error) is ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_a_failover_during_a_controlled_shutdown_waits_for_the_others() -> None:
    """G44: Kafka forgets when it began, and lets the broker stop at once."""
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.heartbeat(1, want_shut_down=True)
    begin_sessions(cluster.controller.state, cluster.now_ms)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down, "broker 2 has sent no heartbeat yet"
    cluster.heartbeat(2, offset=0)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down
    cluster.heartbeat(2)
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down


def test_a_broker_in_shutdown_returns_only_as_another_incarnation() -> None:
    """Its registration stays in shutdown until it registers again; as a leader it would not count as alive."""
    cluster = Cluster(2)
    cluster.create("t", (1, 2))
    cluster.heartbeat(1, want_shut_down=True)
    cluster.now_ms = 9000
    cluster.heartbeat(2)
    cluster.ask(FenceStaleBroker())
    assert cluster.image.brokers[1].fenced
    assert cluster.heartbeat(1).is_fenced
    assert cluster.records == []


def test_an_uncommitted_fencing_does_not_extend_the_session() -> None:
    """C2: the fencing is reverted; the broker is fenced all the same, a session later."""
    cluster = Cluster(2)
    image, offset = cluster.image, cluster.controller.next_offset
    cluster.now_ms = 9000
    cluster.heartbeat(1)
    cluster.ask(FenceStaleBroker())
    assert cluster.image.brokers[2].fenced
    cluster.controller.reset(image, offset)
    assert not cluster.image.brokers[2].fenced
    cluster.now_ms = 18_000
    cluster.heartbeat(1)
    cluster.ask(FenceStaleBroker())
    assert cluster.image.brokers[2].fenced


def test_an_unregistered_broker_is_not_eligible() -> None:
    """C19; Kafka lets it become an eligible replica when it is unregistered."""
    cluster = Cluster(2)
    cluster.create("t", (2, 1), configs={"min.insync.replicas": "2"})
    cluster.ask(UnregisterBroker(2))
    assert (cluster.partition("t").isr, cluster.partition("t").elr) == ((1,), ())


def test_below_3_6_a_shrinking_isr_starts_a_leader_epoch() -> None:
    """C27, C40."""
    for version, epoch in ((11, 1), (12, 0)):
        cluster = Cluster(2, features={"metadata.version": version})
        cluster.create("t", (1, 2))
        cluster.heartbeat(2, want_fence=True)
        assert (cluster.partition("t").isr, cluster.partition("t").leader_epoch) == ((1,), epoch)


@pytest.mark.parametrize(("clean", "state"), [(True, 0), (False, 1)])
def test_without_elr_a_crash_of_the_last_in_sync_replica_is_recorded(clean: bool, state: int) -> None:
    """G47: Kafka elects it as if it had lost nothing."""
    cluster = Cluster(2, features={"metadata.version": 30})
    cluster.create("t", (2,))
    cluster.heartbeat(2, want_fence=True)
    assert cluster.partition("t").isr == (2,), "C28"
    cluster.now_ms = 9000
    cluster.register(2, incarnation=2, previous=cluster.epochs[2] if clean else -1)
    cluster.heartbeat(2)
    partition = cluster.partition("t")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (2, (2,), state)


def test_later_changes_do_not_delay_a_controlled_shutdown() -> None:
    """C14; BrokerHeartbeatManagerTest.testControlledShutdownOffsetIsOnlyUpdatedOnce: later heartbeats, and records that
    arrive meanwhile, do not delay it.
    """
    cluster = Cluster(3)
    cluster.create("t", (1, 2))
    cluster.heartbeat(1, want_shut_down=True)
    began = cluster.controller.next_offset - 1
    for name in ("u", "v"):
        cluster.create(name, (2,))
        assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down
    cluster.heartbeat(2, offset=began)
    assert not cluster.heartbeat(1, want_shut_down=True).should_shut_down, "3 is behind"
    cluster.heartbeat(3, offset=began)
    assert cluster.heartbeat(1, want_shut_down=True).should_shut_down
