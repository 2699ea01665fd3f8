"""Formatting data directories: their owner, and the first records of the cluster.

Owns the files that `kafka-storage format` writes: `meta.properties` in every directory, `bootstrap.checkpoint` with the
feature levels and the first users, and in the metadata directory the snapshot 0-0 with the voters. Never touches a
formatted directory.

Rules: formats.md F1, F2; since_4_0.md K1, K19; snapshots.md N4.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.config.properties import format_properties
from fenceline.controller.requests import WriteBootstrapRecords
from fenceline.errors import OperatorError
from fenceline.ids import decode_uuid, encode_uuid, random_id
from fenceline.log.core.disk import Disk, OsDisk, read_file, replace_file
from fenceline.log.core.file_names import BOOTSTRAP_FILE
from fenceline.log.core.meta_properties import META_FILE
from fenceline.metadata.features import (
    KRAFT_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    SUPPORTED,
    fresh_levels,
)
from fenceline.metadata.records import FeatureLevelRecord, MetadataRecord, decode_record
from fenceline.metadata.security_records import UserScramCredentialRecord
from fenceline.node.metadata.batches import snapshot_batches
from fenceline.node.metadata.metadata_log import DIRECTORY_NAME
from fenceline.node.metadata.replay import NO_SNAPSHOT
from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig

_KRAFT_LEVELS: Final = KRaftVersionFeature(0, 1)


@dataclass(frozen=True, slots=True)
class Formatted:
    """The result of formatting. `directories` are the newly formatted ones; the others were already formatted."""

    cluster_id: str
    directories: tuple[str, ...]


def format_directory(
    log_dirs: Sequence[str | Path],
    *,
    cluster_id: str,
    node_id: int,
    metadata_log_dir: str | Path | None = None,
    voter_endpoint: VoterEndpoint | None = None,
    voters: Sequence[Voter] = (),
    metadata_version: int = LATEST_METADATA_VERSION,
    users: Sequence[UserScramCredentialRecord] = (),
    ignore_formatted: bool = False,
    disk: Disk | None = None,
    now_ms: int | None = None,
) -> Formatted:
    """Format every directory for `node_id` of `cluster_id`.

    With a `voter_endpoint` the metadata directory (the first, unless given) starts a quorum of this one voter, as
    `kafka-storage format --standalone` does; with `voters`, as `--initial-controllers`, a quorum of all of them
    including this node, whose metadata directory gets the id that they contain. With neither it is not a voter yet.

    Raises OperatorError: bad id, a directory that is already formatted
    (unless `ignore_formatted` and it belongs to this node and cluster), or one that cannot be written.
    """
    disk = disk or OsDisk()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    _check_cluster_id(cluster_id)
    paths = [os.path.abspath(path) for path in log_dirs]
    metadata_path = os.path.abspath(metadata_log_dir) if metadata_log_dir is not None else paths[0]
    if metadata_path not in paths:
        paths.append(metadata_path)
    own_id = _own_directory_id(voters, node_id)
    wanted = [path for path in paths if not _is_formatted(disk, path, cluster_id, node_id, ignore_formatted)]
    try:
        for path in wanted:
            directory_id = own_id if path == metadata_path and own_id is not None else random_id()
            first = voters
            if voter_endpoint is not None and not voters:
                first = (Voter(node_id, directory_id, (voter_endpoint,), _KRAFT_LEVELS),)
            _format_one(
                disk,
                path,
                cluster_id,
                node_id,
                directory_id,
                metadata_version,
                now_ms,
                first if path == metadata_path else (),
                users,
            )
    except OSError as error:
        raise OperatorError(
            f"Cannot format {error.filename or wanted}: {error.strerror or error}",
            "Check that the directory exists or can be created, and that this user may write to it.",
        ) from error
    return Formatted(cluster_id, tuple(wanted))


def format_if_new(config: NodeConfig, disk: Disk | None = None, *, unusable: Collection[str] = ()) -> Formatted | None:
    """Format this node's directories if none of them is formatted: starting an unformatted node creates a new cluster.

    `unusable` ones are skipped. None if they are already formatted. Raises OperatorError, also if only some are.
    """
    try:
        return _format_if_new(config, disk or OsDisk(), unusable)
    except OSError as error:
        raise OperatorError(
            f"Cannot use the data directory {error.filename or config.log_dirs[0]}: {error.strerror or error}",
            "Set log.dirs to a directory that exists or can be created, and that this user may read and write.",
        ) from error


def _format_if_new(config: NodeConfig, disk: Disk, unusable: Collection[str]) -> Formatted | None:
    paths = [os.path.abspath(path) for path in config.log_dirs if str(path) not in unusable]
    metadata_path = os.path.abspath(config.metadata_log_dir)
    everything = [*paths, *([] if metadata_path in paths else [metadata_path])]
    for path in everything:
        found = disk.stat(path)
        if found is not None and not found.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a directory", path)
    missing = [path for path in everything if disk.stat(f"{path}/{META_FILE}") is None]
    if not missing:
        return None
    if len(missing) < len(everything) or unusable:
        raise OperatorError(
            f"{', '.join(missing)} is not formatted or not mounted, but other directories of this node are.",
            "Mount it. A new or replaced disk must be formatted explicitly: run `fenceline format --ignore-formatted`"
            " with the id of this cluster. To continue without it, remove it from log.dirs.",
        )
    for path in everything:
        stray = (
            [name for name in disk.listdir(path) if not name.startswith((".", "lost+found"))] if disk.stat(path) else []
        )
        if stray:
            raise OperatorError(
                f"{path} is not formatted but contains {stray[0]!r}.",
                f"If this is the data of a node, restore its {META_FILE}; otherwise choose an empty directory.",
            )
    if config.quorum_voters[1:] or not config.is_controller or _joins_others(config):
        raise OperatorError(
            f"{everything[0]} is not formatted, and this node is one of several.",
            "First run `fenceline format` with the cluster id on each node.",
        )
    return format_directory(
        paths,
        cluster_id=encode_uuid(random_id()),
        node_id=config.node_id,
        metadata_log_dir=metadata_path,
        voter_endpoint=controller_endpoint(config),
    )


def initial_quorum(
    config: NodeConfig, *, standalone: bool, initial_controllers: str | None, joins: bool
) -> tuple[VoterEndpoint | None, tuple[Voter, ...]]:
    """The arguments of `format_directory` for the options of `fenceline format` (K19). Raises OperatorError.

    Brokers, static voters and joining nodes start no quorum. A controller without an option starts one alone, unless
    its bootstrap servers are other nodes: then an option is required.
    """
    if (standalone, initial_controllers is not None, joins).count(True) > 1:
        raise OperatorError("Use only one of --standalone, --initial-controllers and --no-initial-controllers.")
    chosen = standalone or initial_controllers is not None
    if chosen and not config.is_controller:
        raise OperatorError(
            "This node is not a controller and cannot start a quorum.",
            "Omit the option, or change process.roles.",
        )
    if (chosen or joins) and config.quorum_voters:
        raise OperatorError("controller.quorum.voters already names the voters.", "Omit the option, or remove the key.")
    if initial_controllers is not None:
        name = config.controller_listener_names[0] if config.controller_listener_names else "CONTROLLER"
        return None, parse_initial_controllers(initial_controllers, name)
    if joins or not config.is_controller or config.quorum_voters[1:]:
        return None, ()
    if not standalone and _joins_others(config):
        raise OperatorError(
            "controller.quorum.bootstrap.servers names other nodes, so an option for the initial quorum is required.",
            "Use --standalone for the first controller of a cluster, --initial-controllers for several at once,"
            " --no-initial-controllers for one that joins later.",
        )
    return controller_endpoint(config), ()


def _joins_others(config: NodeConfig) -> bool:
    """Whether the bootstrap servers are nodes other than this one."""
    own = {(each.host, each.port) for each in config.advertised_controller_listeners}
    own |= {("localhost", port) for _, port in own} | {("127.0.0.1", port) for _, port in own}
    return any((each.host, each.port) not in own for each in config.quorum_bootstrap_servers)


def controller_endpoint(config: NodeConfig) -> VoterEndpoint:
    """This controller's endpoint for other voters.

    The quorum of a node without a controller listener is unreachable for others; its record still needs an endpoint.
    """
    if config.advertised_controller_listeners:
        listener = config.advertised_controller_listeners[0]
        return VoterEndpoint(listener.name, listener.host or "localhost", listener.port)
    return VoterEndpoint("CONTROLLER", "localhost", 0)


def read_bootstrap(disk: Disk, log_dir: str) -> WriteBootstrapRecords | None:
    """Feature levels and users of the format command, in the file's order; None without the file (K19: then only the
    newest metadata.version)."""
    path = f"{log_dir}/{BOOTSTRAP_FILE}"
    content = read_file(disk, path)
    if content is None:
        return None
    levels: dict[str, int] = {}
    users: list[UserScramCredentialRecord] = []
    view = memoryview(content)
    for header in iter_headers(view):
        check_crc(view, header)
        if header.is_control:
            continue
        for one in decode_batch(view, header):
            record = decode_record(one.value or b"")
            if isinstance(record, FeatureLevelRecord):
                levels[record.name] = record.feature_level
            elif isinstance(record, UserScramCredentialRecord):
                users.append(record)
    if METADATA_VERSION not in levels:
        raise OperatorError(f"{path} has no metadata.version.", "Restore the file or reformat the directory.")
    unknown = [name for name, level in levels.items() if name not in SUPPORTED or level not in SUPPORTED[name]]
    if unknown:
        raise OperatorError(
            f"{path} requires {unknown[0]} {levels[unknown[0]]}, which this release does not support.",
            "Start the node with the release that formatted the directory.",
        )
    return WriteBootstrapRecords(tuple(levels.items()), tuple(users))


def _check_cluster_id(cluster_id: str) -> None:
    try:
        decode_uuid(cluster_id)
    except ValueError:
        raise OperatorError(
            f"{cluster_id!r} is not a cluster id.",
            "A cluster id is 16 bytes in base64url without padding: 22 characters.",
        ) from None


def _is_formatted(disk: Disk, path: str, cluster_id: str, node_id: int, ignore: bool) -> bool:
    content = read_file(disk, f"{path}/{META_FILE}") if disk.stat(path) is not None else None
    if content is None:
        return False
    meta = dict(line.split("=", 1) for line in content.decode(errors="replace").splitlines() if "=" in line)
    if not ignore:
        raise OperatorError(
            f"{path} is already formatted (cluster {meta.get('cluster.id')}, node {meta.get('node.id')}).",
            "Use --ignore-formatted to skip formatted directories.",
        )
    if meta.get("cluster.id") != cluster_id or meta.get("node.id") != str(node_id):
        raise OperatorError(
            f"{path} belongs to cluster {meta.get('cluster.id')}, node {meta.get('node.id')}; "
            f"requested are cluster {cluster_id}, node {node_id}.",
            "Use the ids of that directory, or an empty directory.",
        )
    return True


def _own_directory_id(voters: Sequence[Voter], node_id: int) -> UUID | None:
    if not voters:
        return None
    own = [voter for voter in voters if voter.voter_id == node_id]
    if not own:
        raise OperatorError(
            f"The initial controllers {[voter.voter_id for voter in voters]} do not include node {node_id}.",
            "Add it, or format this node with --no-initial-controllers.",
        )
    return own[0].voter_directory_id


def parse_initial_controllers(text: str, listener: str) -> tuple[Voter, ...]:
    """`id@host:port:directory-id` each, separated by commas, as Kafka's --initial-controllers. Raises OperatorError."""
    voters: list[Voter] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        number, _, rest = item.partition("@")
        address, _, directory = rest.rpartition(":")
        host, _, port = address.rpartition(":")
        try:
            endpoint = VoterEndpoint(listener, host.strip("[]"), int(port))
            voters.append(Voter(int(number), decode_uuid(directory), (endpoint,), _KRAFT_LEVELS))
        except ValueError:
            raise OperatorError(
                f"Invalid controller {item!r} in --initial-controllers.",
                "The format is id@host:port:directory-id.",
            ) from None
    ids = [voter.voter_id for voter in voters]
    if not ids or len(set(ids)) != len(ids):
        raise OperatorError(f"--initial-controllers {text!r} is empty or contains an id twice.")
    return tuple(voters)


def _format_one(
    disk: Disk,
    path: str,
    cluster_id: str,
    node_id: int,
    directory_id: UUID,
    metadata_version: int,
    now_ms: int,
    voters: Sequence[Voter],
    users: Sequence[UserScramCredentialRecord],
) -> None:
    """`meta.properties` is written last: without it the directory counts as not formatted. `voters`: those of the
    quorum that starts here. `users`: of a new cluster."""
    os.makedirs(path, exist_ok=True) if isinstance(disk, OsDisk) else _make(disk, path)
    levels = fresh_levels(metadata_version)
    records: list[MetadataRecord] = [FeatureLevelRecord(name, level) for name, level in levels.items()]
    records += users
    batches = snapshot_batches(
        records, metadata_version=metadata_version, epoch=0, now_ms=now_ms, last_log_timestamp_ms=0
    )
    replace_file(disk, f"{path}/{BOOTSTRAP_FILE}", b"".join(batches))
    if voters:
        directory = f"{path}/{DIRECTORY_NAME}"
        if disk.stat(directory) is None:
            disk.mkdir(directory)
        first = snapshot_batches(
            [],
            metadata_version=metadata_version,
            epoch=0,
            now_ms=now_ms,
            last_log_timestamp_ms=now_ms,
            kraft_version=SUPPORTED[KRAFT_VERSION].maximum,
            voters=voters,
        )
        replace_file(disk, f"{directory}/{NO_SNAPSHOT.file_name}", b"".join(first))
        disk.fsync_dir(path)
    meta = {
        "version": "1",
        "cluster.id": cluster_id,
        "node.id": str(node_id),
        "directory.id": encode_uuid(directory_id),
    }
    replace_file(disk, f"{path}/{META_FILE}", format_properties(meta).encode())


def _make(disk: Disk, path: str) -> None:
    if disk.stat(path) is None:
        disk.mkdir(path)
