"""Holes that an audit found, each reintroduced by a patch: the fourth part of the table of `test_broken_data_rules`.

No seed had detected them: no simulated cluster had an operator who deletes topics and records, and no check covered
clean shutdown files.
"""

from __future__ import annotations

from typing import Final

import pytest

from fenceline.client.consumer import group
from fenceline.client.consumer.auto_commit import AutoCommit
from fenceline.client.consumer.consumer_offsets import ConsumerOffsets, PendingCommit
from fenceline.client.core.cluster import Purpose
from fenceline.log.core.flush import FlushWork
from fenceline.log.directories import log_dir_offsets
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dir_offsets import LogDirOffsets
from fenceline.log.partition.state import LogState
from fenceline.node.losses import removed_replicas
from fenceline.node.replication import leader_link
from fenceline.node.replication.leader_duties import Duties
from fenceline.node.replication.replication import Replication
from fenceline.replica.leader import LeaderState
from fenceline.testing.simulation.brokers_members import GROUP
from tests.simulation.broken_data_rules import breaks
from tests.simulation.broken_history_rules import NO_SEED, RULES

__all__ = ("NO_SEED", "RULES")

_BOUND_BYTES = 2_000
"""Stands in for 100 MiB, as the batches of a story stand in for large ones."""
_STOPS: Final = {
    "stop_s": "0.3",
    "down_s": "0.05",
    "partition_s": "0.8",
    "one_way_chance": "0",
    "controllers": "3",
    "crash_s": "0",
    "crash_calls": "0",
    "full_s": "0",
    "max_job_ms": "5",
}
"""Nodes that stop and start all the time, and often without a quorum."""
_UNCLEAN: Final = {
    "strand_s": "0.7",
    "unclean": "1",
    "replicas": "2",
    "min_isr": "1",
    "controllers": "1",
    "operations": "reassign,reassign,cancel reassignment,unclean election",
    "operate_s": "0.05",
    "topics": "1",
    "partitions": "1",
    "max_delay_ms": "50",
    "think_ms": "50",
    "lag_s": "0.4",
    "crash_s": "0",
    "crash_calls": "0",
    "full_s": "0",
    "liveness_s": "30",
}
"""Unclean elections, and changes of the same partitions at any moment after them."""


@breaks(0, "clean mark", "2026-11-28", scenario="operations", **_STOPS)
def _b1_a_start_that_never_registered_leaves_the_clean_mark(patch: pytest.MonkeyPatch) -> None:
    """It wrote its own file, without a broker epoch: the next start counted as unclean."""

    def overwrite(self: LogDir) -> None:
        try:
            if self.clean:
                self._mark_clean(self.broker_epoch)
        finally:
            self._unlock()

    patch.setattr(LogDir, "give_back", overwrite)


@breaks(0, "rest", "2026-11-28", scenario="operations", liveness_s="30")
def _b4_answers_are_bounded_by_what_allowed_the_batch(patch: pytest.MonkeyPatch) -> None:
    """A fixed bound outside of the configuration: a response above it closes the connection, and is requested again."""
    patch.setattr(Replication, "_largest_answer", lambda self: _BOUND_BYTES)
    patch.setattr(leader_link, "largest_partition", lambda version, begun: None)


@breaks(9, "rest", "2026-11-28", scenario="operations", **_UNCLEAN)
def _b6_recovered_is_proposed_until_the_controller_has_it(patch: pytest.MonkeyPatch) -> None:
    """Once for each leader epoch: a proposal overtaken by another change of the partition was never retried."""
    patch.setattr(Replication, "_propose_recovered_again", lambda self, replica: None)
    propose = LeaderState.propose_recovered
    patch.setattr(LeaderState, "propose_recovered", lambda self: propose(self) if not self._has_recovered else None)


_BEGINS_ANEW: Final = {
    "operations": "delete records",
    "operate_s": "0.05",
    "topics": "1",
    "partitions": "1",
    "replicas": "3",
    "min_isr": "1",
    "crash_s": "0.5",
    "power_chance": "0",
    "crash_calls": "0",
    "down_s": "0.4",
    "think_ms": "10",
    "checkpoint_ms": "300",
    "flush_ms": "2147483647",
    "full_s": "0",
    "partition_s": "0",
    "pause_s": "0",
    "stop_s": "0",
    "log_dirs": "1",
    "lose_dir_s": "0",
    "groups": "0",
    "compaction": "0",
    "retention": "0",
    "segment_bytes": "0",
    "quiet_s": "0",
    "safety_s": "6",
    "tidy_ms": "300",
    "spoil_s": "0",
}
"""Followers that return below the leader's log start, and end in the middle of their next append."""
_ANEW: Final = {
    "operations": "recreate topic,delete records",
    "operate_s": "0.2",
    "topics": "1",
    "crash_s": "0.5",
    "power_chance": "0",
    "down_s": "0.05",
    "think_ms": "10",
    "checkpoint_ms": "500",
    "full_s": "0",
    "partition_s": "0",
    "pause_s": "0",
    "log_dirs": "1",
    "lose_dir_s": "0",
    "groups": "0",
    "compaction": "0",
    "retention": "0",
    "segment_bytes": "0",
    "drop_s": "0",
    "replicas": "2",
}
"""Topics that are recreated, and processes that end between two checkpoints."""


@breaks(22, "rest", "2026-11-28", scenario="operations", **_BEGINS_ANEW)
def _b2_nothing_is_appended_below_the_durable_recovery_point(patch: pytest.MonkeyPatch) -> None:
    """A follower that restarts its log within a batch appends below the recovery point of its checkpoint."""
    patch.setattr(log_dir_offsets, "recovery_point_to_write", lambda log: log.recovery_point)
    patch.setattr(LogState, "_check_recovery_point", lambda self, base: None)


@breaks(5, "log start", "2026-11-29", scenario="operations", **_ANEW)
def _b3_a_checkpoint_belongs_to_one_directory(patch: pytest.MonkeyPatch) -> None:
    """It belonged to a name, and a recreated topic took over the offsets of the previous one."""
    patch.setattr(LogDirOffsets, "applies_to", lambda self, topic_partition, directory: True)


_TORN_APART: Final = {"drop_s": "0.25", "crash_s": "0.8", "down_s": "0.3", "partitions": "2", "controllers": "1"}
"""Responses of coordinators are lost, so that commits are retried while the group rebalances."""


@breaks(1, "commits", "2026-11-29", scenario="members", **_TORN_APART)
def _b5_a_commit_belongs_to_the_generation_that_made_it(patch: pytest.MonkeyPatch) -> None:
    """Its retry was sent with the generation of the member at that time."""

    async def send(self: ConsumerOffsets, made: PendingCommit, timeout_ms: float | None) -> None:
        member, deadline = self._member, self._deadline(timeout_ms)
        if member is None or not made.offsets:
            return

        async def attempt() -> None:
            await group.commit_once(
                self.cluster, GROUP, made.offsets, deadline, membership=member.membership, purpose=Purpose.GROUP
            )

        await self.cluster.retrying(deadline, attempt)

    patch.setattr(ConsumerOffsets, "_send_commit", send)
    patch.setattr(AutoCommit, "close", lambda self: None)


@breaks(2, "durability", "2026-11-29", flush_each="1")
def _a_follower_flushes_before_its_fetch_acknowledges(patch: pytest.MonkeyPatch) -> None:
    """`flush.messages=1`: its next fetch was sent while the flush was in progress."""
    patch.setattr(Duties, "flush_first", lambda self, replica, state: False)


@breaks(0, "durability", "2026-11-29", flush_each="1", syncs_whole_disks="1")
def _a_flush_of_many_segments_syncs_their_batches(patch: pytest.MonkeyPatch) -> None:
    """They are synced together with the whole disk, not each by itself."""

    def skip(self: FlushWork) -> None:
        while self.descriptors:
            self.disk.close(self.descriptors.pop())

    patch.setattr(FlushWork, "_sync_batches", skip)


@breaks(NO_SEED, "", "", scenario="operations")
def _e13_an_epoch_that_the_leader_has_forgotten_ends_at_its_start(patch: pytest.MonkeyPatch) -> None:
    """A removed replica took that end for a common one, and its records below it went without a receipt."""
    patch.setattr(
        removed_replicas,
        "is_below_of_leader",
        lambda known, leader_start, agreed_end, clean_since: (
            leader_start < known.log_end_offset or clean_since <= known.latest_epoch
        ),
    )
