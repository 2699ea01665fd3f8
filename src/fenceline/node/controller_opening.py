"""What a controller finds when it starts: its settings, its log, and who votes.

Owns the refusals of a start that would continue somebody else's log. Never writes.

Rules: raft.md Q11, Q12, Q38; snapshots.md N1-N10.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.controller.state import ControllerSettings
from fenceline.errors import OperatorError
from fenceline.log.disk import Disk
from fenceline.node.format import controller_endpoint
from fenceline.node.metadata_log import MetadataLog
from fenceline.node.metadata_replay import Replayed
from fenceline.node.quorum_log import QuorumLog
from fenceline.quorum.control_records import KRaftVersionFeature, Voter
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.settings import QuorumSettings
from fenceline.rng import Rng

_KRAFT_LEVELS: Final = KRaftVersionFeature(0, 1)
_STATIC_TOPIC_CONFIGS: Final = ("min.insync.replicas", "unclean.leader.election.enable")
"""Settings of brokers that the controller looks at when it elects leaders."""


def controller_settings(config: NodeConfig, cluster_id: str) -> ControllerSettings:
    """What the controller must know of the node's configuration."""
    static = {name: text for name in _STATIC_TOPIC_CONFIGS if (text := config.text(name)) is not None}
    return ControllerSettings(
        cluster_id=cluster_id,
        default_partition_count=config.get_int("num.partitions"),
        default_replication_factor=config.get_int("default.replication.factor"),
        session_timeout_ms=config.get_int("broker.session.timeout.ms"),
        delete_topics_enabled=config.get_bool("delete.topic.enable"),
        static_configs=static,
        node_id=config.node_id,
        broker_value=config.get,
    )


class OpenedController(NamedTuple):
    """A quorum that has not started yet, on a log that was read."""

    log: MetadataLog
    view: QuorumLog
    quorum: Quorum
    replayed: Replayed


def open_controller(
    config: NodeConfig,
    disk: Disk,
    directory: str,
    *,
    cluster_id: str,
    node_id: int,
    directory_id: UUID,
    now_ms: int,
    rng: Rng,
) -> OpenedController:
    """Open and read the metadata log in `directory` (blocks). Raises OperatorError."""
    log = MetadataLog.open(
        disk,
        directory,
        now_ms=now_ms,
        segment_bytes=config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
    )
    replayed = log.replay()
    local = Voter(node_id, directory_id, (controller_endpoint(config),), _KRAFT_LEVELS)
    voters = replayed.voters or (local,)
    ids = [voter.voter_id for voter in voters]
    if ids != [local.voter_id]:
        raise OperatorError(
            f"The voters of this cluster's metadata quorum are {ids}; this node is {local.voter_id}.",
            "This release runs a quorum of one: use the data directory of that node, or format a new one.",
        )
    if replayed.kraft_version >= 1 and voters[0].voter_directory_id != local.voter_directory_id:
        raise OperatorError(
            f"The metadata log in {directory} was written under another directory id.",
            "It was copied from another directory: use that one, or copy its meta.properties too.",
        )
    view = QuorumLog(log, replayed.voter_history, replayed.kraft_version)
    settings = QuorumSettings(cluster_id, static_voters=voters)
    return OpenedController(log, view, Quorum(local, view, settings, rng), replayed)
