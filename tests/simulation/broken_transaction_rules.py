"""Rules of transactions, each with a patch that breaks it: bugs that Kafka had, and similar ones. The fifth part of the
table of `test_broken_data_rules`.

If a rule has the number of an issue, the patch brings back what that issue repaired (`transactions.md X64` to `X66`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.groups.coordinator import GroupCoordinator
from fenceline.groups.messages import FetchedOffset, FetchOffsetsRequest, FetchOffsetsResponse, GroupAnswer
from fenceline.groups.offsets.offsets import OffsetStore
from fenceline.log.compaction.compaction import Compaction
from fenceline.log.compaction.transactions import CleanedTransactions
from fenceline.log.core.guards import WITHOUT_VERIFICATION, VerificationGuards
from fenceline.log.core.producer_state import ProducerStates
from fenceline.log.partition.partition_log import PartitionLog
from fenceline.node.api.fetch import reads
from fenceline.node.api.handlers.transaction_markers import TransactionMarkers
from fenceline.node.coordination.appends import CoordinatorAppends
from fenceline.node.coordination.loading import Loading
from fenceline.node.coordination.read_barriers import ReadBarriers
from fenceline.node.losses.lost_transactions import LostTransactions
from fenceline.node.transactions.marker_sender import MarkerSender
from fenceline.node.transactions.recovery import TransactionRecovery
from fenceline.node.transactions.verification import Verification
from fenceline.testing.simulation.brokers_transactions import Transactor
from fenceline.transactions import decisions, shard
from fenceline.transactions.coordinator import TransactionCoordinator
from fenceline.transactions.messages import EndMarkers, TransactionEnded
from fenceline.transactions.shard import StatePartition
from fenceline.transactions.states import TransactionState
from tests.simulation.broken_data_rules import breaks
from tests.simulation.broken_holes_rules import NO_SEED, RULES

__all__ = ("NO_SEED", "RULES")

_IN: Final = "transactions"


# --- the coordinator: epochs and fencing ----------------------------------------


@breaks(1, "LEFT_OPEN", "2026-11-28", scenario=_IN)
def _kafka_6119_a_time_out_raises_the_epoch(patch: pytest.MonkeyPatch) -> None:
    fenced = decisions.fenced

    def same_epoch(known: Any, level: int, ids: Any, wall_ms: int) -> Any:
        return replace(fenced(known, level, ids, wall_ms), epoch=known.epoch)

    patch.setattr(decisions, "fenced", same_epoch)


@breaks(1, "NOT_REQUESTED", "2026-11-28", scenario=_IN)
def _a_new_producer_raises_the_epoch(patch: pytest.MonkeyPatch) -> None:
    next_producer = decisions._next_producer

    def same(known: Any, expected: Any, ids: Any) -> Any:
        return known if known.epoch >= 0 else next_producer(known, expected, ids)

    patch.setattr(decisions, "_next_producer", same)


@breaks(0, "NOT_REQUESTED", "2026-11-28", scenario=_IN)
def _a_new_producer_ends_the_open_transaction(patch: pytest.MonkeyPatch) -> None:
    init = decisions.init_producer

    def as_if_at_rest(known: Any, *others: Any) -> Any:
        is_open = known.state is TransactionState.ONGOING
        return init(replace(known, state=TransactionState.EMPTY) if is_open else known, *others)

    patch.setattr(decisions, "init_producer", as_if_at_rest)
    patch.setattr(shard, "check_step", lambda before, after: None)


@breaks(18, "NOT_REQUESTED", "2026-11-29", scenario=_IN)
def _a_new_producer_waits_for_a_decided_transaction(patch: pytest.MonkeyPatch) -> None:
    init = decisions.init_producer

    def at_once(known: Any, *others: Any) -> Any:
        is_prepared = known.state.is_prepared
        return init(replace(known, state=TransactionState.EMPTY) if is_prepared else known, *others)

    patch.setattr(decisions, "init_producer", at_once)
    patch.setattr(shard, "check_step", lambda before, after: None)


def _any_epoch(known: Any, identity: Any) -> None:
    if identity.producer_id != known.producer_id:
        raise PeerError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)


@breaks(24, "NOT_REQUESTED", "2026-11-29", scenario=_IN, transaction_version="1")
def _kafka_9600_an_end_is_of_the_current_epoch(patch: pytest.MonkeyPatch) -> None:
    end = decisions.end_transaction

    def of_any(known: Any, request: Any, *others: Any) -> Any:
        if request.identity.producer_id == known.producer_id:
            request = replace(request, identity=known.identity)
        return end(known, request, *others)

    patch.setattr(decisions, "end_transaction", of_any)


@breaks(1, "COPIED_TWICE", "2026-11-29", scenario=_IN)
def _partitions_are_added_by_the_current_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decisions, "check_identity", _any_epoch)


@breaks(0, "LEFT_OPEN", "2026-11-28", scenario=_IN, transaction_version="2")
def _kip_890_every_end_raises_the_epoch(patch: pytest.MonkeyPatch) -> None:
    bumped = decisions._bumped

    def same_epoch(known: Any, *others: Any) -> Any:
        change = bumped(known, *others)
        after = replace(change.after, epoch=known.epoch)
        return replace(change, after=after, outcome=TransactionEnded(ErrorCode.NONE, after.identity))

    patch.setattr(decisions, "_bumped", same_epoch)


@breaks(1, "LEFT_OPEN", "2026-11-28", scenario=_IN, last_epoch="6")
def _kafka_20090_a_producer_id_ends_with_its_epochs(patch: pytest.MonkeyPatch) -> None:
    """The last epoch stays, and fences nobody."""
    next_producer, bumped, fenced = decisions._next_producer, decisions._bumped, decisions.fenced

    def stuck(known: Any, expected: Any, ids: Any) -> Any:
        if known.epoch >= decisions.LAST_EPOCH_OF_PRODUCERS:
            return known
        return next_producer(known, expected, ids)

    def same_id(known: Any, *others: Any) -> Any:
        change = bumped(known, *others)
        after = replace(change.after, next_producer_id=-1, epoch=min(change.after.epoch, _last()))
        return replace(change, after=after, outcome=TransactionEnded(ErrorCode.NONE, after.identity))

    def fenced_in_place(known: Any, *others: Any) -> Any:
        after = fenced(known, *others)
        return replace(after, next_producer_id=-1, epoch=min(after.epoch, _last()))

    def _last() -> int:
        return decisions.LAST_EPOCH_OF_PRODUCERS

    patch.setattr(decisions, "_next_producer", stuck)
    patch.setattr(decisions, "_bumped", same_id)
    patch.setattr(decisions, "fenced", fenced_in_place)


# --- the coordinator: states ----------------------------------------


@breaks(16, "LEFT_OPEN", "2026-11-29", scenario=_IN)
def _kafka_18575_partitions_are_not_added_while_markers_are_written(patch: pytest.MonkeyPatch) -> None:
    add = decisions.add_partitions

    def accepted(known: Any, request: Any, level: int, wall_ms: int) -> Any:
        if not known.state.is_prepared:
            return add(known, request, level, wall_ms)
        decisions.check_identity(known, request.identity)
        return decisions.PartitionsAdded((ErrorCode.NONE,) * len(request.partitions))

    patch.setattr(decisions, "add_partitions", accepted)


@breaks(0, "LEFT_OPEN", "2026-11-28", scenario=_IN)
def _partitions_are_added_to_those_before(patch: pytest.MonkeyPatch) -> None:
    add = decisions.add_partitions

    def instead(known: Any, request: Any, level: int, wall_ms: int) -> Any:
        decision = add(known, request, level, wall_ms)
        if isinstance(decision, decisions.Change):
            return replace(decision, after=replace(decision.after, partitions=frozenset(request.partitions)))
        return decision

    patch.setattr(decisions, "add_partitions", instead)


@breaks(1, "COPIED_TWICE", "2026-11-28", scenario=_IN)
def _an_end_repeats_the_decision_or_is_rejected(patch: pytest.MonkeyPatch) -> None:
    """A commit after an abort is answered as if it had been one."""
    end = decisions.end_transaction

    def any_end(known: Any, request: Any, *others: Any) -> Any:
        is_decided = known.state not in (TransactionState.ONGOING, TransactionState.EMPTY)
        return end(known, replace(request, commit=known.state.commits) if is_decided else request, *others)

    patch.setattr(decisions, "end_transaction", any_end)


@breaks(0, "coordinator", "2026-11-28", scenario=_IN)
def _a_transaction_times_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StatePartition, "_on_timeout", lambda self, transactional_id, now: None)


@breaks(18, "LEFT_OPEN", "2026-11-29", scenario=_IN)
def _kafka_9777_a_completion_that_is_rejected_is_tried_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StatePartition, "_arm_retry", lambda self, transactional_id, completion, now: None)
    patch.setattr(StatePartition, "_is_armed", lambda self, transactional_id: True)


@breaks(162, "receipts", "2026-11-29", scenario=_IN)
def _a_rejected_record_changes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StatePartition, "rejected", lambda self, write_id, code, now: self.committed(write_id, now))


# --- the coordinator: its log ----------------------------------------


@breaks(38, "receipts", "2026-11-29", scenario=_IN)
def _a_response_waits_for_the_replicas(patch: pytest.MonkeyPatch) -> None:
    """The state is answered as soon as the leader has it."""
    start = CoordinatorAppends.start

    def at_once(self: CoordinatorAppends, partition: int, append: Any, ms: int, completed: Any, late: Any) -> None:
        if self._topic != "__transaction_state":
            start(self, partition, append, ms, completed, late)
            return
        told: list[bool] = []

        def first(error: PeerError | None) -> None:
            if not told:
                told.append(True)
                completed(error)

        start(self, partition, append, ms, first, late)
        asyncio.get_running_loop().call_later(0.0005, first, None)

    patch.setattr(CoordinatorAppends, "start", at_once)


@breaks(3, "transactions", "2026-11-28", scenario=_IN)
def _a_coordinator_that_lost_its_partition_answers_no_more(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransactionCoordinator, "resign", lambda self, partition: [])


@breaks(3, "LEFT_OPEN", "2026-11-28", scenario=_IN)
def _a_new_coordinator_goes_on_with_the_markers(patch: pytest.MonkeyPatch) -> None:
    follow = StatePartition._follow

    def only_ongoing(self: StatePartition, now: Any) -> None:
        for transactional_id, entry in self._entries.items():
            if not entry.current.state.is_prepared:
                follow(self, transactional_id, entry, now)
            else:
                entry.completion = shard._Completion(set(entry.current.partitions))

    patch.setattr(StatePartition, "resume", only_ongoing)
    patch.setattr(StatePartition, "_is_armed", lambda self, transactional_id: True)


@breaks(3, "coordinator", "2026-11-28", scenario=_IN)
def _a_new_coordinator_goes_on_with_time_outs(patch: pytest.MonkeyPatch) -> None:
    def only_prepared(self: StatePartition) -> Iterator[tuple[str, shard._Entry]]:
        for transactional_id, entry in self._entries.items():
            if entry.current.state.is_prepared:
                yield transactional_id, entry

    patch.setattr(StatePartition, "_loaded", only_prepared)


# --- end markers ----------------------------------------


@breaks(3, "coordinator", "2026-11-29", scenario=_IN)
def _a_transaction_is_complete_when_all_markers_are_written(patch: pytest.MonkeyPatch) -> None:
    written = StatePartition.markers_written

    def first_is_enough(self: StatePartition, transactional_id: str, identity: Any, results: Any, now: Any) -> None:
        entry = self._entries.get(transactional_id)
        if entry is not None and entry.completion is not None and ErrorCode.NONE in results.values():
            entry.completion.unwritten &= set(results)
            results = dict.fromkeys(results, ErrorCode.NONE)
        written(self, transactional_id, identity, results, now)

    patch.setattr(StatePartition, "markers_written", first_is_enough)


@breaks(1, "LOST_WRITE", "2026-11-29", scenario=_IN)
def _kafka_17877_a_marker_that_failed_is_written_again(patch: pytest.MonkeyPatch) -> None:
    """Every answer counts, also that of a broker that leads no more."""
    written = StatePartition.markers_written

    def any_code(self: StatePartition, transactional_id: str, identity: Any, results: Any, now: Any) -> None:
        written(self, transactional_id, identity, dict.fromkeys(results, ErrorCode.NONE), now)

    patch.setattr(StatePartition, "markers_written", any_code)


@breaks(0, "transactions", "2026-11-28", scenario=_IN)
def _a_broker_that_does_not_answer_gets_its_markers_again(patch: pytest.MonkeyPatch) -> None:
    finished = MarkerSender.finished

    def lost(self: MarkerSender, markers: EndMarkers, codes: Mapping[Any, ErrorCode]) -> None:
        known = {each: code for each, code in codes.items() if code is not ErrorCode.NETWORK_EXCEPTION}
        if known:
            finished(self, markers, known)

    patch.setattr(MarkerSender, "finished", lost)


@breaks(2, "transactions", "2026-11-29", scenario=_IN)
def _kafka_16352_the_code_of_one_marker_does_not_hide_the_others(patch: pytest.MonkeyPatch) -> None:
    finished = MarkerSender.finished

    def first_only(self: MarkerSender, markers: EndMarkers, codes: Mapping[Any, ErrorCode]) -> None:
        finished(self, markers, dict(list(codes.items())[:1]))

    patch.setattr(MarkerSender, "finished", first_only)


@breaks(265, "LEFT_OPEN", "2026-11-30", scenario=_IN)
def _a_marker_is_answered_when_it_is_replicated(patch: pytest.MonkeyPatch) -> None:
    async def no_wait(self: TransactionMarkers, replica: Any, index: int, acknowledged: Any, flush: Any) -> ErrorCode:
        replica.forget(acknowledged, index)
        return ErrorCode.NONE

    patch.setattr(TransactionMarkers, "_wait", no_wait)


@breaks(0, "transactions", "2026-11-28", scenario=_IN, transaction_version="2")
def _kafka_19999_a_marker_may_be_repeated(patch: pytest.MonkeyPatch) -> None:
    def strict(self: ProducerStates, header: Any, marker: Any, where: object, end: int, version: int) -> None:
        producer = self.get(header.producer_id)
        if producer is not None:
            self._check_epoch(producer, header.producer_epoch, where, end, strictly_newer=version > 1)

    patch.setattr(ProducerStates, "check_marker", strict)


@breaks(61, "LOST_WRITE", "2026-11-29", scenario=_IN)
def _markers_are_of_the_decision(patch: pytest.MonkeyPatch) -> None:
    """Those that are sent again abort."""
    retry = StatePartition._retry

    def aborting(self: StatePartition, transactional_id: str, now: Any) -> None:
        retry(self, transactional_id, now)
        self._duties[:] = [
            replace(duty, markers=replace(duty.markers, commit=False)) if hasattr(duty, "markers") else duty
            for duty in self._duties
        ]

    patch.setattr(StatePartition, "_retry", aborting)


# --- partitions: verification and sequences ----------------------------------------


@breaks(115, "LEFT_OPEN", "2026-11-29", scenario=_IN)
def _kafka_12671_a_late_batch_opens_no_transaction(patch: pytest.MonkeyPatch) -> None:
    """No question to the coordinator, as before KIP-890."""
    patch.setattr(VerificationGuards, "valid", lambda self, producer_id, epoch, guard: WITHOUT_VERIFICATION)
    _never_asks(patch)


def _never_asks(patch: pytest.MonkeyPatch) -> None:
    ask = Verification.ask

    async def yes(self: Verification, name: str, identity: Any, partitions: Any, *, verify_only: bool) -> Any:
        if not verify_only:
            return await ask(self, name, identity, partitions, verify_only=False)
        return dict.fromkeys(partitions, ErrorCode.NONE)

    patch.setattr(Verification, "ask", yes)


@breaks(0, "InvariantBroken", "2026-11-28", scenario=_IN)
def _a_batch_is_written_once(patch: pytest.MonkeyPatch) -> None:
    """No duplicate is found: neither is a sequence wrong."""
    check = ProducerStates.check

    def forgetful(self: ProducerStates, header: Any, *others: Any) -> Any:
        producer = self.get(header.producer_id)
        if producer is not None and producer.epoch == header.producer_epoch:
            producer.forget_batches()
            producer.remember(0, header.base_sequence - 1, 0, 0, 0)
        return check(self, header, *others)

    patch.setattr(ProducerStates, "check", forgetful)


# --- partitions: what readers get ----------------------------------------


@breaks(0, "STABLE_OFFSET_AHEAD", "2026-11-28", scenario=_IN)
def _a_reader_gets_decided_records_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PartitionLog, "last_stable_offset", property(lambda self: self.high_watermark))


@breaks(0, "ABORTED_READ", "2026-11-28", scenario=_IN)
def _a_reader_is_told_what_was_aborted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reads, "aborted_in", lambda segments, offset, end: [])


@breaks(3, "ABORTED_READ", "2026-11-28", scenario=_IN)
def _an_aborted_transaction_is_found_by_its_last_offset(patch: pytest.MonkeyPatch) -> None:
    """Only if it begins in what is read."""
    aborted_in = reads.aborted_in

    def begun(segments: Any, offset: int, end: int) -> Any:
        return [each for each in aborted_in(segments, offset, end) if each.first_offset >= offset]

    patch.setattr(reads, "aborted_in", begun)


# --- partitions: compaction ----------------------------------------

_COMPACTED: Final = {"compaction": "1", "segment_bytes": "500", "tidy_ms": "1000"}


@breaks(0, "ABORTED_READ", "2026-11-29", scenario=_IN, **_COMPACTED)
def _kafka_8351_a_transaction_may_span_groups_of_segments(patch: pytest.MonkeyPatch) -> None:
    rewrite = Compaction._rewrite

    def forgetful(self: Compaction, old: Any, keys: Any, transactions: CleanedTransactions) -> Any:
        transactions._aborted.clear()
        return rewrite(self, old, keys, transactions)

    patch.setattr(Compaction, "_rewrite", forgetful)


@breaks(0, "logs", "2026-11-29", scenario=_IN, **_COMPACTED)
def _kafka_13727_a_marker_stays_while_its_data_do(patch: pytest.MonkeyPatch) -> None:
    is_removable = CleanedTransactions.is_removable_marker

    def always(self: CleanedTransactions, header: Any, content: memoryview) -> bool:
        is_removable(self, header, content)
        return True

    patch.setattr(CleanedTransactions, "is_removable_marker", always)


# --- groups ----------------------------------------


@breaks(1, "WRONG_POSITION", "2026-11-29", scenario=_IN)
def _an_offset_is_pending_until_its_transaction_ends(patch: pytest.MonkeyPatch) -> None:
    def at_once(self: OffsetStore, producer_id: int, slot: Any, value: Any, write_id: int | None = None) -> None:
        self.put(slot, value, write_id)

    patch.setattr(OffsetStore, "put_open", at_once)


@breaks(1, "WRONG_POSITION", "2026-11-29", scenario=_IN)
def _offsets_of_an_aborted_transaction_are_dropped(patch: pytest.MonkeyPatch) -> None:
    end = OffsetStore.end_transaction

    def kept(self: OffsetStore, producer_id: int, *, committed: bool, **named: Any) -> Any:
        return end(self, producer_id, committed=True, **named)

    patch.setattr(OffsetStore, "end_transaction", kept)


@breaks(333, "WRONG_POSITION", "2026-11-30", scenario=_IN)
def _a_stable_offset_waits_for_open_transactions(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OffsetStore, "is_unstable", lambda self, slot: False)


@breaks(6, "WRONG_POSITION", "2026-11-30", scenario=_IN)
def _a_group_coordinator_that_loads_does_not_answer_zero(patch: pytest.MonkeyPatch) -> None:
    """As Bufstream 0.1.0, in which a group without a known offset began at 0. Loads of the simulation's short logs take
    a second, as those of long ones may."""
    fetch, finish = GroupCoordinator.fetch_offsets, Loading._finish

    def empty(self: GroupCoordinator, ticket: Any, request: FetchOffsetsRequest) -> Any:
        if self.partition_of(request.group_id) in self._loading:
            none = [(topic.topic, tuple(map(FetchedOffset, topic.partitions))) for topic in request.topics or ()]
            return [GroupAnswer(ticket, FetchOffsetsResponse(topics=tuple(none)))]
        return fetch(self, ticket, request)

    def finish_late(self: Loading[Any], load: Any) -> None:
        delay_s = 1 if isinstance(self._coordinator, GroupCoordinator) else 0
        asyncio.get_running_loop().call_later(delay_s, finish, self, load)

    patch.setattr(GroupCoordinator, "fetch_offsets", empty)
    patch.setattr(Loading, "_finish", finish_late)


@breaks(NO_SEED, "", "", scenario=_IN)
def _a_coordinator_that_was_replaced_answers_no_stable_offset(patch: pytest.MonkeyPatch) -> None:
    """As Kafka: from memory, whoever leads by now. One seed of 2,000 found it, until the timing changed;
    `scenarios/test_cut_off_coordinator.py` has the situation in real processes."""
    patch.setattr(ReadBarriers, "confirm", lambda self, where, leader_epoch, confirmed: confirmed(ErrorCode.NONE))


@breaks(1, "transactions", "2026-11-28", scenario=_IN)
def _kafka_13782_the_offsets_partition_is_added_to_the_transaction(patch: pytest.MonkeyPatch) -> None:
    """The markers of groups go elsewhere."""
    ask = Verification.ask_for_offsets

    async def wrong(self: Verification, name: str, identity: Any, index: int, adds: bool) -> ErrorCode:
        return await ask(self, name, identity, (index + 1) % 2 if adds else index, adds)

    patch.setattr(Verification, "ask_for_offsets", wrong)


# --- losses ----------------------------------------

_LOSING: Final = {
    "unclean": "1",
    "strand_s": "0.4",
    "replicas": "2",
    "min_isr": "1",
    "deletes": "0",
    "compaction": "0",
    "think_ms": "20",
}


@breaks(116, "LOST_WRITE", "2026-11-28", scenario=_IN, **_LOSING)
def _kip_704_a_recovering_leader_asks_the_coordinators(patch: pytest.MonkeyPatch) -> None:
    """It aborts what is open in its log."""

    async def nothing(self: TransactionRecovery, where: Any) -> frozenset[int]:
        return frozenset()

    async def unknown(self: TransactionRecovery, where: Any, open_ones: Any) -> dict[int, bool]:
        return {}

    patch.setattr(TransactionRecovery, "fence", nothing)
    patch.setattr(TransactionRecovery, "outcomes", unknown)


@breaks(4, "receipts", "2026-11-29", scenario=_IN, **_LOSING)
def _a_receipt_names_the_transactions_that_lost_records(patch: pytest.MonkeyPatch) -> None:
    async def nothing(self: LostTransactions, receipts: Any) -> bool:
        for receipt in receipts:
            self._keeper.complete(receipt.id, receipt.transactions, is_final=True)
        return True

    patch.setattr(LostTransactions, "_complete", nothing)


# --- the client ----------------------------------------


@breaks(3, "NOT_REQUESTED", "2026-11-29", scenario=_IN, transaction_version="1")
def _kafka_17754_a_client_raises_its_epoch_after_a_request_without_answer(patch: pytest.MonkeyPatch) -> None:
    """A delayed EndTxn of transaction version 1 ends the next transaction."""
    patch.setattr(Transactor, "_is_stale", property(lambda self: False, lambda self, value: None), raising=False)
