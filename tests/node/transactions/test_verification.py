"""Questions to the coordinators of transactions: batched, one request in flight, newer epochs first.

Rules: transactions.md X33, X34. Coordinators are fakes that receive the requests as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode
from fenceline.ids import TRANSACTION_STATE_TOPIC
from fenceline.metadata.image import MetadataImage
from fenceline.node.net.peer_connection import PeerConnectionLost
from fenceline.node.transactions.verification import Verification
from fenceline.wire.entities import read_response, write_response
from tests.node.answering_peer import AnsweringPeer
from tests.node.api.handlers.fakes import image_of, partition, topic_image
from tests.node.desk import turns

NONE, ABORTABLE = ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE
RAIN, SNOW = ("rain", 0), ("snow", 3)


class Coordinator(AnsweringPeer):
    """A broker: answers when the test says so."""

    def __init__(self, newest: int = 5) -> None:
        super().__init__(newest)
        self.codes: dict[tuple[str, str, int], ErrorCode] = {}
        """By id, topic and partition; others NONE."""
        self.error = NONE

    def fields_of(self, request: Any) -> dict[str, Any]:
        results = [
            {
                "transactional_id": each.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {
                                "partition_index": index,
                                "partition_error_code": self.codes.get((each.transactional_id, topic.name, index), 0),
                            }
                            for index in topic.partitions
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in request.transactions
        ]
        return {"error_code": self.error, "results_by_transaction": [] if self.error else results}


class Brokers:
    """Brokers 2 and 3 lead the partitions of `__transaction_state` in turn."""

    def __init__(self, partitions: int = 1, **fields: Any) -> None:
        self.coordinators = {2: Coordinator(**fields), 3: Coordinator(**fields)}
        leaders = [partition((2, 3), leader=2 + index % 2) for index in range(partitions)]
        self.image: MetadataImage = image_of([topic_image(TRANSACTION_STATE_TOPIC, *leaders)])
        peers: Any = self
        self.verification = Verification(1, lambda: self.image, peers, request_timeout_ms=1_000)

    async def open(self, node_id: int, client_id: str) -> Any:
        coordinator = self.coordinators[node_id]
        if coordinator.fails is not None and not coordinator.is_open:
            raise coordinator.fails
        coordinator.opened += 1
        coordinator.is_open = True
        return coordinator

    async def ask(
        self,
        transactional_id: str = "till",
        *partitions: tuple[str, int],
        epoch: int = 0,
        producer_id: int = 5,
        verify_only: bool = True,
    ) -> list[ErrorCode]:
        asked = partitions or (RAIN,)
        answer = self.verification.ask(transactional_id, (producer_id, epoch), asked, verify_only=verify_only)
        verdicts = answer if isinstance(answer, dict) else await answer
        assert list(verdicts) == list(asked)
        return list(verdicts.values())


def run(story: Callable[[Brokers], Coroutine[Any, Any, None]], **fields: Any) -> None:
    async def whole() -> None:
        brokers = Brokers(**fields)
        await story(brokers)
        await brokers.verification.close()

    asyncio.run(asyncio.wait_for(whole(), 30))


@pytest.mark.parametrize("verify_only", [True, False])
def test_question_has_all_partitions_by_topic(verify_only: bool) -> None:
    async def story(brokers: Brokers) -> None:
        coordinator = brokers.coordinators[2]
        coordinator.codes = {("till", "snow", 3): ABORTABLE}
        answer = await brokers.ask("till", RAIN, SNOW, ("rain", 1), epoch=4, verify_only=verify_only)
        assert answer == [NONE, ABORTABLE, NONE]
        [asked] = coordinator.requests[0].transactions
        assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("till", 5, 4)
        assert asked.verify_only is verify_only
        assert [(topic.name, list(topic.partitions)) for topic in asked.topics] == [("rain", [0, 1]), ("snow", [3])]
        assert coordinator.versions == [5]
        assert brokers.verification.failures == 1
        assert brokers.verification.durations.count == 1

    run(story)


def test_coordinator_is_the_leader_of_the_partition_of_the_id() -> None:
    async def story(brokers: Brokers) -> None:
        for number in range(20):
            await brokers.ask(f"id-{number}")
        asked = {
            node_id: {each.transactions[0].transactional_id for each in coordinator.requests}
            for node_id, coordinator in brokers.coordinators.items()
        }
        expected = {f"id-{number}": 2 + partition_for(f"id-{number}", 2) for number in range(20)}
        assert {each: node_id for node_id, ids in asked.items() for each in ids} == expected
        assert set(expected.values()) == {2, 3}
        assert all(coordinator.opened == 1 for coordinator in brokers.coordinators.values())

    run(story, partitions=2)


def test_no_coordinator() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.image = image_of()
        assert await brokers.ask() == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        brokers.image = image_of([topic_image(TRANSACTION_STATE_TOPIC, partition((2,), leader=-1))])
        assert await brokers.ask() == [ErrorCode.COORDINATOR_NOT_AVAILABLE]

    run(story)


def test_one_request_is_in_flight_and_the_others_leave_together() -> None:
    async def story(brokers: Brokers) -> None:
        coordinator = brokers.coordinators[2]
        coordinator.may_answer.clear()
        answers = [asyncio.ensure_future(brokers.ask("first"))]
        await turns()
        answers += [asyncio.ensure_future(brokers.ask(each)) for each in ("second", "third")]
        await turns()
        assert len(coordinator.requests) == 1
        coordinator.codes = {("third", *RAIN): ABORTABLE}
        coordinator.may_answer.set()
        assert await asyncio.gather(*answers) == [[NONE], [NONE], [ABORTABLE]]
        assert [[each.transactional_id for each in request.transactions] for request in coordinator.requests] == [
            ["first"],
            ["second", "third"],
        ]

    run(story)


async def waiting(brokers: Brokers) -> asyncio.Future[list[ErrorCode]]:
    """A request is in flight: what comes now waits."""
    brokers.coordinators[2].may_answer.clear()
    other = asyncio.ensure_future(brokers.ask("other"))
    await turns()
    return other


def test_newer_epoch_displaces_an_older_one() -> None:
    async def story(brokers: Brokers) -> None:
        other = await waiting(brokers)
        old = asyncio.ensure_future(brokers.ask(epoch=1))
        await turns()
        new = asyncio.ensure_future(brokers.ask(epoch=2))
        assert await old == [ErrorCode.INVALID_PRODUCER_EPOCH]
        assert await brokers.ask(epoch=1) == [ErrorCode.INVALID_PRODUCER_EPOCH], "at once"
        brokers.coordinators[2].may_answer.set()
        assert [await new, await other] == [[NONE]] * 2
        [asked] = brokers.coordinators[2].requests[1].transactions
        assert asked.producer_epoch == 2

    run(story)


def test_another_producer_id_displaces_without_fencing() -> None:
    """After the last epoch the id goes on with a new producer id, whose epochs begin at 0."""

    async def story(brokers: Brokers) -> None:
        other = await waiting(brokers)
        old = asyncio.ensure_future(brokers.ask(epoch=32_767))
        await turns()
        new = asyncio.ensure_future(brokers.ask(producer_id=6))
        assert await old == [ErrorCode.NETWORK_EXCEPTION]
        brokers.coordinators[2].may_answer.set()
        assert [await new, await other] == [[NONE]] * 2

    run(story)


def test_questions_of_one_producer_leave_together() -> None:
    """Its partitions may be written over several connections (X69)."""

    async def story(brokers: Brokers) -> None:
        other = await waiting(brokers)
        brokers.coordinators[2].codes = {("till", *SNOW): ABORTABLE}
        both = [asyncio.ensure_future(brokers.ask("till", each)) for each in (RAIN, SNOW)]
        await turns()
        brokers.coordinators[2].may_answer.set()
        assert await asyncio.gather(other, *both) == [[NONE], [NONE], [ABORTABLE]]
        [asked] = brokers.coordinators[2].requests[1].transactions
        assert [topic.name for topic in asked.topics] == ["rain", "snow"]

    run(story)


@pytest.mark.parametrize(
    ("code", "known"),
    [
        (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_COORDINATOR),
        (ABORTABLE, ABORTABLE),
    ],
)
def test_codes_are_those_that_producers_know(code: ErrorCode, known: ErrorCode) -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].codes = {("till", *RAIN): code}
        assert await brokers.ask() == [known]

    run(story)


@pytest.mark.parametrize(
    ("code", "known"),
    [
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
)
def test_error_of_the_whole_response(code: ErrorCode, known: ErrorCode) -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].error = code
        assert await brokers.ask("till", RAIN, SNOW) == [known] * 2

    run(story)


@pytest.mark.parametrize(("verify_only", "code"), [(True, NONE), (False, ErrorCode.INVALID_TXN_STATE)])
def test_old_coordinator_cannot_be_asked(verify_only: bool, code: ErrorCode) -> None:
    """Taken as verified. It cannot add either: the transaction would never end here."""

    async def story(brokers: Brokers) -> None:
        assert await brokers.ask(verify_only=verify_only) == [code]
        assert brokers.coordinators[2].requests == []

    run(story, newest=3)


def test_lost_connection_is_a_network_error_and_is_opened_again() -> None:
    async def story(brokers: Brokers) -> None:
        coordinator = brokers.coordinators[2]
        assert await brokers.ask() == [NONE]
        coordinator.fails = PeerConnectionLost("gone")
        assert await brokers.ask() == [ErrorCode.NETWORK_EXCEPTION]
        assert not coordinator.is_open
        assert await brokers.ask() == [ErrorCode.NETWORK_EXCEPTION], "it cannot be opened"
        coordinator.fails = None
        assert await brokers.ask() == [NONE]
        assert coordinator.opened == 2

    run(story)


def test_partition_that_the_response_lacks_is_not_confirmed() -> None:
    async def story(brokers: Brokers) -> None:
        coordinator = brokers.coordinators[2]
        answering = coordinator.call

        async def incomplete(*args: Any) -> Any:
            answer = await answering(*args)
            assert answer.results_by_transaction
            empty = {"error_code": 0, "results_by_transaction": []}
            return read_response(args[0], args[1], write_response(args[0], args[1], empty))

        coordinator.call = incomplete  # type: ignore[assignment, method-assign]
        assert await brokers.ask() == [ErrorCode.NETWORK_EXCEPTION]

    run(story)


def test_nobody_waits_after_the_close() -> None:
    async def story(brokers: Brokers) -> None:
        other = await waiting(brokers)
        later = asyncio.ensure_future(brokers.ask())
        await turns()
        await brokers.verification.close()
        assert [await other, await later] == [[ErrorCode.NETWORK_EXCEPTION]] * 2
        assert await brokers.ask() == [ErrorCode.NETWORK_EXCEPTION]
        assert len(brokers.coordinators[2].requests) == 1

    run(story)


def test_offsets_partition_is_asked_about_by_its_index() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].codes = {("till", "__consumer_offsets", 7): ABORTABLE}
        assert await brokers.verification.ask_for_offsets("till", (5, 0), 7, adds=True) is ABORTABLE
        [asked] = brokers.coordinators[2].requests[0].transactions
        assert not asked.verify_only

    run(story)


def test_metrics() -> None:
    async def story(brokers: Brokers) -> None:
        brokers.coordinators[2].codes = {("till", *RAIN): ABORTABLE}
        await brokers.ask()
        values = {
            sample.name: sample.value
            for family in brokers.verification.collect()
            for sample in family.samples
            if "bucket" not in sample.name
        }
        assert values["fenceline_transaction_verification_failures_total"] == 1
        assert values["fenceline_transaction_verification_seconds_count"] == 1

    run(story)
