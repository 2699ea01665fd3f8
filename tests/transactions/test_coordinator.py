"""The coordinator over time: phases, fences, retries, markers, time-outs, expiry, moves, rejected and late writes.

Where a test says "Kafka", its shipped coordinator differs (docs/rules/transactions.md names each case).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fenceline.coordination import DUE_AT_ONCE, Now
from fenceline.errors import ErrorCode, PeerError
from fenceline.transactions import records
from fenceline.transactions.messages import NO_IDENTITY, MarkerRejected, ProducerIdentity
from fenceline.transactions.model import Transaction
from fenceline.transactions.settings import NO_TIMEOUT_MS, TransactionSettings
from fenceline.transactions.shard import _RESUMED_AT_ONCE
from fenceline.transactions.states import TransactionState
from tests.transactions.world import ID, WAITING, A, B, World

NONE, FENCED, ABORTED = ErrorCode.NONE, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE
BUSY, LOADING = ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
HOUR_MS = 3_600_000


def next_of(identity: ProducerIdentity, bumps: int = 1) -> ProducerIdentity:
    return identity._replace(epoch=identity.epoch + bumps)


# --- phases and bad requests ----------------------------------------


def test_nothing_is_answered_from_a_partition_that_is_loading_or_led_elsewhere() -> None:
    """transactions.md X5, X31."""
    world = World()
    identity = world.begun()

    def codes() -> set[ErrorCode]:
        found = {world.init().error, world.end(identity).error, *world.add(identity, B).errors}
        with pytest.raises(PeerError) as caught:
            world.coordinator.describe(ID)
        return {*found, caught.value.code}

    world.carry_out(world.coordinator.resign(0))
    assert codes() == {ErrorCode.NOT_COORDINATOR}
    loading, _ = world.coordinator.begin_load(0, 7)
    assert codes() == {LOADING}
    with pytest.raises(PeerError, match="LOAD"):
        world.coordinator.list_transactions(frozenset(), frozenset(), world.now)
    assert loading is not None
    world.coordinator.fail_load(loading)
    assert codes() == {ErrorCode.NOT_COORDINATOR}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"name": ""}, ErrorCode.INVALID_REQUEST),
        ({"name": "x" * 40_000}, ErrorCode.INVALID_REQUEST),
        ({"identity": (5, -1)}, ErrorCode.INVALID_REQUEST),
        ({"identity": (-1, 5)}, ErrorCode.INVALID_REQUEST),
        ({"timeout_ms": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": -5}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"timeout_ms": 365 * 24 * HOUR_MS}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"two_phase": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ({"keep_prepared": True}, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_bad_init_requests(fields: dict[str, Any], code: ErrorCode) -> None:
    """transactions.md X7."""
    world = World()
    outcome = world.init(**fields)
    assert (outcome.error, outcome.identity) == (code, NO_IDENTITY)
    assert not world.log


def test_without_a_transactional_id() -> None:
    world = World()
    assert world.init(name=None).identity == (1_000, 0)
    assert world.init(name=None).identity == (1_001, 0)
    world.ids_at_hand = False
    assert (world.init(name=None).error, world.init().error) == (LOADING, LOADING)
    with pytest.raises(PeerError, match="NOT_FOUND"):
        world.coordinator.describe(ID)


@pytest.mark.parametrize(("version", "code"), [(1, ErrorCode.INVALID_PRODUCER_EPOCH), (4, FENCED)])
def test_old_versions_know_no_fencing_error(version: int, code: ErrorCode) -> None:
    """transactions.md X30."""
    world = World()
    identity = world.begun()
    old = next_of(identity, -1)
    assert world.end(old, version=version).error is code
    assert world.add(old, B, version=version).errors == (code,)
    world.end(identity)
    assert world.init(next_of(identity, 9), version=version).error is code


def test_requests_of_unknown_ids() -> None:
    world = World()
    added, verified = world.add((1, 0), A), world.add((1, 0), A, verify_only=True)
    assert {world.end((1, 0)).error, *added.errors, *verified.errors} == {ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    assert world.end((1, 0), name="").error is ErrorCode.INVALID_REQUEST


def test_hundred_thousand_partitions() -> None:
    world = World()
    world.topics["a"] = 100_000
    identity = world.begun(*(("a", index) for index in range(100_000)))
    assert world.end(identity).error is NONE
    assert len(world.markers[0].partitions) == 100_000
    assert world.state == "CompleteCommit"


# --- one transaction after another ----------------------------------------


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_ends_once_whatever_is_repeated(commit: bool, version: int) -> None:
    """transactions.md X14, X15, X18: the decision is answered before any marker."""
    world = World(marker_codes=None)
    identity = world.begun(A, B, version=2 if version > 4 else 0)
    ended = world.end(identity, commit=commit, version=version)
    after = next_of(identity) if version > 4 else identity
    assert (ended.error, ended.identity) == (NONE, after if version > 4 else NO_IDENTITY)
    assert world.end(identity, commit=commit, version=version).error is BUSY
    assert world.end(identity, commit=not commit, version=version).error is ABORTED
    (markers,) = world.markers
    assert (markers.identity, markers.commit, set(markers.partitions)) == (after, commit, {A, B})
    world.write_markers()
    assert world.end(identity, commit=commit, version=version).error is NONE
    assert world.end(identity, commit=not commit, version=version).error is ABORTED
    assert world.add(after, A).errors == (NONE,)
    if version > 4:
        assert world.end(identity, commit=commit).error is FENCED, "a late end does not end the next one"


def test_old_clients_end_the_next_transaction_with_a_late_request() -> None:
    """KAFKA-17754: below version 5 an end names no transaction; the epoch is the same."""
    world = World(level=1)
    identity = world.begun(version=0)
    world.end(identity, version=4)
    world.add(identity, A, transaction_version=0)
    assert world.end(identity, version=4).error is NONE


def test_epochs_that_run_out() -> None:
    """transactions.md X17, KAFKA-18660: also when the coordinator moves before the markers are written."""
    world = World(marker_codes=None)
    identity = world.init().identity
    world.put(replace(world.stored() or Transaction(0, 0, 0), epoch=32_766))
    last = identity._replace(epoch=32_766)
    world.add(last, A)
    ended = world.end(last)
    assert ended.error is NONE
    assert ended.identity.epoch == 0
    assert ended.identity.producer_id != identity.producer_id
    assert world.markers[0].identity == (identity.producer_id, 32_767)
    world.move()
    world.write_markers()
    assert world.state == "CompleteCommit"
    repeated = world.end(last)
    assert (repeated.error, repeated.identity) == (NONE, ended.identity)
    assert world.add(ended.identity, A).errors == (NONE,)


def test_the_start_is_the_first_partitions_time() -> None:
    """transactions.md X11."""
    world = World()
    identity = world.begun(A)
    start_ms = world.wall_ms
    world.advance(5_000)
    world.add(identity, B)
    assert world.coordinator.describe(ID).start_ms == start_ms
    world.end(identity)
    world.add(next_of(identity), A)
    assert world.coordinator.describe(ID).start_ms == start_ms + 5_000


def test_a_repeated_init_in_the_last_epoch_gets_the_same_new_producer_id() -> None:
    """transactions.md X9 (a), (d)."""
    world = World()
    identity = world.init().identity
    world.put(replace(world.stored() or Transaction(0, 0, 0), epoch=32_766))
    last = identity._replace(epoch=32_766)
    fresh = world.init(last).identity
    assert fresh.epoch == 0
    assert world.init(last).identity == fresh


# --- fences ----------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_new_producer_fences_the_old_one(level: int) -> None:
    """transactions.md X10: the retry bumps again."""
    world = World(level=level)
    identity = world.begun()
    assert world.init().error is BUSY
    assert world.state == "CompleteAbort"
    fresh = world.init()
    assert (fresh.error, fresh.identity) == (NONE, next_of(identity, 2))
    assert world.end(identity).error is FENCED
    assert world.add(identity, A).errors == (FENCED,)


def test_a_producer_that_asks_for_the_next_epoch_gets_one() -> None:
    """transactions.md X9, X10: with the expected identity the retry does not bump again."""
    world = World()
    identity = world.begun()
    assert world.init(identity).error is BUSY
    assert world.init(identity).identity == next_of(identity)
    assert world.init(identity).identity == next_of(identity), "the reply was lost"


def test_a_repeated_init_is_recognized_after_a_move() -> None:
    """transactions.md X6: Kafka forgets the last epoch and fences the producer."""
    world = World()
    identity = world.init().identity
    after = world.init(identity).identity
    world.move()
    assert (world.init(identity).error, world.init(identity).identity) == (NONE, after)


@pytest.mark.parametrize("moves", [False, True])
def test_a_zombies_commit_after_a_fence_is_fenced(moves: bool) -> None:
    """transactions.md X19: Kafka answers INVALID_TXN_STATE, as if the client had mixed up its calls."""
    world = World()
    identity = world.begun()
    world.init()
    if moves:
        world.move()
    assert world.end(identity).error is FENCED
    assert world.end(identity, commit=False).error is NONE


# --- time ----------------------------------------


def test_a_transaction_times_out_at_a_multiple_of_the_interval() -> None:
    """transactions.md X19."""
    world = World(settings=TransactionSettings(abort_interval_ms=10_000))
    identity = world.begun(timeout_ms=15_000)
    world.advance(19_000)
    assert world.state == "Ongoing"
    world.advance(1_000)
    assert world.state == "CompleteAbort"
    assert world.end(identity).error is FENCED
    assert world.end(identity, commit=False).identity == next_of(identity)


def test_an_abort_that_the_log_rejects_is_tried_again_later() -> None:
    """Not at once, for as long as the log rejects it (seed 34 of the simulated transactions)."""
    world = World(settings=TransactionSettings(abort_interval_ms=10_000))
    world.begun(timeout_ms=15_000)
    world.holds = True
    world.advance(20_000 - world.monotonic_ms)
    assert len(world.held) == 1
    world.reject_all()
    assert world.coordinator.next_deadline_ms() == 30_000
    world.holds = False
    world.advance(10_000)
    assert world.state == "CompleteAbort"


def test_transactions_that_are_all_late_are_aborted_a_few_in_a_call() -> None:
    """Their coordinator was away for longer than they may last: other requests have their turn in between."""
    world = World()
    names = [f"{ID} {number}" for number in range(2 * DUE_AT_ONCE + 1)]
    for name in names:
        world.begun(name=name, timeout_ms=60_000)
    world.monotonic_ms += HOUR_MS
    world.wall_ms += HOUR_MS
    world.move()
    world.monotonic_ms += world.settings.abort_interval_ms
    left = []
    while (at_ms := world.coordinator.next_deadline_ms()) is not None and at_ms <= world.monotonic_ms:
        world.carry_out(world.coordinator.on_time(world.now))
        left.append(sum(world.coordinator.describe(name).state == "Ongoing" for name in names))
    assert left == [DUE_AT_ONCE + 1, 1, 0]


def test_a_clock_that_is_set_back_or_forward_aborts_nothing() -> None:
    world = World()
    world.begun(timeout_ms=60_000)
    world.wall_ms += 24 * HOUR_MS
    world.advance(30_000)
    assert world.state == "Ongoing"
    world.advance(40_000)
    assert world.state == "CompleteAbort"


def test_time_outs_go_on_after_a_move() -> None:
    world = World()
    world.begun(timeout_ms=60_000)
    world.advance(50_000)
    world.move()
    world.advance(20_000)
    assert world.state == "CompleteAbort"


def test_a_transaction_times_out_though_the_last_coordinator_had_a_clock_ahead() -> None:
    """Found by seed 78 of the simulated transactions: it stayed open for as long as the clocks differed."""
    world = World()
    world.begun(timeout_ms=60_000)
    world.wall_ms -= 24 * HOUR_MS
    world.move()
    world.advance(50_000)
    assert world.state == "Ongoing"
    world.advance(20_000)
    assert world.state == "CompleteAbort"


def test_ids_that_are_loaded_are_resumed_in_slices() -> None:
    """Tens of thousands may be loaded at once, and others would wait."""
    world = World()
    count = 2 * _RESUMED_AT_ONCE + 2
    assert not count % 3
    for number in range(count):
        state = (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.EMPTY)[number % 3]
        partitions = frozenset({A}) if state is not TransactionState.EMPTY else frozenset()
        value = Transaction(number, 0, 10_000, state, partitions, world.wall_ms, world.wall_ms)
        world.log.setdefault(0, []).append((records.key_of(f"id-{number}"), records.value_of(value, 1)))
    loading, _ = world.coordinator.begin_load(0, 5)
    assert loading is not None
    for key, value_bytes in world.log[0]:
        loading.replay(key, value_bytes)
    world.epochs[0] = 5
    assert [world.coordinator.resume_some(loading, world.now) for _ in range(3)] == [True, True, False]
    assert world.coordinator.next_deadline_ms() is None, "nothing is due while they are loaded"
    world.carry_out(world.coordinator.finish_load(loading, world.now))
    world.advance(60_000)
    listed = world.coordinator.list_transactions(frozenset(), frozenset(), world.now).transactions
    states = Counter(each.state for each in listed)
    assert states == {"CompleteAbort": count // 3, "CompleteCommit": count // 3, "Empty": count // 3}


def test_a_two_phase_transaction_has_no_time_out() -> None:
    """transactions.md X7, X58."""
    world = World(settings=TransactionSettings(two_phase_commit=True))
    identity = world.begun(two_phase=True, timeout_ms=1)
    assert world.coordinator.describe(ID).timeout_ms == NO_TIMEOUT_MS
    world.advance(HOUR_MS)
    assert world.end(identity).error is NONE


def test_unused_ids_expire_in_bounded_steps() -> None:
    """transactions.md X20."""
    world = World(settings=TransactionSettings(expiration_ms=2 * HOUR_MS))
    for number in range(1_200):
        world.init(name=f"id-{number}")
    in_use = world.begun(name="used")
    world.end(in_use, name="used")
    world.advance(HOUR_MS + 60_000)
    world.begun(name="late")
    world.advance(HOUR_MS - 61_000)
    world.holds = True
    world.advance(1_000)
    assert len(world.held) == 10, "a bounded number at once"
    world.holds = False
    world.commit_all()
    world.advance(60_000)
    left = world.coordinator.list_transactions(frozenset(), frozenset(), world.now).transactions
    assert {each.transactional_id for each in left} == {"late"}
    world.move()
    assert world.coordinator.list_transactions(frozenset(), frozenset(), world.now).transactions == left


# --- markers ----------------------------------------


@pytest.mark.parametrize("why", ["moved", "leaders changed"])
def test_markers_that_have_waited_are_written_a_few_in_a_call(why: str) -> None:
    world = World(marker_codes={A: ErrorCode.LEADER_NOT_AVAILABLE})
    names = [f"{ID} {number}" for number in range(2 * DUE_AT_ONCE + 1)]
    for name in names:
        world.end(world.begun(A, name=name), name=name)
    world.marker_codes = None
    world.markers.clear()
    if why == "moved":
        world.load()
    else:
        world.coordinator.on_leaders_changed(world.now)
    written = []
    while (at_ms := world.coordinator.next_deadline_ms()) is not None and at_ms <= world.monotonic_ms:
        world.carry_out(world.coordinator.on_time(world.now))
        written.append(len(world.markers))
    assert written == [DUE_AT_ONCE, 2 * DUE_AT_ONCE, len(names)]
    assert len({each.transactional_id for each in world.markers}) == len(names)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
@pytest.mark.parametrize("by_event", [True, False])
def test_markers_are_tried_again(code: ErrorCode, by_event: bool) -> None:
    """transactions.md X22: after a change of the metadata, or a pause that grows."""
    world = World(marker_codes={B: code})
    world.end(world.begun(A, B))
    assert world.state == "PrepareCommit"
    world.marker_codes = {}
    assert [set(each.partitions) for each in world.markers] == [{A, B}]
    if by_event:
        world.coordinator.on_leaders_changed(world.now)
        world.advance(0)
    else:
        world.advance(1_000)
    assert [set(each.partitions) for each in world.markers] == [{A, B}, {B}]
    assert world.state == "CompleteCommit"
    assert not world.rejected


def test_pauses_between_tries_grow() -> None:
    world = World(marker_codes={A: ErrorCode.NETWORK_EXCEPTION})
    world.end(world.begun(A))
    world.advance(10 * 60_000)
    assert len(world.markers) < 35


@pytest.mark.parametrize(
    "code",
    [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED, ErrorCode.UNKNOWN_SERVER_ERROR],
)
def test_rejected_markers_are_reported_and_never_given_up(code: ErrorCode) -> None:
    """transactions.md X22: Kafka gives them up until the partition moves, or fails in a callback."""
    world = World(marker_codes={A: code})
    identity = world.begun(A, B)
    world.end(identity)
    assert world.rejected == [MarkerRejected(ID, next_of(identity), A, code, 1)]
    world.advance(60_000)
    assert 2 <= len(world.rejected) <= 5
    assert world.state == "PrepareCommit"
    world.marker_codes = {}
    world.advance(60_000)
    assert world.state == "CompleteCommit"


def test_markers_of_a_deleted_topic_are_not_waited_for() -> None:
    """transactions.md X21."""
    world = World(marker_codes={A: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    identity = world.begun(A, B)
    del world.topics["a"]
    world.end(identity)
    assert world.state == "CompleteCommit"


def test_answers_about_another_transaction_change_nothing() -> None:
    world = World(marker_codes=None)
    identity = world.begun(A)
    world.end(identity)
    for epoch, answered in ((next_of(identity, 2), 0), (next_of(identity), 9)):
        world.carry_out(world.coordinator.markers_written(0, answered, ID, epoch, {A: NONE}, world.now))
    assert world.state == "PrepareCommit"
    world.write_markers()
    assert world.state == "CompleteCommit"


@pytest.mark.parametrize("commit", [True, False])
def test_the_next_coordinator_writes_all_markers_again(commit: bool) -> None:
    """transactions.md X23."""
    world = World(marker_codes=None)
    world.end(world.begun(A, B), commit=commit)
    world.markers.clear()
    world.move()
    (markers,) = world.markers
    assert (set(markers.partitions), markers.commit, markers.coordinator_epoch) == ({A, B}, commit, 1)
    world.write_markers()
    assert world.state == ("CompleteCommit" if commit else "CompleteAbort")


# --- writes that fail or take long ----------------------------------------


@pytest.mark.parametrize(
    ("code", "answered"),
    [
        (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_a_rejected_write_leaves_the_id_as_it_was(code: ErrorCode, answered: ErrorCode) -> None:
    """transactions.md X4, X27: no change stays pending."""
    world = World()
    identity = world.begun(A)
    world.holds = True
    for ask in (lambda: world.add(identity, B), lambda: world.end(identity), world.init):
        assert ask() is WAITING
        world.reject_all(code)
        outcome = world.outcome_of_last
        assert (outcome.errors[0] if hasattr(outcome, "errors") else outcome.error) is answered
        assert world.coordinator.describe(ID).partitions == (A,)
        assert world.state == "Ongoing"
    world.holds = False
    assert world.end(identity).error is NONE


def test_failed_fences_eat_no_epochs() -> None:
    """KAFKA-9666."""
    world = World()
    identity = world.begun(A)
    world.holds = True
    for _ in range(5):
        world.init()
        world.reject_all()
    world.holds = False
    world.init()
    assert world.coordinator.describe(ID).identity == next_of(identity)


def test_an_id_whose_first_record_is_rejected_does_not_exist() -> None:
    world = World(holds=True)
    world.init()
    world.reject_all()
    with pytest.raises(PeerError, match="NOT_FOUND"):
        world.coordinator.describe(ID)
    world.holds = False
    assert world.init().identity == (1_001, 0)


def test_a_rejected_completion_is_tried_again() -> None:
    """KAFKA-9777, 16352: Kafka has lost completions."""
    world = World()
    identity = world.begun(A)
    world.holds = True
    world.end(identity)
    world.carry_out(world._commit())
    assert world.state == "PrepareCommit"
    for _ in range(3):
        world.reject_all()
        world.advance(5_000)
    world.holds = False
    world.commit_all()
    assert world.state == "CompleteCommit"


def test_a_late_write_is_answered_and_stays_pending() -> None:
    """transactions.md X4: the log decides; the request can be repeated."""
    world = World()
    identity = world.begun(A)
    world.holds = True
    world.end(identity)
    world.late_all()
    assert world.outcome_of_last.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.end(identity).error is BUSY
    world.holds = False
    world.commit_all()
    assert world.end(identity).error is NONE
    assert world.state == "CompleteCommit"


def test_waiting_requests_get_an_error_when_the_partition_moves() -> None:
    world = World()
    identity = world.begun(A)
    world.holds = True
    world.end(identity)
    world.carry_out(world.coordinator.resign(0))
    assert world.outcome_of_last.error is ErrorCode.NOT_COORDINATOR
    for duty in world.held:
        assert world.coordinator.appended(0, duty.write_id, world.now) == []


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("state", ["Empty", "Ongoing", "PrepareCommit", "CompleteCommit"])
def test_a_downgrade_of_the_feature_blocks_no_id(version: int, state: str) -> None:
    """transactions.md X27: in Kafka every id last ended under version 2 is blocked."""
    world = World(marker_codes=None)
    identity = world.init().identity if state == "Empty" else world.begun(A)
    if state.endswith("Commit"):
        identity = world.end(identity).identity
    if state == "CompleteCommit":
        world.write_markers()
    world.level = 0
    world.write_markers()
    world.move()
    if state != "Ongoing":
        assert world.add(identity, B, transaction_version=2).errors == (NONE,)
    ended = world.end(identity, version=version)
    assert ended.error is NONE
    assert world.state == "CompleteCommit"
    world.level = 2
    assert world.init().error is NONE


# --- for operators ----------------------------------------


def test_listing() -> None:
    """transactions.md X31: ids without a transaction pass the duration filter."""
    world = World()
    world.begun(A, name="open")
    world.init(name="idle")
    world.advance(10_000)

    def names(**filters: Any) -> set[str]:
        listing = world.coordinator.list_transactions(
            frozenset(filters.get("states", ())),
            frozenset(filters.get("producers", ())),
            world.now,
            filters.get("longer_than_ms", -1),
            filters.get("matches", lambda _: True),
        )
        return {each.transactional_id for each in listing.transactions}

    assert names() == {"open", "idle"}
    assert names(states=["Ongoing", "Nonsense"]) == {"open"}
    assert names(producers=[1_001]) == {"idle"}
    assert names(longer_than_ms=9_000) == {"open", "idle"}
    assert names(longer_than_ms=11_000) == {"idle"}
    assert names(matches=lambda name: name.startswith("i")) == {"idle"}
    unknown = world.coordinator.list_transactions(frozenset({"Nonsense", "Dead"}), frozenset(), world.now)
    assert unknown.unknown_states == ("Nonsense",)


def test_description() -> None:
    world = World()
    identity = world.begun(B, A)
    described = world.coordinator.describe(ID)
    assert (described.state, described.identity, described.partitions) == ("Ongoing", identity, (A, B))
    assert (described.start_ms, described.timeout_ms) == (world.wall_ms, 60_000)
    for name, code in (("", ErrorCode.INVALID_REQUEST), ("unknown", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)):
        with pytest.raises(PeerError) as caught:
            world.coordinator.describe(name)
        assert caught.value.code is code


def test_memory_of_an_idle_id() -> None:
    """At most 1 KB for each id that has no transaction."""
    import tracemalloc

    world = World()
    value = Transaction(1 << 40, 5, 61_234, TransactionState.COMPLETE_COMMIT, start_ms=1 << 41, last_update_ms=1 << 42)
    tracemalloc.start()
    loading, _ = world.coordinator.begin_load(0, 9)
    assert loading is not None
    from fenceline.transactions.records import key_of, value_of

    encoded = value_of(value, 1)
    for number in range(10_000):
        loading.replay(key_of(f"application-{number}-0_12"), encoded)
    world.coordinator.finish_load(loading, Now(0, 0))
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert used / 10_000 < 1_000
