"""What an uncleanly elected leader asks the transaction coordinators: everything open is fenced, also late.

Rules: transactions.md X16, X61, X62. Coordinators are fakes that receive the requests as bytes; time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.log.core.tail import ProducerEntry
from fenceline.metadata.image import MetadataImage
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnectionLost
from fenceline.node.transactions.recovery import TransactionRecovery
from fenceline.testing.simulation.loop import run
from fenceline.transactions.history import TransactionHistory
from fenceline.transactions.messages import ProducerIdentity
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from tests.node.api.handlers.fakes import image_of, partition, topic_image
from tests.transactions.world import World

PATIENCE_MS = 5_000
EPOCH = 7
RAIN, SNOW = TopicPartition("rain", 0), TopicPartition("snow", 3)


class Coordinator:
    """A broker with ongoing transactions: partitions and start by id."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.newest_listing = 1
        self.open: dict[str, tuple[str, list[tuple[str, int]], float]] = {}
        """By id: state, partitions, the time of the start in seconds."""
        self.fenced: list[str] = []
        self.is_down = False
        self.leads: dict[int, int] = {}
        """By partition of `__transaction_state` that it knows that it leads: the epoch."""
        self.code_of_strangers = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
        self.busy = 0
        """InitProducerId is answered with CONCURRENT_TRANSACTIONS so many times."""

    def begin(self, transactional_id: str, *partitions: TopicPartition, state: str = "Ongoing") -> None:
        wanted = [(each.topic, each.partition) for each in partitions]
        self.open[transactional_id] = state, wanted, asyncio.get_running_loop().time()

    def version_for(self, key: ApiKey, low: int, high: int) -> int:
        known = {ApiKey.LIST_TRANSACTIONS: self.newest_listing, ApiKey.DESCRIBE_TRANSACTIONS: 0, ApiKey.METADATA: 12}
        newest = known.get(key, 5)
        if newest < low:
            raise NoSuchVersion("too old")
        return min(newest, high)

    def close(self) -> None:
        """A new connection for each question."""

    async def call(self, key: ApiKey, version: int, fields: Any, timeout_s: float) -> Any:
        if self.is_down:
            raise PeerConnectionLost("down")
        request = read_request(key, version, write_request(key, version, fields))
        answers = {
            ApiKey.LIST_TRANSACTIONS: self._list,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
            ApiKey.INIT_PRODUCER_ID: self._init,
            ApiKey.METADATA: self._metadata,
        }
        return read_response(key, version, write_response(key, version, answers[key](request)))

    def _list(self, request: Any) -> Any:
        now_s = asyncio.get_running_loop().time()
        longer_s = getattr(request, "duration_filter", -1) / 1000
        return {
            "error_code": 0,
            "unknown_state_filters": [],
            "transaction_states": [
                {"transactional_id": each, "producer_id": self._producer_id(each), "transaction_state": state}
                for each, (state, _, start_s) in self.open.items()
                if state in request.state_filters and (longer_s < 0 or now_s - start_s > longer_s)
            ],
        }

    def _describe(self, request: Any) -> Any:
        return {"transaction_states": [self._described(each) for each in request.transactional_ids]}

    def _metadata(self, request: Any) -> Any:
        partitions = [
            {"partition_index": index, "leader_id": self.node_id, "leader_epoch": epoch}
            for index, epoch in self.leads.items()
        ]
        return {"topics": [{"name": TRANSACTION_STATE_TOPIC, "partitions": partitions}]}

    def _described(self, transactional_id: str) -> dict[str, Any]:
        if transactional_id not in self.open:
            return {"error_code": self.code_of_strangers, "transactional_id": transactional_id}
        state, partitions, _ = self.open[transactional_id]
        return {
            "error_code": 0,
            "transactional_id": transactional_id,
            "transaction_state": state,
            "transaction_timeout": 60_000,
            "transaction_start_time": 0,
            "producer_id": self._producer_id(transactional_id),
            "producer_epoch": 0,
            "topics": [{"topic": topic, "partitions": [index]} for topic, index in partitions],
        }

    def _init(self, request: Any) -> Any:
        if self.busy:
            self.busy -= 1
        else:
            assert (request.producer_id, request.producer_epoch) == (-1, -1), "which fences, and never takes over"
            self.fenced.append(request.transactional_id)
            _, partitions, start_s = self.open[request.transactional_id]
            self.open[request.transactional_id] = "PrepareAbort", partitions, start_s
        return {"error_code": ErrorCode.CONCURRENT_TRANSACTIONS, "producer_id": -1, "producer_epoch": -1}

    def _producer_id(self, transactional_id: str) -> int:
        return sum(transactional_id.encode())


class Brokers:
    """Brokers 2 and 3 lead a partition of `__transaction_state` each; the recovery is broker 1's."""

    def __init__(self) -> None:
        self.coordinators = {2: Coordinator(2), 3: Coordinator(3)}
        self.lead(2, 3)
        self.history: TransactionHistory | None = None
        self.asked_for: set[int] = set()
        here: Any = None
        peers: Any = self
        self.recovery = TransactionRecovery(
            1, lambda: self.image, peers, here, self.history_of, patience_ms=PATIENCE_MS, request_timeout_ms=1_000
        )

    async def history_of(self, producer_ids: Collection[int]) -> TransactionHistory | None:
        assert set(producer_ids) == self.asked_for
        return self.history

    def lead(self, *leaders: int) -> None:
        partitions = [partition((2, 3), leader=leader, leader_epoch=EPOCH) for leader in leaders]
        for node_id, coordinator in self.coordinators.items():
            coordinator.leads = {index: EPOCH for index, leader in enumerate(leaders) if leader == node_id}
        self.image: MetadataImage = image_of([topic_image(TRANSACTION_STATE_TOPIC, *partitions)])

    async def open(self, node_id: int, client_id: str) -> Any:
        if self.coordinators[node_id].is_down:
            raise PeerConnectionLost("down")
        return self.coordinators[node_id]


def run_story(story: Callable[[Brokers], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        brokers = Brokers()
        await story(brokers)
        await brokers.recovery.close()

    run(whole())


def test_every_ongoing_transaction_of_the_partition_is_fenced_and_no_other() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].begin("a", RAIN, SNOW)
        brokers.coordinators[2].begin("b", SNOW)
        brokers.coordinators[3].begin("c", RAIN)
        brokers.coordinators[3].begin("d", RAIN, state="PrepareCommit")
        held = await brokers.recovery.fence(RAIN)
        assert held == {ord("a"), ord("c"), ord("d")}, "their markers come"
        assert (brokers.coordinators[2].fenced, brokers.coordinators[3].fenced) == (["a"], ["c"])
        assert brokers.recovery.late_count == 0

    run_story(story)


def test_partitions_that_recover_together_are_asked_about_together() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].begin("a", RAIN, SNOW)
        brokers.coordinators[3].begin("b", SNOW)
        held = await asyncio.gather(brokers.recovery.fence(RAIN), brokers.recovery.fence(SNOW))
        assert held == [{ord("a")}, {ord("a"), ord("b")}]
        assert brokers.coordinators[2].fenced == ["a"]

    run_story(story)


def test_a_fence_answered_with_51_is_asked_again_while_the_transaction_is_ongoing() -> None:
    """CONCURRENT_TRANSACTIONS also means that another change of the id is pending."""

    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].begin("a", RAIN)
        brokers.coordinators[2].busy = 3
        assert await brokers.recovery.fence(RAIN) == {ord("a")}
        assert brokers.coordinators[2].fenced == ["a"]

    run_story(story)


@pytest.mark.parametrize(
    ("leads", "code_of_strangers"),
    [
        ({}, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ({1: EPOCH - 1}, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND),
        ({1: EPOCH}, ErrorCode.NOT_COORDINATOR),
        ({1: EPOCH}, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    ],
)
def test_coordinator_that_does_not_know_yet_that_it_leads_is_asked_again(
    leads: dict[int, int], code_of_strangers: ErrorCode
) -> None:
    """It would leave out the transactions of the partition, which would be aborted although they are committed."""

    async def story(brokers: Brokers) -> None:
        late, known = brokers.coordinators[3], brokers.coordinators[3].leads
        late.leads, late.code_of_strangers = leads, code_of_strangers

        def hears() -> None:
            late.leads, late.code_of_strangers = known, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            late.begin("c", RAIN, state="PrepareCommit")

        asyncio.get_running_loop().call_later(2, hears)
        assert await brokers.recovery.fence(RAIN) == {ord("c")}

    run_story(story)


def test_coordinator_without_leader_is_waited_for() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.lead(2, -1)
        brokers.coordinators[3].begin("c", RAIN)
        asyncio.get_running_loop().call_later(2, brokers.lead, 2, 3)
        assert await brokers.recovery.fence(RAIN) == {ord("c")}

    run_story(story)


def test_silent_coordinator_does_not_keep_the_partition_away_and_is_asked_later() -> None:
    """The transaction that was open when the partition was served is aborted, a younger one is left alone."""

    async def story(brokers: Brokers) -> None:
        late, loop = brokers.coordinators[3], asyncio.get_running_loop()
        late.begin("old", RAIN)
        late.is_down = True
        started_s = loop.time()
        assert await brokers.recovery.fence(RAIN) is None
        assert PATIENCE_MS / 1000 <= loop.time() - started_s < 2 * PATIENCE_MS / 1000
        assert brokers.recovery.late_count == 1
        await asyncio.sleep(60)
        late.begin("young", RAIN)
        await asyncio.sleep(60)
        late.is_down = False
        await asyncio.sleep(5)
        assert late.fenced == ["old"]
        assert brokers.recovery.late_count == 0

    run_story(story)


def test_late_question_waits_for_every_coordinator() -> None:
    async def story(brokers: Brokers) -> None:
        for coordinator in brokers.coordinators.values():
            coordinator.is_down = True
        assert await brokers.recovery.fence(RAIN) is None
        brokers.coordinators[2].is_down = False
        brokers.lead(2, -1)
        await asyncio.sleep(60)
        assert brokers.recovery.late_count == 1, "the second partition of the topic has no leader"
        brokers.coordinators[2].begin("elsewhere", RAIN)
        brokers.coordinators[2].open["elsewhere"] = ("Ongoing", [("rain", 0)], 0.0)
        brokers.lead(2, 2)
        await asyncio.sleep(5)
        assert brokers.coordinators[2].fenced == ["elsewhere"]
        assert brokers.recovery.late_count == 0

    run_story(story)


def test_coordinator_that_cannot_tell_ages_is_not_taken_for_an_answer() -> None:
    """ListTransactions v0 has no durations: fencing all would end transactions that have lost nothing."""

    async def story(brokers: Brokers) -> None:
        late = brokers.coordinators[3]
        late.newest_listing = 0
        late.begin("old", RAIN)
        assert await brokers.recovery.fence(RAIN) == {ord("o") + ord("l") + ord("d")}
        late.fenced.clear()
        late.is_down = True
        assert await brokers.recovery.fence(RAIN) is None
        late.is_down = False
        late.begin("young", RAIN)
        await asyncio.sleep(60)
        assert late.fenced == []
        assert brokers.recovery.late_count == 1

    run_story(story)


def test_outcomes_of_transactions_without_their_end_marker() -> None:
    """Committed, undecided, and not known to any coordinator; the entry's epoch and time say which one it is."""

    async def story(brokers: Brokers) -> None:
        world = World()
        ended = world.begun(("rain", 0))
        world.end(ended, commit=True)
        undecided = world.begun(("rain", 0), name="another")
        brokers.history = TransactionHistory({ended.producer_id, undecided.producer_id, 1})
        for key, value in world.log[0]:
            brokers.history.add(key, value)
        brokers.asked_for = {ended.producer_id, undecided.producer_id, 1}
        entries = [
            ProducerEntry(*identity, 0, world.wall_ms, 5) for identity in (ended, undecided, ProducerIdentity(1, 0))
        ]
        outcomes = await brokers.recovery.outcomes(RAIN, entries)
        assert outcomes == {ended.producer_id: True, undecided.producer_id: None}
        brokers.history = None
        assert await brokers.recovery.outcomes(RAIN, entries) is None

    run_story(story)


def test_decided_transactions_of_which_the_epoch_is_sure() -> None:
    async def story(brokers: Brokers) -> None:
        world = World()
        committed = world.begun(("rain", 0))
        world.end(committed, commit=True)
        undecided = world.begun(("rain", 0), name="another")
        brokers.history = TransactionHistory({committed.producer_id, undecided.producer_id})
        for key, value in world.log[0]:
            brokers.history.add(key, value)
        brokers.asked_for = {committed.producer_id, undecided.producer_id}
        entries = [ProducerEntry(*identity, 0, world.wall_ms, 5) for identity in (committed, undecided)]
        assert await brokers.recovery.decided(RAIN, entries) == {committed.producer_id: True}
        brokers.history = None
        assert await brokers.recovery.decided(RAIN, entries) == {}

    run_story(story)


def test_close_ends_the_late_questions() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[3].is_down = True
        assert await brokers.recovery.fence(RAIN) is None
        await brokers.recovery.close()
        assert len(asyncio.all_tasks()) == 1

    run_story(story)
