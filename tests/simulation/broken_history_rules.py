"""Bugs from Kafka's history, each reintroduced by a patch: the third part of the table of `test_broken_data_rules`.

The meaning of each number, and the rules of other tables that are such bugs too, are in `kafka_history`.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.controller import elections
from fenceline.controller.elections import Election
from fenceline.log.core import checkpoints
from fenceline.log.core.checkpoints import BadCheckpoint
from fenceline.log.core.disk import Disk
from fenceline.log.core.errors import CorruptLog
from fenceline.log.partition import truncation
from fenceline.log.recovery import recovery
from fenceline.node.replication.replicas import Replicas
from fenceline.replica.leader import LeaderState
from fenceline.testing.simulation.disk import LifeDisk
from tests.simulation.broken_data_rules import breaks
from tests.simulation.broken_election_rules import NO_SEED, RULES

__all__ = ("NO_SEED", "RULES")


# -- logs and epochs ---------------------------------------------------------------------------------------------------


@breaks(0, "high watermark", "2026-11-23")
def _kafka_9491_a_full_truncation_moves_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    begin = truncation.truncate_fully_and_start_at

    def keep(log: Any, offset: int, **more: Any) -> Any:
        before = log.high_watermark
        found = begin(log, offset, **more)
        log.high_watermark = before
        return found

    patch.setattr(truncation, "truncate_fully_and_start_at", keep)


# -- in-sync sets ------------------------------------------------------------------------------------------------------


@breaks(184, "StrongIsr", "2026-11-30")
def _kafka_7128_a_joining_follower_has_reached_this_epoch(patch: pytest.MonkeyPatch) -> None:
    """Reaching the high watermark was enough, which a new leader does not know yet."""
    patch.setattr(
        LeaderState,
        "_has_reached_this_epoch",
        lambda self, progress: progress.log_end_offset >= self.high_watermark,
    )


# -- the controller ----------------------------------------------------------------------------------------------------


@breaks(18, "LeaderInIsr", "2026-11-23")
def _kafka_9866_the_preferred_leader_is_in_sync(patch: pytest.MonkeyPatch) -> None:
    elect = elections._elect

    def preferred(partition: Any, replicas: Any, isr: Any, elr: Any, is_clean: Any, may_lead: Any, *more: Any) -> Any:
        if more[-1] is Election.PREFERRED and replicas and may_lead(replicas[0]):
            return replicas[0], False
        return elect(partition, replicas, isr, elr, is_clean, may_lead, *more)

    patch.setattr(elections, "_elect", preferred)


@breaks(17, "replicas", "2026-11-23")
def _kafka_9672_an_in_sync_member_is_a_replica(patch: pytest.MonkeyPatch) -> None:
    complete = elections._complete_reassignment

    def superset(isr: Any, replicas: Any, adding: Any, removing: Any) -> Any:
        kept, target, adding, removing = complete(isr, replicas, adding, removing)
        return (isr, target, adding, removing) if target != replicas else (kept, target, adding, removing)

    patch.setattr(elections, "_complete_reassignment", superset)


# -- replicas that leave -----------------------------------------------------------------------------------------------


@breaks(108, "WeakIsr", "2026-11-29")
def _kafka_12403_the_state_of_a_deleted_topic_is_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "_drop", lambda self, topic: None)


@breaks(41, "a node ends", "2026-11-23")
def _kafka_16541_an_epoch_file_is_complete_before_it_is_renamed(patch: pytest.MonkeyPatch) -> None:
    """With the behaviour that made it harmful: a log with an unreadable file was not opened. Here it is rebuilt."""
    fsync, read_epochs = LifeDisk.fsync, checkpoints.read_epochs

    def skip(self: LifeDisk, fd: int) -> None:
        if "leader-epoch-checkpoint" not in self._descriptors[fd]:
            fsync(self, fd)

    def refuse(disk: Disk, path: str) -> list[tuple[int, int]]:
        try:
            return read_epochs(disk, path)
        except BadCheckpoint as error:
            raise CorruptLog(path, 0, str(error), "Remove the file.") from error

    patch.setattr(LifeDisk, "fsync", skip)
    patch.setattr(recovery, "read_epochs", refuse)
