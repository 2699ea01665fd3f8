"""Replicas removed by a reassignment: their deleted records are in the leader's log, or have a receipt.

Owns the content of the directories of such replicas when the node began to wait for their leaders. Retention and
crashes of other replicas are no excuse here: this node still had the records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenceline.losses.receipt import Receipt
from fenceline.node.replication.replicas import RemovedReplica
from fenceline.records.batch import iter_headers
from fenceline.records.errors import RecordsError
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.checks import InvariantBroken
from fenceline.testing.simulation.world import StoredBatch

if TYPE_CHECKING:
    from fenceline.node.broker import Broker

Key = tuple[bytes, int]
"""Topic id and partition."""


@dataclass(frozen=True, slots=True)
class LeaderLog:
    """The log of the current leader of a partition."""

    leader_epoch: int
    log_start_offset: int
    read: Callable[[], list[StoredBatch]]
    """Reads all batches."""


@dataclass(slots=True)
class _Removed:
    replica: RemovedReplica
    key: Key
    batches: list[StoredBatch]


class RemovedChecks:
    """The removed replicas of one broker process."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._removed: list[_Removed] = []

    def check(
        self,
        broker: Broker,
        leader_of: Callable[[Key], LeaderLog | None],
        receipts_of: Callable[[Key], list[Receipt]],
        where: str,
    ) -> None:
        """`leader_of`: None if no node leads. Raises InvariantBroken."""
        waiting = broker.removed_replicas.waiting
        if not waiting and not self._removed:
            return
        for replica in waiting:
            if all(each.replica is not replica for each in self._removed):
                key = (replica.topic_id.bytes, replica.removed.topic_partition.partition)
                self._removed.append(_Removed(replica, key, self._batches_in(replica.removed.path)))
        for each in list(self._removed):
            if all(replica is not each.replica for replica in waiting):
                self._removed.remove(each)
                leader = leader_of(each.key)
                # A leader that was elected since may have less: that is a loss of another replica.
                is_same = leader is not None and leader.leader_epoch == each.replica.compared_in
                if leader is not None and is_same and broker.log_dirs.is_online(each.replica.log_dir):
                    _check(each, leader, receipts_of(each.key), where)

    def _batches_in(self, directory: str) -> list[StoredBatch]:
        found = []
        for name in sorted(self._disk.folder(directory) or ()):
            if name.endswith(".log"):
                content = self._disk.peek(f"{directory}/{name}") or b""
                with suppress(RecordsError):  # a crash has torn the rest
                    for header in iter_headers(content):
                        batch = content[header.position : header.end_position]
                        found.append(StoredBatch(header.base_offset, header.next_offset, header.leader_epoch, batch))
        return found


def _check(removed: _Removed, leader: LeaderLog, receipts: list[Receipt], where: str) -> None:
    log = removed.replica.log
    if log is None:
        return  # damaged, or its topic was deleted
    start = max(log.log_start_offset, leader.log_start_offset)
    there = set(leader.read())
    for batch in removed.batches:
        if batch.base_offset < start or batch.base_offset >= log.log_end_offset or batch in there:
            continue
        has_receipt = any(
            each.start_offset < batch.next_offset
            and batch.base_offset < each.end_offset_exclusive
            and batch.epoch in each.leader_epochs
            for each in receipts
        )
        if not has_receipt:
            raise InvariantBroken(
                f"{where}: the replica was removed with the batch at {batch.base_offset} of epoch {batch.epoch},"
                " which the leader does not have, without a receipt (losses)"
            )
