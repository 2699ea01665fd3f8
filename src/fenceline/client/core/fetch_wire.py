"""One Fetch request and its response, for consumer, range reader and the lookup of loss receipts.

Owns the translation between positions and Fetch versions 4-18: topic ids from version 13 on, epochs if the version has
them. The leaders that responses of version 16 and later name go into the metadata cache (E59). Sends full requests
without a session, or those of an `IncrementalFetch`. Never decides what follows from an error or a divergence.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.connection import Connection
from fenceline.client.core.errors import RETRIABLE, ClientError, broker_error, error_code
from fenceline.client.core.fetch_session import SESSION_ERRORS, IncrementalFetch, PartitionFetch, SessionRequest
from fenceline.client.core.fetched import Fetched, scan
from fenceline.client.core.metadata import BrokerAddress
from fenceline.client.core.offsets import EpochEnd
from fenceline.errors import ErrorCode
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.records.aborted import AbortedTransactions
from fenceline.records.batch import BatchHeader
from fenceline.wire import fetch
from fenceline.wire.apis import ApiKey

_FIRST_WITH_IDS: Final = 13
_FIRST_WITH_SESSIONS: Final = 7
NO_SESSION_EPOCH: Final = -1
"""The session epoch of a Fetch that neither uses nor creates a session (KIP-227)."""


async def fetch_once(
    cluster: Cluster,
    connection: Connection,
    wanted: Sequence[PartitionFetch],
    config: ClientConfig,
    *,
    max_wait_ms: int | None = None,
    max_bytes: int | None = None,
    rack_id: str = "",
    session: IncrementalFetch | None = None,
) -> dict[TopicPartition, fetch.FetchedPartition]:
    """Send one Fetch; returns the response of each partition in it. Raises PeerError for an error of the request.

    `rack_id`: the rack of a client that can read from a preferred read replica (KIP-392), else "". `session`: with the
    broker of the connection; then the response lacks partitions without news.
    """
    version = connection.version_for(ApiKey.FETCH)
    ids = {topic: cluster.metadata.topic_id(topic) for topic in {p.tp.topic for p in wanted}}
    if version >= _FIRST_WITH_IDS and ZERO_UUID in ids.values():
        version = _FIRST_WITH_IDS - 1
    if version < _FIRST_WITH_SESSIONS:
        session = None
    raw_ids = {topic: topic_id.bytes for topic, topic_id in ids.items()}
    wait_ms = int(config["fetch.max.wait.ms"] if max_wait_ms is None else max_wait_ms)

    async def send(asked: SessionRequest) -> fetch.FetchResponse:
        request = fetch.FetchRequest(
            cluster_id=None,
            replica_id=-1,
            replica_epoch=-1,
            max_wait_ms=wait_ms,
            min_bytes=config["fetch.min.bytes"],
            max_bytes=config["fetch.max.bytes"] if max_bytes is None else max_bytes,
            isolation_level=int(config.reads_committed),
            session_id=asked.session_id,
            session_epoch=asked.epoch,
            partitions=[
                fetch.FetchPartition(topic, raw_ids[topic], index, offset, max_bytes, leader_epoch, last_epoch)
                for (topic, index), offset, last_epoch, leader_epoch, max_bytes in asked.partitions
            ],
            forgotten=[(tp.topic, topic_id.bytes, [tp.partition]) for tp, topic_id in asked.forgotten],
            rack_id=rack_id,
        )
        return await connection.exchange(
            ApiKey.FETCH,
            version,
            fetch.encode_request(version, request),
            fetch.parse_response,
            timeout_ms=config["request.timeout.ms"] + wait_ms,
        )

    if session is None:
        response = await send(SessionRequest(0, NO_SESSION_EPOCH, wanted, ()))
    else:
        response = await _send_in_session(session, send, wanted, ids, uses_ids=version >= _FIRST_WITH_IDS)
    code = error_code(response.error_code)
    if code is not ErrorCode.NONE:
        raise broker_error(code, f"{connection.peer} rejected Fetch")
    known = ids if session is None else session.topic_ids
    names = {topic_id.bytes: name for name, topic_id in known.items()}
    endpoints = {n.node_id: BrokerAddress(n.node_id, n.host, n.port, n.rack) for n in response.node_endpoints}
    answers = {}
    for partition in response.partitions:
        topic = partition.topic
        if topic is None and partition.topic_id is not None:
            topic = names.get(partition.topic_id)
        if topic is None:
            continue
        tp = TopicPartition(topic, partition.index)
        answers[tp] = partition
        if partition.current_leader is not None and partition.current_leader[0] >= 0:
            cluster.metadata.accept_hint(tp, partition.current_leader[0], partition.current_leader[1], endpoints)
    return answers


async def _send_in_session(
    session: IncrementalFetch,
    send: Callable[[SessionRequest], Awaitable[fetch.FetchResponse]],
    wanted: Sequence[PartitionFetch],
    ids: Mapping[str, UUID],
    *,
    uses_ids: bool,
) -> fetch.FetchResponse:
    """Send the session's next request; a full one after it if the broker does not know the session (any more)."""
    while True:
        asked = session.next_request(wanted, ids, uses_ids=uses_ids)
        try:
            response = await send(asked)
        except BaseException:
            session.end()
            raise
        code = error_code(response.error_code)
        if code is ErrorCode.NONE:
            session.answered(response.session_id)
            return response
        session.end(code)
        if code not in SESSION_ERRORS or asked.is_full:
            return response


def scan_answer(
    config: ClientConfig,
    tp: TopicPartition,
    answer: fetch.FetchedPartition,
    from_offset: int,
    epoch: int,
    *,
    end_offset_exclusive: int = 2**63 - 1,
    max_leader_epoch: int = -1,
) -> tuple[Fetched, BatchHeader | None]:
    """`scan` of one partition's records, by the client's `isolation.level` and `check.crcs`."""
    return scan(
        tp,
        memoryview(answer.records or b""),
        from_offset,
        epoch,
        end_offset_exclusive=end_offset_exclusive,
        aborted=AbortedTransactions(answer.aborted_transactions or ()) if config.reads_committed else None,
        check_crcs=config["check.crcs"],
        max_leader_epoch=max_leader_epoch,
    )


def fetch_error(code: ErrorCode, tp: TopicPartition, offset: int) -> ClientError:
    """The exception for the error code of one partition."""
    return broker_error(code, f"reading {tp} at offset {offset}")


def is_permanent(code: ErrorCode) -> bool:
    """Whether the caller must know: a retry does not help, also if the damage is on the broker's disk."""
    return code not in RETRIABLE or code is ErrorCode.CORRUPT_MESSAGE


def diverging_end(answer: fetch.FetchedPartition) -> EpochEnd | None:
    """Where the epoch of the position ends in the leader's log, if the logs diverge before the position (E10)."""
    if answer.diverging_epoch is None or answer.diverging_epoch[1] < 0:
        return None
    return EpochEnd(*answer.diverging_epoch)
