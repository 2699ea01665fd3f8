"""Rules of replication, each with a patch that breaks it: bugs that Kafka had, and similar ones.

The table of `test_broken_data_rules`. If a rule has a number of a change, the patch reverts that
change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pytest

from fenceline.controller import alter_partition
from fenceline.controller.partition_requests import NO_BROKER_EPOCH
from fenceline.errors import ErrorCode
from fenceline.log.partition import truncation
from fenceline.log.partition.truncation import Truncated
from fenceline.node.api.fetch import reads as fetch_reads
from fenceline.node.api.fetch.reads import FetchReads
from fenceline.node.api.handlers import offsets
from fenceline.node.replication.leader_link import LeaderLink
from fenceline.node.replication.replica import Replica
from fenceline.node.replication.replica_roles import ReplicaRoles
from fenceline.node.replication.replicas import Replicas
from fenceline.node.replication.replication import Replication
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.fetcher import ReplicaFetcher
from fenceline.replica.follower import CutTo, FollowerPhase, FollowerState, TruncationCause
from fenceline.replica.leader import LeaderState
from fenceline.testing.simulation.brokers_clients import SimulatedConsumer

Patch = Callable[[pytest.MonkeyPatch], None]


class Rule(NamedTuple):
    """How it is broken, a seed and the check that detect it, and when that was last reproduced. `options` override
    drawn ones. Another seed of the scenario may do as well, and after a change of the code another one must."""

    breach: Patch
    seed: int
    check: str
    seen: str
    options: Mapping[str, str]
    scenario: str = "brokers"


RULES: Final[dict[str, Rule]] = {}
NO_SEED: Final = -1
"""No seed is known yet: searched for by `make soak` only."""


def breaks(seed: int, check: str, seen: str, *, scenario: str = "brokers", **options: str) -> Callable[[Patch], Patch]:
    def keep(patch: Patch) -> Patch:
        RULES[patch.__name__.strip("_")] = Rule(patch, seed, check, seen, options, scenario)
        return patch

    return keep


# -- how a follower finds where its log diverges from the leader's -----------------------------------------------------


def _never_asks_about_its_last_epoch(patch: pytest.MonkeyPatch) -> None:
    ask = ReplicaFetcher._ask
    patch.setattr(ReplicaFetcher, "_ask", lambda self, state: ask(self, state)._replace(last_fetched_epoch=NO_EPOCH))


@breaks(2, "WeakIsr", "2026-11-21")
def _kip_101_a_log_is_not_truncated_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    """Before KIP-101: a new follower truncates to its high watermark, which is a round trip behind."""
    _never_asks_about_its_last_epoch(patch)
    follow = LeaderLink.follow

    def cut_first(self: LeaderLink, replica: Replica, leader_epoch: int) -> None:
        follow(self, replica, leader_epoch)
        state = self.fetcher.states[replica.topic_id_bytes, replica.topic_partition.partition]
        state.phase = FollowerPhase.CUTTING
        cut = asyncio.ensure_future(
            self.truncation.cut(replica, CutTo(state, replica.log.high_watermark, TruncationCause.DIVERGENCE))
        )
        self.under_way.add(cut)
        cut.add_done_callback(self.under_way.discard)

    patch.setattr(LeaderLink, "follow", cut_first)


@breaks(15, "WeakIsr", "2026-11-21")
def _kip_279_an_unknown_epoch_is_looked_up(patch: pytest.MonkeyPatch) -> None:
    """KIP-101 alone: one epoch request before the first fetch; the high watermark if the leader lacks the epoch."""
    ask, duty, diverges = ReplicaFetcher._ask, ReplicaFetcher._duty, FollowerState.on_divergence

    def answered(self: ReplicaFetcher) -> dict[int, FollowerState]:
        """States that have received their one response."""
        return self.__dict__.setdefault("answered", {})  # type: ignore[no-any-return]

    def ask_once(self: ReplicaFetcher, state: FollowerState) -> Any:
        wanted = ask(self, state)
        return wanted._replace(last_fetched_epoch=NO_EPOCH) if id(state) in answered(self) else wanted

    def remember(self: ReplicaFetcher, state: FollowerState, fetched: Any, now_ms: int) -> Any:
        if not fetched.error_code:
            answered(self)[id(state)] = state
        return duty(self, state, fetched, now_ms)

    def one_round(self: FollowerState, leader_epoch: int, leader_end: int) -> CutTo:
        cut = diverges(self, leader_epoch, leader_end)
        if leader_epoch == self.log.latest_epoch:
            return cut
        return CutTo(self, self.log.high_watermark, cut.cause)  # type: ignore[attr-defined]

    patch.setattr(ReplicaFetcher, "_ask", ask_once)
    patch.setattr(ReplicaFetcher, "_duty", remember)
    patch.setattr(FollowerState, "on_divergence", one_round)


@breaks(2, "E2, E7", "2026-11-21")
def _kip_320_requests_are_fenced_by_epochs(patch: pytest.MonkeyPatch) -> None:
    """KIP-279 alone: neither the epoch of a request nor the epoch that a response belongs to is checked (G10)."""
    for module in (fetch_reads, offsets):
        patch.setattr(module, "check_leader_epoch", lambda requested, local: ErrorCode.NONE)
    _any_answer_counts(patch)


def _any_answer_counts(patch: pytest.MonkeyPatch) -> None:
    def asking(self: ReplicaFetcher, fetched: Any) -> FollowerState | None:
        state = self.states.get((fetched.topic_id or b"", fetched.index))
        return state if state is not None and state.phase is FollowerPhase.FETCHING else None

    patch.setattr(ReplicaFetcher, "_asking", asking)


@breaks(2, "WeakIsr", "2026-11-21")
def _kip_320_first_try_members_are_counted_once_they_fetch(patch: pytest.MonkeyPatch) -> None:
    """The first design: the high watermark may advance before in-sync members have reached the new epoch."""
    inherit_progress = LeaderState.inherit_progress

    def hope(self: LeaderState, before: LeaderState | None, now_ms: int) -> None:
        inherit_progress(self, before, now_ms)
        for replica, progress in self.followers.items():
            if replica in self.isr and progress.log_end_offset < 0:
                progress.log_end_offset = self.epoch_start_offset

    patch.setattr(LeaderState, "inherit_progress", hope)


@breaks(2, "rest", "2026-11-21")
def _kafka_10706_an_epoch_without_records_is_removed(patch: pytest.MonkeyPatch) -> None:
    """E18: a truncation at or beyond the log end left the epoch in the cache, and the follower retried forever."""
    truncate = truncation.truncate_to

    def keep(log: Any, offset: int) -> Truncated:
        if offset >= log.log_end_offset:
            return Truncated(log.log_end_offset, log.log_end_offset, 0, ())
        return truncate(log, offset)

    patch.setattr(truncation, "truncate_to", keep)


@breaks(2, "G14b, E40", "2026-11-29")
def _g14b_a_high_watermark_decreases_only_with_the_log(patch: pytest.MonkeyPatch) -> None:
    """Kafka's followers adopt the leader's high watermark, higher or lower (E29)."""
    apply = Replica.apply_leader_offsets

    def as_told(self: Replica, high_watermark: int, log_start_offset: int) -> None:
        apply(self, high_watermark, log_start_offset)
        self.log.high_watermark = max(self.log.log_start_offset, min(high_watermark, self.log.log_end_offset))

    patch.setattr(Replica, "apply_leader_offsets", as_told)


# -- what a leader counts ----------------------------------------------------------------------------------------------


@breaks(
    339,
    "StrongIsr",
    "2026-11-29",
    crash_s="0.5",
    power_chance="1",
    down_s="0.05",
    crash_calls="0",
    flush_ms="2147483647",
    topics="1",
    partitions="1",
    replicas="3",
    full_s="0",
    pause_s="0",
)
def _kip_903_an_in_sync_member_is_the_process_that_fetched(patch: pytest.MonkeyPatch) -> None:
    """Broker epochs are not compared: a broker that restarted without its tail joins by its progress before."""
    patch.setattr(
        LeaderState,
        "_is_eligible",
        lambda self, replica, progress: self.rules.eligible(replica) != NO_EPOCH,
    )
    patch.setattr(LeaderState, "_epoch_of", lambda self, replica: NO_BROKER_EPOCH)


@breaks(2, "WeakIsr", "2026-11-21")
def _e31_a_diverging_fetch_does_not_count(patch: pytest.MonkeyPatch) -> None:
    """A fetch that the leader answers with a divergence still advances the follower's progress."""
    diverges = FetchReads._divergence

    def counted(self: Any, replica: Replica, partition: Any) -> Any:
        if replica.leader is not None:
            for progress in replica.leader.followers.values():
                if progress.broker_epoch != NO_EPOCH and partition.fetch_offset > progress.log_end_offset:
                    progress.log_end_offset = min(partition.fetch_offset, replica.log.log_end_offset)
        return diverges(self, replica, partition)

    patch.setattr(FetchReads, "_divergence", counted)


@breaks(24, "StrongIsr", "2026-11-22")
def _e37_the_leader_waits_for_pending_members(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "maximal_isr", property(lambda self: self.isr))
    patch.setattr(LeaderState, "_joins_soon", lambda self, replica, progress, now_ms: False)


@breaks(24, "WeakIsr", "2026-11-22")
def _e37_a_removed_member_counts_until_the_change_is_committed(patch: pytest.MonkeyPatch) -> None:
    propose = LeaderState._propose

    def at_once(self: LeaderState, isr: Any, *, maximal_isr: frozenset[int]) -> Any:
        wanted = frozenset(isr)
        return propose(self, wanted, maximal_isr=wanted)

    patch.setattr(LeaderState, "_propose", at_once)


@breaks(2, "WeakIsr", "2026-11-21")
def _e40_a_member_that_lags_holds_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def advance(self: LeaderState, min_insync_replicas: int, now_ms: int) -> bool:
        if not self.has_enough_replicas(min_insync_replicas) or self.node_id not in self.isr:
            return False
        ends = [
            progress.log_end_offset
            for progress in self.followers.values()
            if now_ms - (progress.last_caught_up_ms or 0) <= 100
        ]
        committed = min([self.log_end_offset, *ends])
        if committed <= self.high_watermark:
            return False
        self.high_watermark = committed
        return True

    patch.setattr(LeaderState, "advance", advance)


@breaks(30, "ELR", "2026-11-21")
def _e40_below_min_isr_nothing_is_committed(patch: pytest.MonkeyPatch) -> None:
    """KIP-966: records committed by fewer replicas may be lost in a clean election of an eligible replica."""
    patch.setattr(LeaderState, "has_enough_replicas", lambda self, min_insync_replicas: True)


@breaks(0, "acknowledgements", "2026-11-21")
def _e42_acks_all_waits_for_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: Replica, end_offset: int, waiter: Any, position: int) -> None:
        asyncio.get_running_loop().call_soon(waiter.committed, position, ErrorCode.NONE)

    patch.setattr(Replica, "when_committed", at_once)


@breaks(4, "E36", "2026-11-29")
def _e36_a_fenced_broker_does_not_join(patch: pytest.MonkeyPatch) -> None:
    """KIP-841."""

    def registered(self: Replication, node_id: int) -> int:
        broker = self._image().brokers.get(node_id)
        return broker.epoch if broker is not None else NO_EPOCH

    patch.setattr(Replication, "eligible_epoch", registered)
    patch.setattr(alter_partition, "_is_eligible", lambda state, member: True)


@breaks(2, "WeakIsr", "2026-11-29")
def _g53_the_state_of_followers_ends_with_the_leadership(patch: pytest.MonkeyPatch) -> None:
    """A leader that is elected again continues with the progress of its followers in its previous term."""
    lead, inherit_progress, end = ReplicaRoles._lead, LeaderState.inherit_progress, Replica.end_leadership
    led: dict[Replica, LeaderState] = {}
    begins: list[Replica] = []

    def remember(self: Replica, code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        if self.leader is not None:
            led[self] = self.leader
        end(self, code)

    def begin(self: ReplicaRoles, replica: Replica, partition: Any) -> None:
        begins[:] = [replica]
        lead(self, replica, partition)

    def reuse(self: LeaderState, before: LeaderState | None, now_ms: int) -> None:
        inherit_progress(self, before, now_ms)
        known = led.pop(begins[0], None)
        if known is not None:
            self.followers.update({each: known.followers[each] for each in self.followers if each in known.followers})

    patch.setattr(ReplicaRoles, "_lead", begin)
    patch.setattr(Replica, "end_leadership", remember)
    patch.setattr(LeaderState, "inherit_progress", reuse)


# -- responses to readers ----------------------------------------------------------------------------------------------


@breaks(20, "KIP-207", "2026-11-21")
def _kip_207_an_end_offset_is_returned_once_it_is_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "hides_end_offset", lambda self, replica_id: False)


@breaks(2, "E2, E7", "2026-11-29")
def _e7_a_parked_fetch_is_checked_again(patch: pytest.MonkeyPatch) -> None:
    checked, diverges = FetchReads._checked, FetchReads._divergence
    read = FetchReads.read
    is_parked: list[bool] = [False]

    def looked(self: Any, request: Any, answer: Any, reader: Any, *, has_just_arrived: bool = False) -> Any:
        is_parked[0] = not has_just_arrived
        return read(self, request, answer, reader, has_just_arrived=has_just_arrived)

    def unchecked(self: Any, request: Any, partition: Any, reader: Any) -> Any:
        if is_parked[0]:
            partition = partition._replace(current_leader_epoch=NO_EPOCH)
        return checked(self, request, partition, reader)

    def undivided(self: Any, replica: Replica, partition: Any) -> Any:
        return None if is_parked[0] else diverges(self, replica, partition)

    patch.setattr(FetchReads, "read", looked)
    patch.setattr(FetchReads, "_checked", unchecked)
    patch.setattr(FetchReads, "_divergence", undivided)


@breaks(0, "E43", "2026-11-21")
def _e43_consumers_read_committed_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fetch_reads, "read_bound", lambda **bounds: bounds["log_end_offset"])


@breaks(0, "V37", "2026-11-29")
def _v37_a_recovering_leader_serves_no_requests(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replica, "is_recovering", property(lambda self: False))


@breaks(92, "readers", "2026-11-21")
def _e49_a_consumer_validates_its_epoch(patch: pytest.MonkeyPatch) -> None:
    """Before KIP-320. It tests the checks themselves: the reader belongs to the simulation."""

    async def trust(self: SimulatedConsumer, place: Any, position: Any) -> int:
        position.led = (place.leader, place.epoch)
        return 0

    patch.setattr(SimulatedConsumer, "_validate", trust)
    patch.setattr(SimulatedConsumer, "_last_epoch", lambda self, position: NO_EPOCH)


@breaks(0, "periodic work", "2026-11-29", scenario="operations")
def _the_first_segment_of_a_log_makes_its_replica_watched(patch: pytest.MonkeyPatch) -> None:
    """Without it a partition that was empty for a while would not be flushed by time, nor lose old segments."""
    patch.setattr(Replicas, "_segment_started", lambda self, topic_partition: None)


@breaks(15, "resting", "2026-11-29", scenario="resting")
def _e5_followers_of_a_resting_leader_are_read_again_after_a_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "stops_resting", lambda self, topic_id, index: None)


@breaks(1, "resting", "2026-11-29", scenario="resting")
def _followers_of_a_resting_leader_are_read_again_once_it_is_opened(patch: pytest.MonkeyPatch) -> None:
    """Without it they would not get its first record."""
    patch.setattr(Replication, "opened", lambda self, replica: None)
