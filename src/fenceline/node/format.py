"""Making data directories: who they belong to, and the first records of their cluster.

Owns what `kafka-storage format` writes: `meta.properties` in every directory, `bootstrap.checkpoint` with the feature
levels, and in the metadata directory the snapshot 0-0 that names the only voter. Never touches a formatted directory.

Rules: formats.md F1, F2; since_4_0.md K1, K19; snapshots.md N4.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from fenceline.config.properties import format_properties
from fenceline.errors import OperatorError
from fenceline.ids import decode_uuid, encode_uuid
from fenceline.log.disk import Disk, OsDisk, read_file, replace_file
from fenceline.log.log_dir import META_FILE
from fenceline.metadata.features import (
    KRAFT_VERSION,
    LATEST_METADATA_VERSION,
    METADATA_VERSION,
    SUPPORTED,
    fresh_levels,
)
from fenceline.metadata.records import FeatureLevelRecord, MetadataRecord, decode_record
from fenceline.node.metadata_batches import snapshot_batches
from fenceline.node.metadata_log import DIRECTORY_NAME
from fenceline.node.metadata_replay import NO_SNAPSHOT
from fenceline.quorum.control_records import KRaftVersionFeature, Voter, VoterEndpoint
from fenceline.records.batch import check_crc, iter_headers
from fenceline.records.decode import decode_batch

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig

BOOTSTRAP_FILE: Final = "bootstrap.checkpoint"
_KRAFT_LEVELS: Final = KRaftVersionFeature(0, 1)


@dataclass(frozen=True, slots=True)
class Formatted:
    """What formatting did. `directories` are those that it wrote; the others were formatted already."""

    cluster_id: str
    directories: tuple[str, ...]


def format_directory(
    log_dirs: Sequence[str | Path],
    *,
    cluster_id: str,
    node_id: int,
    metadata_log_dir: str | Path | None = None,
    voter_endpoint: VoterEndpoint | None = None,
    metadata_version: int = LATEST_METADATA_VERSION,
    ignore_formatted: bool = False,
    disk: Disk | None = None,
    now_ms: int | None = None,
) -> Formatted:
    """Format every directory for `node_id` of `cluster_id`.

    With a `voter_endpoint` the metadata directory (the first, unless named) starts a quorum of this one voter, as
    `kafka-storage format --standalone` does. Raises OperatorError: bad id, a directory that is formatted
    (unless `ignore_formatted` and it belongs to this node and cluster), or one that can not be written.
    """
    disk = disk or OsDisk()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    _check_cluster_id(cluster_id)
    paths = [os.path.abspath(path) for path in log_dirs]
    metadata_path = os.path.abspath(metadata_log_dir) if metadata_log_dir is not None else paths[0]
    if metadata_path not in paths:
        paths.append(metadata_path)
    wanted = [path for path in paths if not _is_formatted(disk, path, cluster_id, node_id, ignore_formatted)]
    try:
        for path in wanted:
            _format_one(
                disk, path, cluster_id, node_id, metadata_version, now_ms, path == metadata_path, voter_endpoint
            )
    except OSError as error:
        raise OperatorError(
            f"{error.filename or wanted} can not be formatted: {error.strerror or error}",
            "Check that the directory exists or can be made, and that this user may write there.",
        ) from error
    return Formatted(cluster_id, tuple(wanted))


def format_if_new(config: NodeConfig) -> Formatted | None:
    """Format this node's directories when none of them is: a start without a `format` before it is a new cluster.

    None when they are formatted already. Raises OperatorError, also when only some are.
    """
    try:
        return _format_if_new(config, OsDisk())
    except OSError as error:
        raise OperatorError(
            f"The data directory {error.filename or config.log_dirs[0]} can not be used: {error.strerror or error}",
            "Name a directory that exists or can be made, and that this user may read and write.",
        ) from error


def _format_if_new(config: NodeConfig, disk: OsDisk) -> Formatted | None:
    paths = [os.path.abspath(path) for path in config.log_dirs]
    metadata_path = os.path.abspath(config.metadata_log_dir)
    everything = [*paths, *([] if metadata_path in paths else [metadata_path])]
    for path in everything:
        found = disk.stat(path)
        if found is not None and not found.is_directory:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file, not a directory", path)
    missing = [path for path in everything if disk.stat(f"{path}/{META_FILE}") is None]
    if not missing:
        return None
    if len(missing) < len(everything):
        raise OperatorError(
            f"{', '.join(missing)} is not formatted, other directories of this node are.",
            "A new or replaced disk must be formatted on purpose: run `fenceline format` with this cluster's id.",
        )
    for path in everything:
        stray = (
            [name for name in disk.listdir(path) if not name.startswith((".", "lost+found"))] if disk.stat(path) else []
        )
        if stray:
            raise OperatorError(
                f"{path} is not formatted but holds {stray[0]!r}.",
                f"If this is a node's data, restore its {META_FILE}; else choose an empty directory.",
            )
    return format_directory(
        paths,
        cluster_id=encode_uuid(_random_id()),
        node_id=config.node_id,
        metadata_log_dir=metadata_path,
        voter_endpoint=controller_endpoint(config),
    )


def controller_endpoint(config: NodeConfig) -> VoterEndpoint:
    """Where this node's controller is or will be found by other voters.

    A node without a controller listener has a quorum that nobody else can reach; the record still needs an endpoint.
    """
    if config.controller_listeners:
        listener = config.controller_listeners[0]
        return VoterEndpoint(listener.name, listener.host or "localhost", listener.port)
    return VoterEndpoint("CONTROLLER", "localhost", 0)


def read_bootstrap_features(disk: Disk, log_dir: str) -> Mapping[str, int] | None:
    """Levels that formatting chose, in the file's order; None without the file (K19: then only the newest MV)."""
    path = f"{log_dir}/{BOOTSTRAP_FILE}"
    content = read_file(disk, path)
    if content is None:
        return None
    levels: dict[str, int] = {}
    view = memoryview(content)
    for header in iter_headers(view):
        check_crc(view, header)
        if header.is_control:
            continue
        for one in decode_batch(view, header):
            record = decode_record(one.value or b"")
            if isinstance(record, FeatureLevelRecord):
                levels[record.name] = record.feature_level
    if METADATA_VERSION not in levels:
        raise OperatorError(f"{path} names no metadata.version.", "Restore the file or format the directory anew.")
    unknown = [name for name, level in levels.items() if name not in SUPPORTED or level not in SUPPORTED[name]]
    if unknown:
        raise OperatorError(
            f"{path} asks for {unknown[0]} {levels[unknown[0]]}, which this release does not support.",
            "Start the release that formatted the directory.",
        )
    return levels


def _check_cluster_id(cluster_id: str) -> None:
    try:
        decode_uuid(cluster_id)
    except ValueError:
        raise OperatorError(
            f"{cluster_id!r} is not a cluster id.", "An id is 16 bytes in base64url without padding, 22 characters."
        ) from None


def _is_formatted(disk: Disk, path: str, cluster_id: str, node_id: int, ignore: bool) -> bool:
    content = read_file(disk, f"{path}/{META_FILE}") if disk.stat(path) is not None else None
    if content is None:
        return False
    meta = dict(line.split("=", 1) for line in content.decode(errors="replace").splitlines() if "=" in line)
    if not ignore:
        raise OperatorError(
            f"{path} is already formatted (cluster {meta.get('cluster.id')}, node {meta.get('node.id')}).",
            "Use --ignore-formatted to leave such directories as they are.",
        )
    if meta.get("cluster.id") != cluster_id or meta.get("node.id") != str(node_id):
        raise OperatorError(
            f"{path} belongs to cluster {meta.get('cluster.id')}, node {meta.get('node.id')}; "
            f"asked for {cluster_id}, node {node_id}.",
            "Use the ids of that directory, or an empty directory.",
        )
    return True


def _format_one(
    disk: Disk,
    path: str,
    cluster_id: str,
    node_id: int,
    metadata_version: int,
    now_ms: int,
    holds_metadata: bool,
    voter_endpoint: VoterEndpoint | None,
) -> None:
    """`meta.properties` comes last: until it is there, the directory counts as not formatted."""
    os.makedirs(path, exist_ok=True) if isinstance(disk, OsDisk) else _make(disk, path)
    directory_id = _random_id()
    levels = fresh_levels(metadata_version)
    records: list[MetadataRecord] = [FeatureLevelRecord(name, level) for name, level in levels.items()]
    batches = snapshot_batches(
        records, metadata_version=metadata_version, epoch=0, now_ms=now_ms, last_log_timestamp_ms=0
    )
    replace_file(disk, f"{path}/{BOOTSTRAP_FILE}", b"".join(batches))
    if holds_metadata and voter_endpoint is not None:
        directory = f"{path}/{DIRECTORY_NAME}"
        if disk.stat(directory) is None:
            disk.mkdir(directory)
        voter = Voter(node_id, directory_id, (voter_endpoint,), _KRAFT_LEVELS)
        first = snapshot_batches(
            [],
            metadata_version=metadata_version,
            epoch=0,
            now_ms=now_ms,
            last_log_timestamp_ms=now_ms,
            kraft_version=SUPPORTED[KRAFT_VERSION].maximum,
            voters=(voter,),
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


def _random_id() -> UUID:
    """Random, never one whose text starts with a dash, which tools would take for an option."""
    while True:
        made = uuid4()
        if not encode_uuid(made).startswith("-"):
            return made


def _make(disk: Disk, path: str) -> None:
    if disk.stat(path) is None:
        disk.mkdir(path)
