"""Configs, feature levels and producer ids (controller.md C36, C38, C41; since_4_0.md K20, K26)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import (
    AllocateProducerIds,
    AlterConfigs,
    ConfigChange,
    ConfigOperation,
    FeatureUpdate,
    IncrementalAlterConfigs,
    RegisterController,
    RequestOutcome,
    UpdateFeatures,
    UpgradeType,
    WriteBootstrapRecords,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.features import SUPPORTED, Levels, fresh_levels
from fenceline.metadata.image import ConfigResource, ConfigResourceType, Endpoint
from fenceline.metadata.records import (
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    ProducerIdsRecord,
)
from tests.controller.helpers import Cluster

T, B = ConfigResourceType.TOPIC, ConfigResourceType.BROKER
SET, DELETE, APPEND, SUBTRACT = ConfigOperation
TOPIC = ConfigResource(T, "t")


def _change(
    cluster: Cluster, resource: ConfigResource, *changes: tuple[str, ConfigOperation, str | None]
) -> RequestOutcome:
    request = IncrementalAlterConfigs(((resource, tuple(ConfigChange(*change) for change in changes)),))
    outcome: RequestOutcome = cluster.ask(request).resources[0].outcome
    return outcome


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(1)
    made.create("t", (1,))
    return made


def test_set_append_subtract_delete(cluster: Cluster) -> None:
    assert not _change(cluster, TOPIC, ("retention.ms", SET, "5"), ("cleanup.policy", APPEND, "compact")).failed
    assert dict(cluster.image.config(T, "t")) == {"retention.ms": "5", "cleanup.policy": "delete,compact"}
    _change(cluster, TOPIC, ("cleanup.policy", SUBTRACT, "delete"), ("retention.ms", DELETE, None))
    assert dict(cluster.image.config(T, "t")) == {"cleanup.policy": "compact"}


def test_an_unchanged_topic_config_writes_no_record_but_a_broker_config_does(cluster: Cluster) -> None:
    _change(cluster, TOPIC, ("retention.ms", SET, "5"))
    _change(cluster, TOPIC, ("retention.ms", SET, "5"))
    assert cluster.records == []
    for _ in range(2):
        _change(cluster, ConfigResource(B, "1"), ("log.retention.ms", SET, "5"))
        assert cluster.records == [ConfigRecord(B, "1", "log.retention.ms", "5")]


def test_the_legacy_request_replaces_everything(cluster: Cluster) -> None:
    _change(cluster, TOPIC, ("retention.ms", SET, "5"), ("segment.ms", SET, "9"))
    cluster.ask(AlterConfigs(((TOPIC, (("segment.ms", "10"),)),)))
    assert dict(cluster.image.config(T, "t")) == {"segment.ms": "10"}
    cluster.ask(AlterConfigs(((TOPIC, ()),)))
    assert TOPIC not in cluster.image.configs


def test_one_bad_resource_does_not_affect_the_others(cluster: Cluster) -> None:
    bad = (ConfigResource(T, "none"), (ConfigChange("retention.ms", SET, "1"),))
    good = (TOPIC, (ConfigChange("retention.ms", SET, "1"),))
    answer = cluster.ask(IncrementalAlterConfigs((bad, good)))
    assert [each.outcome.code for each in answer.resources] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NONE]
    assert len(cluster.records) == 1


def test_validate_only_writes_nothing(cluster: Cluster) -> None:
    change = (TOPIC, (ConfigChange("retention.ms", SET, "1"),))
    assert not cluster.ask(IncrementalAlterConfigs((change,), validate_only=True)).resources[0].outcome.failed
    assert cluster.records == []


def test_each_change_of_min_isr_clears_the_eligible_replicas(cluster: Cluster) -> None:
    _change(cluster, TOPIC, ("min.insync.replicas", SET, "2"))
    assert cluster.records[-1] == ClearElrRecord("t")
    _change(cluster, ConfigResource(B, ""), ("min.insync.replicas", SET, "2"))
    assert cluster.records[-1] == ClearElrRecord("")


def test_clearing_empties_elr_and_moves_only_the_partition_epoch(cluster: Cluster) -> None:
    cluster.heartbeat(1, want_shut_down=True)
    assert cluster.partition("t").elr == (1,)
    before = cluster.partition("t")
    _change(cluster, TOPIC, ("min.insync.replicas", SET, "2"))
    after = cluster.partition("t")
    assert after == before._replace(elr=(), last_known_elr=(), partition_epoch=before.partition_epoch + 1)


@pytest.mark.parametrize(
    ("resource", "change"),
    [
        (ConfigResource(B, "1"), ("min.insync.replicas", SET, "2")),
        (ConfigResource(B, "1"), ("min.insync.replicas", DELETE, None)),
        (ConfigResource(B, ""), ("min.insync.replicas", DELETE, None)),
        (TOPIC, ("retention.ms", APPEND, "2")),
        (TOPIC, ("nope", SET, "2")),
        (TOPIC, ("retention.ms", SET, "x")),
    ],
)
def test_rejected_configs(
    cluster: Cluster, resource: ConfigResource, change: tuple[str, ConfigOperation, str | None]
) -> None:
    assert _change(cluster, resource, change).code is ErrorCode.INVALID_CONFIG
    assert cluster.records == []


def test_a_new_cluster_has_the_levels_of_4_3_and_their_min_isr() -> None:
    cluster = Cluster(0)
    assert (
        dict(cluster.image.features)
        == fresh_levels()
        == {
            "metadata.version": 30,
            "eligible.leader.replicas.version": 1,
            "group.version": 1,
            "share.version": 1,
            "streams.version": 1,
            "transaction.version": 2,
        }
    )
    assert dict(cluster.image.config(B, "")) == {"min.insync.replicas": "1"}


def _update(cluster: Cluster, *updates: tuple[str, int, int]) -> RequestOutcome:
    request = UpdateFeatures(tuple(FeatureUpdate(name, level, UpgradeType(kind)) for name, level, kind in updates))
    outcome: RequestOutcome = cluster.ask(request).outcome
    return outcome


def test_features_can_be_lowered_and_raised_again(cluster: Cluster) -> None:
    assert not _update(cluster, ("group.version", 0, 2)).failed
    assert cluster.records == [FeatureLevelRecord("group.version", 0)]
    assert "group.version" not in cluster.image.features
    assert not _update(cluster, ("group.version", 1, 1)).failed
    assert not _update(cluster, ("group.version", 1, 1)).failed
    assert cluster.records == []


def test_enabling_elr_again_moves_min_isr_to_the_cluster(cluster: Cluster) -> None:
    _update(cluster, ("eligible.leader.replicas.version", 0, 2))
    _change(cluster, ConfigResource(B, ""), ("min.insync.replicas", DELETE, None))
    _change(cluster, ConfigResource(B, "1"), ("min.insync.replicas", SET, "2"))
    _update(cluster, ("eligible.leader.replicas.version", 1, 1))
    assert cluster.records[1:] == [
        ConfigRecord(B, "", "min.insync.replicas", "1"),
        ConfigRecord(B, "1", "min.insync.replicas", None),
    ]


def test_one_bad_level_fails_all(cluster: Cluster) -> None:
    outcome = _update(cluster, ("group.version", 0, 2), ("nope", 1, 1))
    assert outcome.code is ErrorCode.INVALID_UPDATE_VERSION
    assert cluster.records == []


def test_producer_ids_come_in_blocks_and_never_twice(cluster: Cluster) -> None:
    epoch = cluster.epochs[1]
    firsts = [cluster.ask(AllocateProducerIds(1, epoch)).first for _ in range(3)]
    assert firsts == [0, 1000, 2000]
    assert cluster.records == [ProducerIdsRecord(1, epoch, 3000)]
    with pytest.raises(PeerError) as error:
        cluster.ask(AllocateProducerIds(1, epoch + 1))
    assert error.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_producer_ids_are_exhausted(cluster: Cluster) -> None:
    """C41; ProducerIdControlManagerTest.testMaxValue: the last block is assigned, and no id is assigned again."""
    epoch = cluster.epochs[1]
    last = 2**63 - 1 - 1000
    cluster.controller.replay([ProducerIdsRecord(1, epoch, last)], cluster.controller.next_offset, 1)
    assert cluster.ask(AllocateProducerIds(1, epoch)).first == last
    with pytest.raises(PeerError, match="Exhausted") as error:
        cluster.ask(AllocateProducerIds(1, epoch))
    assert error.value.code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_feature_waits_for_every_voter_to_register(cluster: Cluster) -> None:
    """K27; removing a feature waits for no voter."""
    _update(cluster, ("group.version", 0, 2))
    state = cluster.controller.state
    state.voter_ids = frozenset((state.settings.node_id, 8, 9))
    outcome = _update(cluster, ("group.version", 1, 1))
    assert outcome.message is not None
    assert outcome.message.endswith("controller 8 has not registered, and may not support this feature")
    assert cluster.records == []
    for controller in (8, 9):
        cluster.ask(RegisterController(controller, UUID(int=controller), (), SUPPORTED))
    assert not _update(cluster, ("group.version", 1, 1)).failed


def test_a_level_unsupported_by_a_registered_controller(cluster: Cluster) -> None:
    """C38."""
    _update(cluster, ("group.version", 0, 2))
    cluster.ask(RegisterController(8, UUID(int=8), (), {"metadata.version": Levels(7, 30)}))
    outcome = _update(cluster, ("group.version", 1, 1))
    assert outcome.message is not None
    assert outcome.message.endswith("Controller 8 does not support this feature.")


def test_eligible_leader_replicas_need_their_records() -> None:
    """K1: allowed from metadata.version 4.0-IV1 on, also when both are raised by one request."""
    cluster = Cluster(1, features={"metadata.version": 22})
    elr = "eligible.leader.replicas.version"
    assert _update(cluster, (elr, 1, 1)).code is ErrorCode.INVALID_UPDATE_VERSION
    assert not _update(cluster, ("metadata.version", 23, 1), (elr, 1, 1)).failed


def test_kraft_version_is_requested_from_the_quorum(cluster: Cluster) -> None:
    """K15: it is no record of this log."""
    controller = cluster.controller
    wanted = FeatureUpdate("kraft.version", 1, UpgradeType.UPGRADE)
    assert cluster.ask(UpdateFeatures((wanted,))).outcome.code is ErrorCode.INVALID_UPDATE_VERSION
    controller.state.can_finalize_kraft_version = True
    for validate_only, asked in ((True, None), (False, 1)):
        decision = controller.decide(UpdateFeatures((wanted,), validate_only), 0, cluster.rng)
        assert (decision.kraft_version, list(decision.records)) == (asked, [])
    controller.state.kraft_version = 1
    assert controller.decide(UpdateFeatures((wanted,)), 0, cluster.rng).kraft_version is None


@pytest.mark.parametrize(("version", "is_wrapped"), [(12, False), (13, True)])
def test_a_new_cluster_at_an_old_level_has_no_transactions(version: int, is_wrapped: bool) -> None:
    """C6, C40: one batch in any case."""
    cluster = Cluster(0, features={"metadata.version": version})
    level = FeatureLevelRecord("metadata.version", version)
    wrapped = [BeginTransactionRecord("Bootstrap records"), level, EndTransactionRecord()]
    assert cluster.records == (wrapped if is_wrapped else [level])
    asked = WriteBootstrapRecords((("metadata.version", version),))
    assert cluster.controller.decide(asked, 0, cluster.rng).atomic


@pytest.mark.parametrize(
    ("level", "kind", "message"),
    [
        (6, 2, "only supports versions 7-30"),
        (31, 1, "only supports versions 7-30"),
        (29, 1, "without setting the upgrade type to"),
        (29, 2, "might delete metadata information"),
        (29, 3, "Unsafe metadata downgrade is not supported"),
        (30, 0, "does not support the given upgrade type"),
    ],
)
def test_levels_of_metadata_version(cluster: Cluster, level: int, kind: int, message: str) -> None:
    """C38, C39; K2: 7 to 30; 30 brought new records, so nothing below it is safe."""
    outcome = _update(cluster, ("metadata.version", level, kind))
    assert outcome.code is ErrorCode.INVALID_UPDATE_VERSION
    assert outcome.message is not None
    assert message in outcome.message
    between = Cluster(0, features={"metadata.version": 29})
    assert not _update(between, ("metadata.version", 28, 2)).failed, "no new records in between"


def test_too_many_config_changes_in_one_request(cluster: Cluster) -> None:
    """C3: all of it is one batch."""
    changes = tuple(ConfigChange(f"key-{number}", SET, "1") for number in range(10_001))
    before = cluster.image
    with pytest.raises(PeerError) as error:
        cluster.ask(IncrementalAlterConfigs(((ConfigResource(B, "1"), changes),)))
    assert error.value.code is ErrorCode.POLICY_VIOLATION
    assert cluster.image is before
    assert not _change(cluster, ConfigResource(B, "1"), *((each.name, SET, "1") for each in changes[:10_000])).failed


def test_controllers_register_from_3_7_on() -> None:
    """C40."""
    cluster = Cluster(0, features={"metadata.version": 14})
    with pytest.raises(PeerError) as error:
        cluster.ask(RegisterController(8, UUID(int=8), (), SUPPORTED))
    assert error.value.code is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    "change",
    [
        {"controller_id": -1},
        {"endpoints": (Endpoint("CONTROLLER", "h", 1, 9),)},
        {"features": {"metadata.version": Levels(30, 7)}},
    ],
)
def test_a_controller_registration_must_fit_its_record(change: dict[str, Any]) -> None:
    """C4: Kafka's controller fails over it."""
    cluster = Cluster(0)
    good = {"controller_id": 8, "incarnation_id": UUID(int=8), "endpoints": (), "features": SUPPORTED}
    with pytest.raises(PeerError) as error:
        cluster.ask(RegisterController(**{**good, **change}))
    assert error.value.code is ErrorCode.INVALID_REQUEST
    assert not cluster.image.controllers


def test_dynamic_configs_of_this_node_apply_to_topics() -> None:
    """C37: topic, this node's, the cluster's."""
    cluster = Cluster(1, features={"metadata.version": 30}, node_id=1)
    cluster.create("t", (1,))
    for resource, value in ((ConfigResource(B, ""), "false"), (ConfigResource(B, "1"), "true")):
        _change(cluster, resource, ("unclean.leader.election.enable", SET, value))
    assert cluster.controller.state.unclean_election("t")
    _change(cluster, ConfigResource(T, "t"), ("unclean.leader.election.enable", SET, "false"))
    assert not cluster.controller.state.unclean_election("t")
