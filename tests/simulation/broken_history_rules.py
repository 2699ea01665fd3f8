"""Bugs from Kafka's history, each put back by a patch: the third part of the table of `test_broken_data_rules`.

What each number is about, and which rules of the other tables are such bugs too, is in `kafka_history`.
"""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.controller import elections
from fenceline.controller.elections import Election
from fenceline.log import truncation
from fenceline.log.errors import StorageError
from fenceline.log.partition_log import PartitionLog
from fenceline.node.isr_changes import IsrChanges
from fenceline.node.replicas import Replicas
from fenceline.replica.fetcher import Fetcher
from fenceline.replica.leader import LeaderState
from fenceline.testing.simulation.disk import LifeDisk

from .broken_data_rules import breaks
from .broken_election_rules import NO_SEED, RULES

__all__ = ("NO_SEED", "RULES")


# -- logs and epochs ---------------------------------------------------------------------------------------------------


@breaks(NO_SEED, "", "")
def _kafka_7415_a_leader_writes_down_where_its_epoch_begins(patch: pytest.MonkeyPatch) -> None:
    """Before it, an epoch began with its first batch: a follower that asked in between was cut too little."""
    patch.setattr(PartitionLog, "assign_epoch", lambda self, epoch: None)


@breaks(0, "high watermark", "2026-11-23")
def _kafka_9491_a_log_that_begins_anew_has_its_high_watermark_there(patch: pytest.MonkeyPatch) -> None:
    begin = truncation.truncate_fully_and_start_at

    def keep(log: Any, offset: int, **more: Any) -> Any:
        before = log.high_watermark
        found = begin(log, offset, **more)
        log._high_watermark = before
        return found

    patch.setattr(truncation, "truncate_fully_and_start_at", keep)


@breaks(NO_SEED, "", "")
def _kafka_14704_a_follower_cuts_before_it_takes_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    duty = Fetcher._duty

    def learn_first(self: Fetcher, state: Any, fetched: Any, now_ms: int) -> Any:
        if fetched.diverging_epoch is not None and fetched.high_watermark > state.log.high_watermark:
            state.log.advance_high_watermark(fetched.high_watermark)
        return duty(self, state, fetched, now_ms)

    patch.setattr(Fetcher, "_duty", learn_first)


@breaks(NO_SEED, "", "")
def _kafka_6683_a_refused_append_leaves_the_producers_unchanged(patch: pytest.MonkeyPatch) -> None:
    """A batch that the disk refused was remembered, and its retry was answered as one that is there."""
    write, check = PartitionLog._write, PartitionLog._seen_before
    asked: dict[int, Any] = {}

    def remember(self: PartitionLog, header: Any, base: int) -> Any:
        asked[id(self)] = (header, base)
        return check(self, header, base)

    def mutate(self: PartitionLog, *arguments: Any) -> Any:
        try:
            return write(self, *arguments)
        except StorageError:
            if id(self) in asked:
                self.producers.record(*asked[id(self)])
            raise

    patch.setattr(PartitionLog, "append_plain", lambda self, records, leader_epoch, now_ms: -1)
    patch.setattr(PartitionLog, "_seen_before", remember)
    patch.setattr(PartitionLog, "_write", mutate)


# -- in-sync sets ------------------------------------------------------------------------------------------------------


@breaks(31, "StrongIsr", "2026-11-23")
def _kafka_7128_who_joins_has_reached_this_epoch(patch: pytest.MonkeyPatch) -> None:
    """To have come to the high watermark was enough, which a new leader does not know yet."""
    patch.setattr(
        LeaderState,
        "_has_reached_this_epoch",
        lambda self, progress: progress.log_end_offset >= self.high_watermark,
    )


@breaks(NO_SEED, "", "")
def _kafka_14010_a_change_that_failed_for_now_is_asked_again(patch: pytest.MonkeyPatch) -> None:
    ask = IsrChanges._ask

    async def once(self: IsrChanges, asked: Any) -> Any:
        await ask(self, asked)
        return {}

    patch.setattr(IsrChanges, "_ask", once)


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
def _kafka_9672_who_is_in_sync_is_a_replica(patch: pytest.MonkeyPatch) -> None:
    complete = elections._complete_reassignment

    def superset(isr: Any, replicas: Any, adding: Any, removing: Any) -> Any:
        kept, target, adding, removing = complete(isr, replicas, adding, removing)
        return (isr, target, adding, removing) if target != replicas else (kept, target, adding, removing)

    patch.setattr(elections, "_complete_reassignment", superset)


@breaks(NO_SEED, "", "")
def _kafka_15665_a_reassignment_ends_when_its_targets_are_in_sync(patch: pytest.MonkeyPatch) -> None:
    def at_once(isr: Any, replicas: Any, adding: Any, removing: Any) -> Any:
        target = tuple(replica for replica in replicas if replica not in removing)
        kept = tuple(replica for replica in isr if replica not in removing)
        return (kept, target, (), ()) if kept else (isr, replicas, adding, removing)

    patch.setattr(elections, "_complete_reassignment", at_once)


# -- replicas that leave -----------------------------------------------------------------------------------------------


@breaks(NO_SEED, "", "")
def _kafka_13198_a_replica_that_moved_away_stops(patch: pytest.MonkeyPatch) -> None:
    take = Replicas._take_change

    def stay(self: Replicas, changed: Any) -> None:
        if self._node_id in changed.after.replicas:
            take(self, changed)

    patch.setattr(Replicas, "_take_change", stay)


@breaks(36, "E64", "2026-11-23")
def _kafka_12403_the_state_of_a_deleted_topic_goes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replicas, "_drop", lambda self, topic: None)


@breaks(30, "a node ends", "2026-11-23")
def _kafka_16541_an_epoch_file_is_whole_before_it_gets_its_name(patch: pytest.MonkeyPatch) -> None:
    fsync = LifeDisk.fsync

    def skip(self: LifeDisk, fd: int) -> None:
        if "leader-epoch-checkpoint" not in self._descriptors[fd]:
            fsync(self, fd)

    patch.setattr(LifeDisk, "fsync", skip)
