"""Loss receipts: a Fenceline cluster's records of lost records, in its ledger topic.

Owns a receipt as clients see it, and the lookup of the receipts for a range. Other clusters have no such topic, which
is not an error; the client never creates it. A replica writes its receipt when it truncates its log, possibly after a
reader has detected the truncation: an empty result means that there is no receipt yet.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from fenceline.client.core.cluster import Cluster
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.deadline import Deadline
from fenceline.client.core.errors import ConnectionLost, LogTruncationError, TimedOut
from fenceline.client.core.fetch_wire import PartitionFetch, fetch_once
from fenceline.client.core.fetched import scan, to_records
from fenceline.client.core.offsets import EARLIEST, LATEST, list_offsets
from fenceline.errors import ErrorCode
from fenceline.ids import LOSSES_TOPIC, NO_EPOCH, ZERO_UUID, TopicPartition, decode_uuid

_PIECE_BYTES: Final = 1024 * 1024


class LossReceipt(NamedTuple):
    """Offsets [start_offset, end_offset_exclusive) that `replica` lost, written in `leader_epochs` (oldest first).

    `loss_class`: committed, maybe_acknowledged, never_acknowledged or expired. `evidence`: paths on that node of the
    lost bytes; `evidence_note`: why there are none, or not all. `topic_id` as text, "" if unknown. `known_by`: how the
    class was determined. `leader_epoch`: of `leader`, at the truncation. `group`: for the class expired, the group
    whose committed offset was passed.
    """

    id: str
    topic: str
    topic_id: str
    partition: int
    start_offset: int
    end_offset_exclusive: int
    leader_epochs: tuple[int, ...]
    records: int
    size_bytes: int
    loss_class: str
    cause: str
    replica: int
    leader: int
    time_ms: int
    evidence: tuple[str, ...]
    evidence_note: str = ""
    known_by: str = ""
    reason: str = ""
    leader_epoch: int = NO_EPOCH
    group: str = ""

    def __str__(self) -> str:
        kept = "evidence kept" if self.evidence else "no evidence"
        return (
            f"{self.id[:12]} (node {self.replica} lost offsets {self.start_offset} to {self.end_offset_exclusive - 1}, "
            f"{self.records} records, {self.loss_class}, {kept})"
        )

    def overlaps(self, start_offset: int, end_offset_exclusive: int, epochs: Iterable[int] = ()) -> bool:
        """Whether the receipt covers a part of a range of its partition; `epochs`: of the records read there, empty if
        unknown."""
        read_in = set(epochs)
        return (
            self.start_offset < end_offset_exclusive
            and start_offset < self.end_offset_exclusive
            and (not read_in or not self.leader_epochs or not read_in.isdisjoint(self.leader_epochs))
        )


def parse_receipt(document: bytes) -> LossReceipt | None:
    """Parse the value of a ledger record; None if it is not a receipt that this client understands."""
    try:
        fields: dict[str, Any] = json.loads(document)
        if fields["topic_id"]:
            decode_uuid(fields["topic_id"])
        return LossReceipt(
            str(fields["id"]),
            str(fields["topic"]),
            str(fields["topic_id"] or ""),
            int(fields["partition"]),
            int(fields["start_offset"]),
            int(fields["end_offset_exclusive"]),
            tuple(map(int, fields["leader_epochs"])),
            int(fields["records"]),
            int(fields["bytes"]),
            str(fields["class"]),
            str(fields["cause"]),
            int(fields["replica"]),
            int(fields["leader"]),
            int(fields["time_ms"]),
            tuple(map(str, fields["evidence"])),
            str(fields.get("evidence_note", "")),
            str(fields.get("known_by", "")),
            str(fields.get("reason", "")),
            int(fields.get("leader_epoch", NO_EPOCH)),
            str(fields.get("group", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def find_receipts(
    cluster: Cluster, config: ClientConfig, errors: Sequence[LogTruncationError], *, deadline: Deadline
) -> list[tuple[LossReceipt, ...]]:
    """The receipts for each truncation, oldest first, each in its newest version. Raises PeerError, TimedOut.

    Reads the ledger once, from its beginning: it has one small record for each loss.
    """
    searched: dict[TopicPartition, list[int]] = {}
    for number, error in enumerate(errors):
        searched.setdefault(TopicPartition(error.topic, error.partition), []).append(number)
    found: list[dict[str, LossReceipt]] = [{} for _ in errors]
    async for receipt in _ledger(cluster, config, deadline):
        for number in searched.get(TopicPartition(receipt.topic, receipt.partition), ()):
            error = errors[number]
            start, topic_id = max(0, error.divergent_offset), cluster.metadata.topic_id(error.topic)
            is_of_topic = not receipt.topic_id or topic_id in (ZERO_UUID, decode_uuid(receipt.topic_id))
            if is_of_topic and receipt.overlaps(start, error.truncated_from, error.epochs):
                found[number][receipt.id] = receipt
    return [tuple(sorted(each.values(), key=lambda receipt: (receipt.time_ms, receipt.id))) for each in found]


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
