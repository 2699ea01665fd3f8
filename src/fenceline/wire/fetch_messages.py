"""The values of a Fetch request and its response, by version. No code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from fenceline.wire.partitioned import LeaderEndpoint
from fenceline.wire.primitives import Buffer

MIN_VERSION: Final = 4
MAX_VERSION: Final = 18
FIRST_WITH_LOG_START: Final = 5
FIRST_WITH_SESSIONS: Final = 7
FIRST_WITH_LEADER_EPOCH: Final = 9
FIRST_WITH_RACK: Final = 11
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13
FIRST_WITH_REPLICA_STATE: Final = 15
FIRST_WITH_ENDPOINTS: Final = 16
FIRST_WITH_DIRECTORY_ID: Final = 17
FIRST_WITH_HIGH_WATERMARK: Final = 18

NO_IDS: Final = (-1, -1)
"""Value of an absent id, offset or epoch."""


class FetchPartition(NamedTuple):
    """One requested partition. The topic is given by name before version 13, by its 16 raw bytes from then on.

    replica_directory_id: 16 raw bytes, None if the request has none. high_watermark: the follower's own, None if it
    does not send it (KIP-1166).
    """

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1
    replica_directory_id: bytes | None = None
    high_watermark: int | None = None


@dataclass(slots=True)
class FetchRequest:
    """A fetch request. `replica_id` -1 is a consumer; `forgotten`: (topic, topic id, partition indexes)."""

    cluster_id: str | None
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: list[FetchPartition]
    forgotten: list[tuple[str | None, bytes | None, list[int]]]
    rack_id: str


class FetchedPartition(NamedTuple):
    """The response for one partition.

    diverging_epoch: (epoch, end offset). current_leader: (id, epoch). snapshot_id: (end offset, epoch).
    aborted_transactions: (producer id, first offset) each; None is null.
    """

    topic: str | None
    topic_id: bytes | None
    index: int  # type: ignore[assignment]  # hides tuple.index
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    diverging_epoch: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    snapshot_id: tuple[int, int] | None = None
    aborted_transactions: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    records: Buffer | None = None


@dataclass(slots=True)
class FetchResponse:
    """The response to a fetch. Error code and session from version 7 on, `node_endpoints` from version 16 on."""

    partitions: Sequence[FetchedPartition]
    throttle_ms: int = 0
    error_code: int = 0
    session_id: int = 0
    node_endpoints: Sequence[LeaderEndpoint] = ()
