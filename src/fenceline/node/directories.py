"""The data directories of one node, opened and locked.

Owns the check that they belong to this node and to one cluster. Raises OperatorError where they do not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, NamedTuple

from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError, PeerError
from fenceline.log.disk import Disk
from fenceline.log.log_dir import HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS, LogDir
from fenceline.log.meta_properties import META_FILE
from fenceline.node.format import format_if_new
from fenceline.node.logs import Logger

log = Logger("broker")

_LOST_WITH_CHECKPOINT: Final[Mapping[str, str]] = {
    RECOVERY_POINTS: "every log is checked from its start, which may take a while",
    LOG_STARTS: "records that DeleteRecords had taken out of the middle of a segment may be read again",
    HIGH_WATERMARKS: "high watermarks are found anew from the logs",
}


class Directories(NamedTuple):
    """`metadata` is `data` where `metadata.log.dir` is no directory of its own."""

    data: LogDir
    metadata: LogDir

    @property
    def metadata_is_apart(self) -> bool:
        return self.metadata is not self.data


def open_directories(config: NodeConfig, disk: Disk) -> Directories:
    """Format what is new, lock and open. Raises OperatorError."""
    format_if_new(config, disk)
    data = LogDir.open(str(config.log_dirs[0]), disk, node_id=config.node_id)
    for name, reason in data.damaged.items():
        log.warning("checkpoint damaged, going on without it", reason=reason, consequence=_LOST_WITH_CHECKPOINT[name])
    metadata = data
    if config.metadata_log_dir != config.log_dirs[0]:
        # Locked and checked as the first one: its owner and its cluster must be the same.
        metadata = LogDir.open(str(config.metadata_log_dir), disk, cluster_id=data.cluster_id, node_id=config.node_id)
    for opened in (data, metadata):
        if opened.directory_id is None:
            raise OperatorError(
                f"{opened.path}/{META_FILE} has no directory.id",
                "It was written before Kafka 3.7 or cut short. Start Apache Kafka 4 once on this directory, or"
                " restore the file from a backup.",
            )
    return Directories(data, metadata)


@contextmanager
def starting(config: NodeConfig) -> Iterator[None]:
    """Nobody has asked anything of a node that starts: what a disk refuses is the operator's. Raises OperatorError."""
    try:
        yield
    except (PeerError, OSError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else error.message
        raise OperatorError(
            f"Node {config.node_id} can not start: {reason}",
            f"Check that {config.metadata_log_dir} has room, can be written and that its disk is healthy;"
            " then start again.",
        ) from error
