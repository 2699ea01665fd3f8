"""The lookup of loss receipts in the ledger topic of a Fenceline cluster.

Other clusters have no such topic, which is not an error; the client never creates it. A replica writes its receipt when
it truncates its log, possibly after a reader has detected the truncation: an empty result means that there is no
receipt yet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final

from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import ConnectionLost, LogTruncationError, TimedOut
from fenceline.client.core.fetch_session import PartitionFetch
from fenceline.client.core.fetch_wire import fetch_once
from fenceline.client.core.fetched import scan, to_records
from fenceline.client.core.loss_receipts import LossReceipt, newest_versions, parse_receipt
from fenceline.client.core.offset_lookups import list_offsets
from fenceline.client.core.offsets import EARLIEST, LATEST
from fenceline.errors import ErrorCode
from fenceline.ids import LOSSES_TOPIC, NO_EPOCH, ZERO_UUID, TopicPartition, decode_uuid

_PIECE_BYTES: Final = 1024 * 1024


async def find_receipts(
    cluster: Cluster, config: ClientConfig, errors: Sequence[LogTruncationError], *, deadline: Deadline
) -> list[tuple[LossReceipt, ...]]:
    """The receipts for each truncation, oldest first, each in its newest version. Raises PeerError, TimedOut.

    Reads the ledger once, from its beginning: it has one small record for each loss.
    """
    searched: dict[TopicPartition, list[int]] = {}
    for number, error in enumerate(errors):
        searched.setdefault(TopicPartition(error.topic, error.partition), []).append(number)
    found: list[list[LossReceipt]] = [[] for _ in errors]
    async for receipt in _ledger(cluster, config, deadline):
        for number in searched.get(TopicPartition(receipt.topic, receipt.partition), ()):
            error = errors[number]
            start, topic_id = max(0, error.divergent_offset), cluster.metadata.topic_id(error.topic)
            is_of_topic = not receipt.topic_id or topic_id in (ZERO_UUID, decode_uuid(receipt.topic_id))
            if is_of_topic and receipt.overlaps(start, error.truncated_from, error.epochs):
                found[number].append(receipt)
    return [tuple(newest_versions(each)) for each in found]


async def all_receipts(cluster: Cluster, config: ClientConfig, *, deadline: Deadline) -> list[LossReceipt]:
    """Every receipt of the cluster in its newest version, oldest loss first. Raises PeerError, TimedOut."""
    return newest_versions([receipt async for receipt in _ledger(cluster, config, deadline)])


async def _ledger(cluster: Cluster, config: ClientConfig, deadline: Deadline) -> AsyncIterator[LossReceipt]:
    """All receipts; those of one ledger partition in the order in which they were written."""
    known = (await cluster.fetch_metadata([LOSSES_TOPIC], deadline)).topics.get(LOSSES_TOPIC)
    if known is None or known.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not known.partitions:
        return
    partitions = [TopicPartition(LOSSES_TOPIC, index) for index in known.partitions]
    starts = await list_offsets(cluster, dict.fromkeys(partitions, EARLIEST), deadline=deadline)
    ends = await list_offsets(cluster, dict.fromkeys(partitions, LATEST), deadline=deadline)
    left = {ledger: starts[ledger].offset for ledger in partitions if starts[ledger].offset < ends[ledger].offset}
    while left:
        if deadline.is_over:
            raise cluster.timeout_error(deadline)
        moved = False
        for node_id, led in (await cluster.by_leader(list(left), deadline)).items():
            wanted = [
                PartitionFetch(ledger, left[ledger], NO_EPOCH, leader.epoch, _PIECE_BYTES) for ledger, leader in led
            ]
            try:
                # Not on the FETCH connection, on which a Fetch may wait for fetch.max.wait.ms.
                connection = await cluster.link(node_id).connection()
                answers = await fetch_once(cluster, connection, wanted, config, max_wait_ms=0)
            except (ConnectionLost, TimedOut) as error:
                deadline.last_error = error
                continue
            for ledger, answer in answers.items():
                if answer.error_code or not answer.records:
                    continue
                piece, _ = scan(ledger, memoryview(answer.records), left[ledger], NO_EPOCH)
                moved |= piece.next_offset > left[ledger]
                left[ledger] = piece.next_offset
                for record in to_records(piece):
                    if (receipt := parse_receipt(record.value or b"")) is not None:
                        yield receipt
        left = {ledger: offset for ledger, offset in left.items() if offset < ends[ledger].offset}
        if left and not moved:
            await cluster.pause(deadline)
            await cluster.fetch_metadata([LOSSES_TOPIC], deadline)
