"""All partitions that a broker follows from one leader: the requests of a fetch session (KIP-227) and their responses.

Owns the states of the partitions, the leader's session state of each, and the back-offs. One request is in flight at a
time. Never does I/O: `next_request` returns the request, `on_answer` the duties for the logs, and `done` or `failed`
reports the result of a duty.

The work depends on what changed: a partition without news, or in back-off, is neither sent again nor checked. A
session of many partitions is opened in parts: a request names at most `MOST_NAMED` that the leader has not heard of,
and the next one follows at once; it is left in parts as well (`MOST_FORGOTTEN`). Otherwise both sides would do nothing
else meanwhile.

A response counts only for the state that requested it: with the same leader epoch and offset as in the session, and
still FETCHING (`epochs.md E26`, `gaps.md G10`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, NamedTuple, TypeAlias

from fenceline.errors import ErrorCode
from fenceline.replica.fencing import CONSUMER_REPLICA_ID
from fenceline.replica.fetch_session import INITIAL_EPOCH, NO_SESSION_ID
from fenceline.replica.follower import AppendFetchedBatches, ApplyOffsets, Duty, FollowerPhase, FollowerState
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, FetchResponse

Key: TypeAlias = tuple[bytes, int]
"""Topic id, partition index."""

FIRST_BACKOFF_MS: Final = 20
MOST_NAMED: Final = 40
"""New partitions in one request: some milliseconds for the follower, and for the leader."""
MOST_FORGOTTEN: Final = 1_000
"""Partitions that one request removes from the session. Responses about the others are ignored."""
_FIRST_TOO_LARGE_BACKOFF_MS: Final = 1_000
_LONGEST_TOO_LARGE_BACKOFF_MS: Final = 60_000
_LAST_SESSION_EPOCH: Final = 2**31 - 1


class FetchLimits(NamedTuple):
    """`replica.fetch.*` of the broker's configuration."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    partition_max_bytes: int
    backoff_ms: int
    """The longest pause after repeated errors."""


class ReplicaFetcher:
    """The fetches from one leader. Keys of partitions are (topic id, index)."""

    def __init__(self, *, replica_id: int, broker_epoch: int, limits: FetchLimits) -> None:
        assert replica_id > CONSUMER_REPLICA_ID, "a replica id is a broker id"
        self._replica_id = replica_id
        self.broker_epoch = broker_epoch
        """The current epoch of this broker: a leader rejects an older one (E31)."""
        self._limits = limits
        self.states: dict[Key, FollowerState] = {}
        self._sent: dict[Key, FetchPartition] = {}
        """The leader's session after the request in flight."""
        self._changed: dict[Key, None] = {}
        """Partitions that may differ from `_sent`; an ordered set, so that requests are deterministic."""
        self._unnamed: deque[Key] = deque()
        """Partitions that the session does not have yet, because there are too many for one request. Some may have been
        left, or be among the changed ones as well."""
        self._backoffs: list[tuple[int, Key]] = []
        """Ends of back-offs, as a heap. An entry is void if its partition is not in that back-off any more."""
        self._session_id = NO_SESSION_ID
        self._session_epoch = INITIAL_EPOCH
        self._is_waiting_for_answer = False

    def __len__(self) -> int:
        return len(self.states)

    # -- which partitions ----------------------------------------------------------------------------------------------

    def follow(self, state: FollowerState) -> None:
        """Follow a partition, or continue in a newer leader epoch; responses for the previous state are dropped."""
        key = (state.topic_id, state.index)
        self.states[key] = state
        if state.is_unused and len(self._changed) >= MOST_NAMED and key not in self._sent:
            self._unnamed.append(key)  # there may be 100,000, and every request looks at all changed ones
        else:
            self._changed[key] = None

    def leave(self, key: Key) -> FollowerState | None:
        """Stop following a partition; returns its state, if any."""
        state = self.states.pop(key, None)
        if key in self._sent:
            self._changed[key] = None
        else:
            self._changed.pop(key, None)
        return state

    # -- requests ------------------------------------------------------------------------------------------------------

    def to_compare(self, now_ms: int) -> list[FollowerState]:
        """The partitions to compare with the leader's log before they are fetched: see `first_question`."""
        states = self.states
        self._end_backoffs(now_ms)
        return [
            state
            for key in self._changed
            if (state := states.get(key)) is not None and state.comparison is not None and state.is_ready(now_ms)
        ]

    def next_request(self, now_ms: int) -> FetchRequest | None:
        """The request to send; None while one is in flight, or if no partition is ready (see `next_ready_ms`).

        It waits at the leader no longer than until the next partition in back-off is ready, which is often new and has
        a producer waiting for it: its leader had not heard of it yet."""
        if self._is_waiting_for_answer:
            return None
        if self._session_epoch == INITIAL_EPOCH:
            self._sent.clear()
            if len(self.states) > MOST_NAMED:
                self._unnamed = deque(self.states)
            else:
                self._unnamed.clear()
                self._changed.update(dict.fromkeys(self.states))
        self._end_backoffs(now_ms)
        wanted: list[FetchPartition] = []
        forgotten: list[tuple[str | None, bytes | None, list[int]]] = []
        changed, has_more = self._to_ask()
        for key in changed:
            state = self.states.get(key)
            to_compare = state is not None and state.comparison is not None
            if state is not None and state.is_ready(now_ms) and not to_compare:
                self._changed.pop(key, None)
                asked = self._ask(state)
                if self._sent.get(key) != asked:
                    self._sent[key] = asked
                    wanted.append(asked)
            elif len(forgotten) == MOST_FORGOTTEN and key in self._sent:
                has_more = True
            else:
                is_waiting = state is not None and state.phase is FollowerPhase.WAITING
                if is_waiting or not to_compare:
                    self._changed.pop(key, None)
                if state is not None and is_waiting:
                    heappush(self._backoffs, (state.ready_at_ms, key))
                if self._sent.pop(key, None) is not None:
                    forgotten.append((None, key[0], [key[1]]))
        if not self._sent:
            self._session_epoch = INITIAL_EPOCH  # the leader closes a session without partitions
            return None
        self._is_waiting_for_answer = True
        limits = self._limits
        max_wait_ms, ready_ms = limits.max_wait_ms, None if has_more else self.next_ready_ms()
        if has_more:
            max_wait_ms = 0
        elif ready_ms is not None:
            max_wait_ms = min(max_wait_ms, max(FIRST_BACKOFF_MS, ready_ms - now_ms))
        return FetchRequest(
            cluster_id=None,
            replica_id=self._replica_id,
            replica_epoch=self.broker_epoch,
            max_wait_ms=max_wait_ms,
            min_bytes=limits.min_bytes,
            max_bytes=limits.max_bytes,
            isolation_level=0,
            # With the initial epoch this closes the old session, so that it takes no room at the leader.
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=wanted,
            forgotten=forgotten,
            rack_id="",
        )

    def _to_ask(self) -> tuple[list[Key], bool]:
        """The partitions that the next request may name or forget, and whether there are more. Those that the session
        has are never put off: records of new ones do not delay theirs."""
        changed, unnamed, states = self._changed, self._unnamed, self.states
        if len(changed) > MOST_NAMED:
            for key in tuple(changed):
                state = states.get(key)
                if state is not None and key not in self._sent and _can_be_named(state):
                    del changed[key]
                    unnamed.append(key)
        named = 0
        while unnamed and named < MOST_NAMED:
            key = unnamed.popleft()
            state = states.get(key)
            if state is not None:
                changed[key] = None
                named += _can_be_named(state)
        return list(changed), bool(unnamed)

    def _ask(self, state: FollowerState) -> FetchPartition:
        """E24."""
        log = state.log
        return FetchPartition(
            topic=None,
            topic_id=state.topic_id,
            index=state.index,
            fetch_offset=log.log_end_offset,
            max_bytes=self._limits.partition_max_bytes,
            current_leader_epoch=state.leader_epoch,
            last_fetched_epoch=log.latest_epoch,
            log_start_offset=log.log_start_offset,
        )

    def next_ready_ms(self) -> int | None:
        """When the next partition in back-off is ready; None if there is none."""
        while self._backoffs and not self._is_in_backoff(*self._backoffs[0]):
            heappop(self._backoffs)
        waiting = [each for each, _ in self._backoffs[:1]]
        waiting += [
            state.ready_at_ms
            for key in self._changed
            if (state := self.states.get(key)) is not None and state.phase is FollowerPhase.WAITING
        ]
        return min(waiting, default=None)

    def _is_in_backoff(self, ready_at_ms: int, key: Key) -> bool:
        state = self.states.get(key)
        return state is not None and state.phase is FollowerPhase.WAITING and state.ready_at_ms == ready_at_ms

    def _end_backoffs(self, now_ms: int) -> None:
        while self._backoffs and self._backoffs[0][0] <= now_ms:
            ready_at_ms, key = heappop(self._backoffs)
            if self._is_in_backoff(ready_at_ms, key):
                self._changed[key] = None

    # -- answers -------------------------------------------------------------------------------------------------------

    def on_answer(self, response: FetchResponse, now_ms: int) -> Iterator[Duty]:
        """The duties, in the order of the response. Each must be ended by `done` or `failed` with its state, except
        `ApplyOffsets`, which needs neither. Until then the partition is not fetched.
        """
        self._is_waiting_for_answer = False
        if response.error_code:
            # Unknown or invalid session: the next request opens a new one with all partitions.
            self._session_epoch = INITIAL_EPOCH
            if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION_ID
            return
        self._session_id = response.session_id
        if response.session_id == NO_SESSION_ID:
            self._session_epoch = INITIAL_EPOCH
        else:
            self._session_epoch = self._session_epoch + 1 if self._session_epoch < _LAST_SESSION_EPOCH else 1
        for fetched in response.partitions:
            state = self._asking(fetched)
            if state is not None:
                duty = self._duty(state, fetched, now_ms)
                if duty is not None:
                    yield duty

    def _asking(self, fetched: FetchedPartition) -> FollowerState | None:
        """The state that this row of a response belongs to, if it is still current."""
        key = (fetched.topic_id or b"", fetched.index)
        state, sent = self.states.get(key), self._sent.get(key)
        if state is None or sent is None or state.phase is not FollowerPhase.FETCHING:
            return None
        is_current = sent.current_leader_epoch == state.leader_epoch and sent.fetch_offset == state.log.log_end_offset
        return state if is_current else None

    def _duty(self, state: FollowerState, fetched: FetchedPartition, now_ms: int) -> Duty | None:
        key = (state.topic_id, state.index)
        code = fetched.error_code
        if not code:
            state.leader_high_watermark = fetched.high_watermark
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._changed[key] = None
            return state.on_out_of_range()
        if code:
            self.failed(state, now_ms)
            return None
        if fetched.diverging_epoch is not None:
            self._changed[key] = None
            return state.on_divergence(*fetched.diverging_epoch, fetched.log_start_offset)
        if not state.is_compared:
            sent = self._sent[key]
            had_records = sent.log_start_offset < sent.fetch_offset
            restart = state.on_agreement(fetched.log_start_offset, had_records=had_records)
            if restart is not None:
                self._changed[key] = None
                return restart
        if fetched.records is not None and len(fetched.records):
            self._changed[key] = None
            return AppendFetchedBatches(
                state, memoryview(fetched.records), fetched.high_watermark, fetched.log_start_offset
            )
        state.failures = 0
        if state.is_unused and fetched.high_watermark <= 0 and fetched.log_start_offset <= 0:
            return None  # the leader has no records either
        # Send the new log start even without records: DeleteRecords waits for it at the leader.
        self._changed[key] = None
        return ApplyOffsets(state, fetched.high_watermark, fetched.log_start_offset)

    def done(self, state: FollowerState) -> None:
        """A duty was executed."""
        state.resume()
        self._note(state)

    def failed(self, state: FollowerState, now_ms: int) -> None:
        """A duty failed, or the leader returned an error: back off, longer each time."""
        self._back_off(state, FIRST_BACKOFF_MS, self._limits.backoff_ms, now_ms)

    def answer_too_large(self, state: FollowerState, now_ms: int) -> None:
        """The leader has a batch that exceeds this broker's limits: back off for a long time, since every response with
        it is discarded. It is still retried: the leader may delete the batch, or an operator raise the limit.
        """
        self._back_off(state, _FIRST_TOO_LARGE_BACKOFF_MS, _LONGEST_TOO_LARGE_BACKOFF_MS, now_ms)

    def _back_off(self, state: FollowerState, first_ms: int, longest_ms: int, now_ms: int) -> None:
        state.wait_until(now_ms + min(first_ms << min(state.failures, 16), longest_ms))
        self._note(state)

    def hold_back(self, state: FollowerState, pause_ms: int, now_ms: int) -> None:
        """Do not fetch the partition for `pause_ms`: it is throttled. This is not a failure."""
        state.phase = FollowerPhase.WAITING
        state.ready_at_ms = now_ms + pause_ms
        self._note(state)

    def _note(self, state: FollowerState) -> None:
        key = (state.topic_id, state.index)
        if self.states.get(key) is state:
            self._changed[key] = None

    def on_connection_lost(self) -> None:
        """No response will come; the session may not exist any more."""
        self._is_waiting_for_answer = False
        self._session_epoch = INITIAL_EPOCH
        self._sent.clear()


def _can_be_named(state: FollowerState) -> bool:
    """Whether the next request could have the partition: it does not back off, and need not be compared first."""
    return state.phase is FollowerPhase.FETCHING and state.comparison is None
