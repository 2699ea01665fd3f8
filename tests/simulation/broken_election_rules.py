"""Rules of elections and of starting nodes, each with a patch that breaks it: the second half of the table.

The rules of replication are in `broken_data_rules`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from fenceline.controller import alter_partition, elections, partition_changes, registrations
from fenceline.controller.partition_changes import PartitionChanges
from fenceline.errors import ErrorCode
from fenceline.log.partition.state import LogState
from fenceline.metadata.image import LeaderRecoveryState
from fenceline.node.api.fetch.reads import FetchReads
from fenceline.node.controller import broker_lifecycle
from fenceline.node.metadata import metadata_log
from fenceline.node.metadata.metadata_log import MetadataLog
from fenceline.node.replication import isr_changes
from fenceline.node.replication.follower_truncation import FollowerTruncation
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.leader import LeaderState
from tests.simulation.broken_data_rules import NO_SEED, RULES, breaks

__all__ = ("NO_SEED", "RULES")

_CUT_AND_TORN: Final = {
    "replicas": "3",
    "controllers": "1",
    "topics": "1",
    "partitions": "2",
    "down_s": "0.05",
    "power_chance": "1",
    "swap_s": "0.3",
    "lag_s": "0.3",
    "crash_s": "0.6",
    "segment_ms": "100",
    **dict.fromkeys(
        ("full_s", "partition_s", "drop_s", "stop_s", "pause_s", "jump_s", "crash_calls", "churn_s", "unclean"), "0"
    ),
    "deletes": "0",
}
"""Leaders that move and lose their power all the time, and nothing else."""

# -- who is elected ----------------------------------------------------------------------------------------------------


@breaks(9, "ELR", "2026-11-29")
def _kip_966_the_last_replica_standing_may_have_lost_its_tail(patch: pytest.MonkeyPatch) -> None:
    """A broker that returns after an unclean stop counts as having every record (G47, K23)."""
    leave = PartitionChanges.leave

    def clean(self: PartitionChanges, partitions: Any, broker: int, **more: Any) -> None:
        leave(self, partitions, broker, **{**more, "unclean": False})

    patch.setattr(PartitionChanges, "leave", clean)


@breaks(4, "StrongIsr", "2026-11-21")
def _a_restarted_broker_is_in_no_in_sync_set(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(registrations, "_leave_partitions", lambda state, existing, previous: [])


@breaks(1, "V9", "2026-11-21")
def _v9_an_unclean_election_is_recorded(patch: pytest.MonkeyPatch) -> None:
    """V36: a leader elected from outside of the in-sync set is RECOVERING in every case."""
    change = elections.change_partition

    def silent(*arguments: Any, **targets: Any) -> Any:
        record = change(*arguments, **targets)
        if record is not None and record.leader_recovery_state == LeaderRecoveryState.RECOVERING:
            record = replace(record, leader_recovery_state=NO_EPOCH)
        return record

    patch.setattr(partition_changes, "change_partition", silent)


@breaks(87, "V9", "2026-11-22")
def _v39_a_recovering_leader_is_alone_in_sync(patch: pytest.MonkeyPatch) -> None:
    """V39 at the leader, which serves followers and proposes to add them; V21 at the controller."""
    propose, checked, fault = LeaderState.propose_expansion, FetchReads._checked, alter_partition._fault
    topics = isr_changes._topics

    def serves(self: FetchReads, request: Any, partition: Any, reader: Any) -> Any:
        replica = self.replica_of(partition)
        leader = replica.leader if replica is not None and request.replica_id >= 0 else None
        if leader is None or not leader.is_recovering:
            return checked(self, request, partition, reader)
        leader.is_recovering = False
        try:
            return checked(self, request, partition, reader)
        finally:
            leader.is_recovering = True

    def grows(self: LeaderState, *given: Any, **named: Any) -> Any:
        was, self.is_recovering = self.is_recovering, False
        proposal = propose(self, *given, **named)
        self.is_recovering = was
        return proposal

    def reported(asked: Any) -> Any:
        recovering = {
            (replica.topic_id, replica.topic_partition.partition)
            for replica, proposal in asked.items()
            if replica.replica is not None and replica.is_recovering and proposal.growth
        }
        return tuple(
            (
                topic_id,
                tuple(
                    replace(change, leader_recovery_state=LeaderRecoveryState.RECOVERING)
                    if (topic_id, change.index) in recovering
                    else change
                    for change in changes
                ),
            )
            for topic_id, changes in topics(asked)
        )

    def takes(state: Any, partition: Any, broker_id: int, wanted: Any) -> Any:
        found = fault(state, partition, broker_id, wanted)
        is_growth = wanted.leader_recovery_state == LeaderRecoveryState.RECOVERING and len(wanted.new_isr) > 1
        return None if found is ErrorCode.INVALID_REQUEST and is_growth else found

    patch.setattr(LeaderState, "propose_expansion", grows)
    patch.setattr(FetchReads, "_checked", serves)
    patch.setattr(isr_changes, "_topics", reported)
    patch.setattr(alter_partition, "_fault", takes)


@breaks(105, "E36", "2026-11-30")
def _v18_an_in_sync_set_changes_only_from_the_newest_version(patch: pytest.MonkeyPatch) -> None:
    fault = alter_partition._fault

    def old_ones_too(state: Any, partition: Any, broker_id: int, wanted: Any) -> Any:
        found = fault(state, partition, broker_id, wanted)
        return None if found is ErrorCode.INVALID_UPDATE_VERSION else found

    patch.setattr(alter_partition, "_fault", old_ones_too)


# -- found by this scenario --------------------------------------------------------------------------------------------


@breaks(6, "a node ends", "2026-11-21")
def _a_metadata_snapshot_has_durable_records_only(patch: pytest.MonkeyPatch) -> None:
    """Brokers that do not vote do not flush by themselves: after a power failure the log ended below its snapshot. A
    start now begins at the snapshot in that case; the patch removes this, too."""
    open_log = metadata_log._open_log
    patch.setattr(MetadataLog, "unflushed_before", lambda self, end_offset: [])
    patch.setattr(metadata_log, "_open_log", lambda *given, **named: open_log(*given, **named | {"votes": True}))


@breaks(17, "rest", "2026-11-22", **_CUT_AND_TORN)
def _a_truncation_lowers_the_recovery_point(patch: pytest.MonkeyPatch) -> None:
    """Records appended after a truncation and torn by a power failure were below the old recovery point: the partition
    stayed offline. The log itself now rejects such an append; the patch removes this, too."""

    async def later(self: FollowerTruncation) -> None:
        return None

    patch.setattr(FollowerTruncation, "_save_recovery_point", later)
    patch.setattr(LogState, "_check_recovery_point", lambda self, base: None)


@breaks(62, "a node ends", "2026-11-21")
def _a_full_disk_of_the_controller_is_retried(patch: pytest.MonkeyPatch) -> None:
    """A broker that started meanwhile exited."""
    patch.setattr(broker_lifecycle, "_RETRIABLE", broker_lifecycle._RETRIABLE - {ErrorCode.KAFKA_STORAGE_ERROR})
