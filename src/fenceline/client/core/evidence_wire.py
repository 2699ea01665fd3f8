"""One Fetch of a loss's evidence, from the node whose log lost the records.

Owns the form of the request (`docs/protocol.md`): by name, without a session, for `__fenceline_evidence/` and the
receipt's id; and the message for each error code. Never chooses a receipt.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.client.core.cluster import Cluster, Purpose
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import ClientError, ConnectionLost, TimedOut, broker_error, error_code
from fenceline.client.core.fetched import Fetched, scan
from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.errors import ErrorCode, OperatorError
from fenceline.ids import EVIDENCE_RESOURCE, NO_EPOCH, TopicPartition
from fenceline.records.batch import iter_headers
from fenceline.wire import fetch
from fenceline.wire.apis import ApiKey

_LAST_BY_NAME: Final = 12
_NO_SESSION_EPOCH: Final = -1


class EvidencePiece(NamedTuple):
    """Records of a loss. `record_count`: those of the receipt that it covers, also control records."""

    fetched: Fetched
    record_count: int


async def fetch_evidence(
    cluster: Cluster, config: ClientConfig, receipt: LossReceipt, from_offset: int, *, deadline: Deadline
) -> EvidencePiece | None:
    """The batches of the loss from an offset on, `max.partition.fetch.bytes` of them; None if there are none.

    Raises OperatorError if the node is not there (at once if none of its records have been read, otherwise when the
    deadline is over: it may be restarting), PeerError for its error, TimedOut.
    """
    while True:
        try:
            answer = await _fetch_once(cluster, config, receipt, from_offset, deadline)
            code = error_code(answer.error_code)
            if code is ErrorCode.NONE:
                break
            deadline.last_error = _error(code, receipt)
            if code is not ErrorCode.NOT_LEADER_OR_FOLLOWER or deadline.is_over:
                raise deadline.last_error
        except (ConnectionLost, TimedOut) as error:
            deadline.last_error = error
            if deadline.is_over:
                raise cluster.timeout_error(deadline) from error
        except OperatorError:
            if deadline.is_over or from_offset <= receipt.start_offset:
                raise
        await cluster.pause(deadline)
        await cluster.fetch_metadata([], deadline)
    if not answer.records:
        return None
    records = memoryview(answer.records)
    tp = TopicPartition(receipt.topic, receipt.partition)
    end = receipt.end_offset_exclusive
    check = config["check.crcs"]
    piece, _ = scan(tp, records, from_offset, NO_EPOCH, end_offset_exclusive=end, check_crcs=check)
    if piece.next_offset <= from_offset:
        raise ClientError(
            ErrorCode.CORRUPT_MESSAGE,
            f"node {receipt.replica} returned no records of {tp} from offset {from_offset} on, as was requested",
        )
    count = 0
    for header in iter_headers(records, allow_partial_tail=True):
        if header.next_offset > from_offset and header.base_offset < piece.next_offset:
            outside = max(0, from_offset - header.base_offset) + max(0, header.next_offset - end)
            count += max(0, header.record_count - outside)
    return EvidencePiece(piece, count)


async def _fetch_once(
    cluster: Cluster, config: ClientConfig, receipt: LossReceipt, from_offset: int, deadline: Deadline
) -> fetch.FetchedPartition:
    """Raises ConnectionLost, TimedOut, PeerError, OperatorError."""
    if receipt.replica not in cluster.metadata.brokers:
        await cluster.fetch_metadata([], deadline)
    if receipt.replica not in cluster.metadata.brokers:
        raise OperatorError(
            f"Node {receipt.replica}, which keeps the evidence of loss receipt {receipt.id[:12]}, is not running",
            "Start it, or read the files of its data directory: fenceline losses export --data-dir.",
        )
    connection = await cluster.link(receipt.replica, Purpose.FETCH).connection()
    version = min(connection.version_for(ApiKey.FETCH), _LAST_BY_NAME)
    size = config["max.partition.fetch.bytes"]
    name = f"{EVIDENCE_RESOURCE}/{receipt.id}"
    request = fetch.FetchRequest(
        cluster_id=None,
        replica_id=-1,
        replica_epoch=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=size,
        isolation_level=0,
        session_id=0,
        session_epoch=_NO_SESSION_EPOCH,
        partitions=[fetch.FetchPartition(name, None, receipt.partition, from_offset, size)],
        forgotten=[],
        rack_id="",
    )
    response = await connection.exchange(
        ApiKey.FETCH,
        version,
        fetch.encode_request(version, request),
        fetch.parse_response,
        timeout_ms=config["request.timeout.ms"],
    )
    code = error_code(response.error_code)
    if code is not ErrorCode.NONE:
        raise _error(code, receipt)
    if len(response.partitions) != 1:
        raise ClientError(ErrorCode.CORRUPT_MESSAGE, f"{connection.peer} answered for other partitions")
    return response.partitions[0]


def _error(code: ErrorCode, receipt: LossReceipt) -> ClientError:
    subject = f"reading the evidence of loss receipt {receipt.id[:12]} on node {receipt.replica}"
    reason = {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "the node has no evidence of it, or none any more",
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: (
            f"READ is needed on the topic {receipt.topic} and on the topic name {EVIDENCE_RESOURCE}"
        ),
        ErrorCode.POLICY_VIOLATION: "fenceline.evidence.fetch.enable is false there",
        ErrorCode.NOT_LEADER_OR_FOLLOWER: "the node has lost the quorum, and does not know the rights",
        ErrorCode.KAFKA_STORAGE_ERROR: "the node's disk failed, see its log",
    }.get(code)
    if reason is None:
        return broker_error(code, subject)
    return ClientError(code, f"{subject}: {code.name} ({reason})")
