"""Opening a node's metadata log: its settings, its log, its voters.

Owns the checks that prevent a start from continuing another node's log, and the handling of a log that is damaged, or
whose start exists only in a damaged snapshot: if there are other voters, the log is truncated before the damage, or
reset, and the rest is fetched (`docs/decisions/010`).

Rules: raft.md Q10-Q12, Q38, Q39; snapshots.md N1-N10, N40; since_4_0.md K13, K19; gaps.md G24.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple
from uuid import UUID

from fenceline.config.broker import DISTINCT_RACKS, FENCING_GRACE, SILENCE_TIMEOUT
from fenceline.config.node import NodeConfig
from fenceline.controller.state import ControllerSettings
from fenceline.errors import OperatorError
from fenceline.log.core.disk import Disk
from fenceline.node.metadata import snapshot_files
from fenceline.node.metadata.format import controller_endpoint
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.metadata.replay import Replayed
from fenceline.node.metadata.snapshot_files import SnapshotDamaged
from fenceline.node.quorum.log import QuorumLog
from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.quorum.log_view import NO_PROMISED_END
from fenceline.quorum.quorum import Quorum
from fenceline.quorum.settings import Address, QuorumSettings
from fenceline.rng import Rng

_KRAFT_LEVELS: Final = KRaftVersionFeature(0, 1)
_LEAST_PIECE_BYTES: Final = 1024
"""Minimum for snapshots, so that one arrives whatever `replica.fetch.response.max.bytes` is."""
_STATIC_TOPIC_CONFIGS: Final = ("min.insync.replicas", "unclean.leader.election.enable")
"""Broker settings that the controller uses for elections."""


def controller_settings(config: NodeConfig, cluster_id: str) -> ControllerSettings:
    """The controller's part of the node's configuration."""
    static = {name: text for name in _STATIC_TOPIC_CONFIGS if (text := config.text(name)) is not None}
    return ControllerSettings(
        cluster_id=cluster_id,
        default_partition_count=config.get_int("num.partitions"),
        default_replication_factor=config.get_int("default.replication.factor"),
        session_timeout_ms=config.get_int("broker.session.timeout.ms"),
        leader_imbalance_percentage=config.get_int("leader.imbalance.per.broker.percentage"),
        knows_connections=probes_brokers(config),
        delete_topics_enabled=config.get_bool("delete.topic.enable"),
        static_configs=static,
        node_id=config.node_id,
        broker_value=config.get,
        distinct_racks=config.get_bool(DISTINCT_RACKS),
        token_secret=config.token_secret,
        token_max_lifetime_ms=config.get_int("delegation.token.max.lifetime.ms"),
        token_expiry_ms=config.get_int("delegation.token.expiry.time.ms"),
    )


def probes_brokers(config: NodeConfig) -> bool:
    """Whether this controller fences brokers whose process has ended before their session expires."""
    return config.is_controller and config.can_reach_others and config.get_int(FENCING_GRACE) >= 0


def watches_silence(config: NodeConfig) -> bool:
    """Whether this node takes part in noticing leaders that do not answer."""
    return config.can_reach_others and config.get_int(SILENCE_TIMEOUT) >= 0


def quorum_settings(config: NodeConfig, cluster_id: str, static_voters: tuple[Voter, ...]) -> QuorumSettings:
    """The quorum's part of the node's configuration."""
    number = config.get_int
    silence_ms = number(SILENCE_TIMEOUT)
    return QuorumSettings(
        cluster_id,
        static_voters=static_voters,
        bootstrap_servers=tuple(Address(each.host, each.port) for each in config.quorum_bootstrap_servers),
        election_timeout_ms=max(1, number("controller.quorum.election.timeout.ms")),
        fetch_timeout_ms=max(1, number("controller.quorum.fetch.timeout.ms")),
        election_backoff_max_ms=number("controller.quorum.election.backoff.max.ms"),
        request_timeout_ms=max(1, number("controller.quorum.request.timeout.ms")),
        retry_backoff_ms=number("controller.quorum.retry.backoff.ms"),
        silence_timeout_ms=None if silence_ms < 0 else silence_ms,
        fetch_max_bytes=number("controller.quorum.fetch.max.bytes"),
        fetch_snapshot_max_bytes=number("controller.quorum.fetch.snapshot.max.bytes"),
        snapshot_response_max_bytes=max(_LEAST_PIECE_BYTES, number("replica.fetch.response.max.bytes")),
        auto_join=config.get_bool("controller.quorum.auto.join.enable"),
        flushes="controller" in config.process_roles,
        listener=config.controller_listener_names[0] if config.controller_listener_names else "",
    )


class OpenedController(NamedTuple):
    """A quorum that has not started yet, with its log. `is_alone`: there are no other voters."""

    log: MetadataLog
    view: QuorumLog
    quorum: Quorum
    replayed: Replayed
    is_alone: bool


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
    endpoint: VoterEndpoint | None = None,
) -> OpenedController:
    """Open and read the metadata log in `directory` (blocks). Raises OperatorError.

    `endpoint` is this controller's address with the port that was actually bound; None: as configured.
    """
    endpoints = (endpoint or controller_endpoint(config),) if "controller" in config.process_roles else ()
    local = Voter(node_id, directory_id, endpoints, _KRAFT_LEVELS)
    static = _static_voters(config, local)
    read = partial(_read_log, config, disk, directory, cluster_id, now_ms, local, static)
    try:
        log, replayed = read()
    except SnapshotDamaged as damage:
        # Read again: some disks fail only now and then.
        try:
            log, replayed = read()
        except SnapshotDamaged:
            if not _others_have_it(config, local, static, snapshot_files.voters_of_damaged(disk, damage.path)):
                raise
            MetadataLog.reset(disk, directory, damage, now_ms=now_ms)
            log, replayed = read()
    voters = replayed.voters or static
    # A node that has acknowledged more than it holds does not know whether it is still the only voter.
    is_alone = (
        [voter.voter_id for voter in voters] == [local.voter_id] and bool(endpoints) and log.promised == NO_PROMISED_END
    )
    if is_alone and replayed.kraft_version >= 1 and voters[0].voter_directory_id != local.voter_directory_id:
        raise OperatorError(
            f"The metadata log in {directory} was written with another directory.id.",
            "It was copied from another directory. Use that one, or copy its meta.properties too.",
        )
    _check_directory(directory, replayed, local)
    _check_voters(config, voters, local, is_alone)
    if not is_alone and len(static) <= 1:
        replayed = log.replay_committed()
    view = QuorumLog(log, replayed.voter_history, replayed.kraft_version, replayed.leader_change)
    settings = quorum_settings(config, cluster_id, static)
    return OpenedController(log, view, Quorum(local, view, settings, rng), replayed, is_alone)


def _check_directory(directory: str, replayed: Replayed, local: Voter) -> None:
    """A directory keeps its id forever: the voter with that id is the node that the directory belongs to."""
    for voter in replayed.voters if replayed.kraft_version >= 1 else ():
        if voter.voter_directory_id == local.voter_directory_id and voter.voter_id != local.voter_id:
            raise OperatorError(
                f"The directory {directory} belongs to voter {voter.voter_id}, but this is node {local.voter_id}.",
                "Directories were swapped or copied between nodes, and meta.properties was changed. Restore each node's"
                f" own directory, and set node.id={voter.voter_id} in meta.properties of this one.",
            )


def _read_log(
    config: NodeConfig,
    disk: Disk,
    directory: str,
    cluster_id: str,
    now_ms: int,
    local: Voter,
    static: tuple[Voter, ...],
) -> tuple[MetadataLog, Replayed]:
    """Raises SnapshotDamaged if the start of the log exists only in a damaged snapshot; OperatorError."""
    log = MetadataLog.open(
        disk,
        directory,
        now_ms=now_ms,
        segment_bytes=config.get_int("metadata.log.segment.bytes"),
        segment_ms=config.get_int("metadata.log.segment.ms"),
        votes="controller" in config.process_roles,
        others_have_it=partial(_others_have_it, config, local, static),
        cluster_id=cluster_id,
    )
    try:
        # With one voter the complete log is committed: it is read once, including the image.
        return log, log.replay_committed() if len(static) > 1 else log.replay()
    except SnapshotDamaged:
        log.partition_log.close(clean=False)
        raise


def _others_have_it(config: NodeConfig, local: Voter, static: tuple[Voter, ...], named: tuple[Voter, ...]) -> bool:
    """Whether there are other voters to fetch the metadata from: by the configuration, unless the readable part of a
    damaged directory names only this node."""
    if {voter.voter_id for voter in named} == {local.voter_id}:
        return False
    if any(voter.voter_id != local.voter_id for voter in static):
        return True
    own = {(endpoint.host, endpoint.port) for endpoint in local.endpoints}
    return any((server.host, server.port) not in own for server in config.quorum_bootstrap_servers)


def _static_voters(config: NodeConfig, local: Voter) -> tuple[Voter, ...]:
    """The voters of `controller.quorum.voters` (Q39). A controller without configured peers votes alone."""
    if config.quorum_voters:
        name = config.controller_listener_names[0] if config.controller_listener_names else "CONTROLLER"
        return tuple(
            Voter(each.node_id, UUID(int=0), (VoterEndpoint(name, each.host, each.port),), _KRAFT_LEVELS)
            for each in config.quorum_voters
        )
    if not config.quorum_bootstrap_servers and local.endpoints:
        return (local,)
    return ()


def _check_voters(config: NodeConfig, voters: tuple[Voter, ...], local: Voter, is_alone: bool) -> None:
    ids = [voter.voter_id for voter in voters]
    if is_alone:
        return
    if config.can_reach_others:
        return
    if not ids:
        raise OperatorError(
            "The voters of this cluster's metadata quorum are unknown.",
            "Set controller.quorum.bootstrap.servers to the addresses of the controllers.",
        )
    raise OperatorError(
        f"The voters of this cluster's metadata quorum are {ids}; this node is {local.voter_id}.",
        "Use the data directory of this node, or format a new one. To run several controllers, this node needs a"
        " listener of controller.listener.names in `listeners`.",
    )
