"""Replicas that a reassignment took away: what of them goes is in the leader's log, or has a receipt.

Owns what the directories of such replicas held when the node began to wait for their leaders. Retention and crashes of
other replicas excuse nothing here: what they deleted or lost, this node still had.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenceline.losses.receipt import Receipt
from fenceline.node.removed_replicas import RemovedReplica
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
    """Of the replica that leads a partition now."""

    leader_epoch: int
    log_start_offset: int
    read: Callable[[], list[StoredBatch]]
    """All of it."""


@dataclass(slots=True)
class _Removed:
    replica: RemovedReplica
    key: Key
    batches: list[StoredBatch]


class RemovedChecks:
    """Of one life of a broker."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._removed: list[_Removed] = []

    def look(
        self,
        broker: Broker,
        leader_of: Callable[[Key], LeaderLog | None],
        receipts_of: Callable[[Key], list[Receipt]],
        where: str,
    ) -> None:
        """`leader_of`: None where no node leads. Raises InvariantBroken."""
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
                # A leader that was elected since may have less: what goes with that, another replica loses.
                is_same = leader is not None and leader.leader_epoch == each.replica.compared_in
                if leader is not None and is_same and broker.log_dirs.is_online(each.replica.log_dir):
                    _check(each, leader, receipts_of(each.key), where)

    def _batches_in(self, directory: str) -> list[StoredBatch]:
        found = []
        for name in sorted(self._disk.folder(directory) or ()):
            if name.endswith(".log"):
                content = self._disk.peek(f"{directory}/{name}") or b""
                with suppress(RecordsError):  # a crash has torn what follows
                    for header in iter_headers(content):
                        batch = content[header.position : header.end_position]
                        found.append(StoredBatch(header.base_offset, header.next_offset, header.leader_epoch, batch))
        return found


def _check(removed: _Removed, leader: LeaderLog, receipts: list[Receipt], where: str) -> None:
    log = removed.replica.log
    if log is None:
        return  # damaged, or of a topic that was deleted
    start = max(log.log_start_offset, leader.log_start_offset)
    there = set(leader.read())
    for batch in removed.batches:
        if batch.base_offset < start or batch.base_offset >= log.log_end_offset or batch in there:
            continue
        is_told = any(
            each.start_offset < batch.next_offset
            and batch.base_offset < each.end_offset_exclusive
            and batch.epoch in each.leader_epochs
            for each in receipts
        )
        if not is_told:
            raise InvariantBroken(
                f"{where}: the replica was moved away with the batch at {batch.base_offset} of epoch {batch.epoch},"
                " which the leader does not have, no receipt says so (losses)"
            )
