"""Transactional batches: the coordinator is asked before they open a transaction, and what may happen meanwhile.

Rules: transactions.md X33, X34, X36, X37; KAFKA-12671, 14884, 16386.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.log.core.producer_state import Origin
from fenceline.node.net.connection import PendingAnswer
from fenceline.records.build import build_batch
from fenceline.records.markers import end_marker
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_response, write_request
from fenceline.wire.frame import parse_response_header
from tests.node.desk import TOPIC, Desk, FakeVerifier, run_story, turns

ID = "till"
ABORTABLE, PLAIN_48 = ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE


def batch(sequence: int = 0, *, producer_id: int = 5, epoch: int = 0, transactional: bool = True) -> bytes:
    made = build_batch(
        [(0, b"k", b"v", ())],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )
    return bytes(made)


class Connection:
    """Waits for one response."""

    def __init__(self) -> None:
        self.arrived: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()

    def answer_pending(self, pending: PendingAnswer, parts: Any, let_go: Any = None) -> None:
        self.arrived.set_result(parts)

    def fail_pending(self, pending: PendingAnswer, reason: str) -> None:
        self.arrived.set_exception(ConnectionError(reason))


class Produced:
    """A Produce request that was sent."""

    def __init__(
        self,
        desk: Desk,
        records: dict[int, bytes],
        *,
        version: int = 12,
        acks: int = 1,
        transactional_id: str | None = ID,
    ) -> None:
        partitions = [{"index": index, "records": content} for index, content in records.items()]
        topics = [{"name": TOPIC, "topic_id": desk.topic_id, "partition_data": partitions}]
        fields = {"transactional_id": transactional_id, "acks": acks, "timeout": 1_000, "topic_data": topics}
        body = bytearray(write_request(ApiKey.PRODUCE, version, fields))
        self._version = version
        self.outcome = desk.producing.handle(desk.context(version), memoryview(body))
        self._connection = Connection()
        if isinstance(self.outcome, PendingAnswer):
            self.outcome.attach(self._connection)  # type: ignore[arg-type]
            body[:] = bytes(len(body))  # the receive buffer is used for the next request

    async def codes(self) -> list[ErrorCode]:
        return [each.error_code for each in await self.results()]

    async def results(self) -> list[Any]:
        parts = self.outcome
        if isinstance(parts, PendingAnswer):
            parts = await self._connection.arrived
        assert parts is not None
        frame = b"".join(bytes(part) for part in parts)
        _, position = parse_response_header(ApiKey.PRODUCE, self._version, frame[4:])
        answer = read_response(ApiKey.PRODUCE, self._version, frame[4 + position :])
        return list(answer.responses[0].partition_responses)


async def produced(desk: Desk, sequence: int = 0, *, version: int = 12, **fields: Any) -> ErrorCode:
    """One batch in partition 0."""
    own = {name: fields.pop(name) for name in tuple(fields) if name in ("producer_id", "epoch", "transactional")}
    [code] = await Produced(desk, {0: batch(sequence, **own)}, version=version, **fields).codes()
    return code


def mark(desk: Desk, *, epoch: int = 0, index: int = 0, version: int = 0) -> None:
    replica = desk.replica(index)
    made = memoryview(end_marker(True, 5, epoch, 0, 0))
    replica.log.append_as_leader(
        made,
        leader_epoch=replica.leader_epoch,
        now_ms=0,
        origin=Origin.COORDINATOR,
        transaction_version=version,
    )
    replica.appended()


def is_open(desk: Desk, index: int = 0) -> bool:
    return any(each.transaction_first_offset >= 0 for each in desk.replica(index).log.producers)


@pytest.fixture(params=[False, True], ids=["asks another broker", "asks itself"], autouse=True)
def verifier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This broker's own coordinator answers at once."""
    monkeypatch.setattr(FakeVerifier, "answers_at_once", request.param)


other_broker = pytest.mark.parametrize("verifier", [False], indirect=True)
"""For a response that waits for the coordinator."""


@pytest.mark.parametrize(("version", "verify_only"), [(9, True), (11, True), (12, False), (13, False)])
def test_coordinator_is_asked_once_for_each_transaction(version: int, verify_only: bool) -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        assert [await produced(desk, each, version=version) for each in range(3)] == [ErrorCode.NONE] * 3
        assert desk.verifier.asked == [(ID, (5, 0), ((TOPIC, 0),), verify_only)]
        mark(desk)
        assert await produced(desk, 3, version=version) is ErrorCode.NONE
        assert len(desk.verifier.asked) == 2
        assert desk.replica().log.log_end_offset == 5

    run_story(story)


@pytest.mark.parametrize(
    ("version", "answer", "expected"),
    [
        (9, ABORTABLE, PLAIN_48),
        (10, ABORTABLE, PLAIN_48),
        (11, ABORTABLE, ABORTABLE),
        *((version, code, ErrorCode.NOT_ENOUGH_REPLICAS) for version in (9, 11, 12, 13) for code in (13, 14, 15, 16)),
        (9, 51, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, 51, ErrorCode.NOT_ENOUGH_REPLICAS),
        *((version, code, code) for version in (9, 11, 12) for code in (3, 42, 47, 48, 49)),
        (12, ABORTABLE, ABORTABLE),
    ],
)
def test_codes_of_the_coordinator_are_translated(version: int, answer: int, expected: int) -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.verifier.answers = [ErrorCode(answer)]
        [result] = await Produced(desk, {0: batch()}, version=version).results()
        assert (result.error_code, result.base_offset, result.log_start_offset) == (expected, -1, -1)
        assert desk.replica().log.log_end_offset == 0
        assert len(desk.verifier.asked) == 1
        if expected == ErrorCode.NOT_ENOUGH_REPLICAS:
            assert result.error_message.endswith(ErrorCode(answer).name)
        assert await produced(desk, version=version) is ErrorCode.NONE

    run_story(story)


def test_end_of_the_transaction_before_is_waited_for() -> None:
    """X34: from version 12 on the question is repeated; the answer may come after the marker, in the same request."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        assert await produced(desk) is ErrorCode.NONE
        desk.verifier.answers = [ErrorCode.CONCURRENT_TRANSACTIONS] * 2
        desk.verifier.before_answer = lambda: mark(desk, epoch=1, version=2) if is_open(desk) else None
        assert await produced(desk, epoch=1) is ErrorCode.NONE
        assert len(desk.verifier.asked) == 4

    run_story(story, settings={"add.partitions.to.txn.retry.backoff.ms": "1"})


def test_wait_for_the_transaction_before_is_limited() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.verifier.answers = [ErrorCode.CONCURRENT_TRANSACTIONS] * 10_000
        assert await produced(desk) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert len(desk.verifier.asked) > 1

    run_story(
        story,
        settings={
            "add.partitions.to.txn.retry.backoff.ms": "1",
            "add.partitions.to.txn.retry.backoff.max.ms": "20",
        },
    )


def test_transaction_that_ends_while_the_coordinator_is_asked_is_not_opened_again() -> None:
    """KAFKA-12671: the marker comes between answer and append."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.verifier.before_answer = lambda: mark(desk)
        assert await produced(desk, version=11) is ErrorCode.INVALID_TXN_STATE
        assert not is_open(desk)

    run_story(story)


def test_marker_of_version_2_does_not_refuse_the_next_transaction() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        assert await produced(desk) is ErrorCode.NONE
        desk.verifier.before_answer = lambda: mark(desk, epoch=1, version=2)
        assert await produced(desk, epoch=1) is ErrorCode.NONE
        assert is_open(desk)

    run_story(story)


def test_leader_that_changes_meanwhile_makes_the_producer_ask_again() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.verifier.before_answer = lambda: desk.lead(2)
        assert await produced(desk) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        desk.verifier.before_answer = lambda: desk.follow(3)
        assert await produced(desk) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert desk.replica().log.log_end_offset == 0

    run_story(story)


def test_each_partition_is_answered_alone() -> None:
    async def story(desk: Desk) -> None:
        for index in range(3):
            desk.lead(1, index=index)
        desk.verifier.answers = [{(TOPIC, 0): ErrorCode.NONE, (TOPIC, 1): ABORTABLE}]
        sent = Produced(desk, {0: batch(), 1: batch(), 2: batch(producer_id=-1, transactional=False), 3: batch()})
        codes = await sent.codes()
        assert codes[:3] == [ErrorCode.NONE, ABORTABLE, ErrorCode.NONE]
        assert codes[3] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert [desk.replica(index).log.log_end_offset for index in range(3)] == [1, 0, 1]
        assert desk.verifier.asked == [(ID, (5, 0), ((TOPIC, 0), (TOPIC, 1)), False)]

    run_story(story, partitions=3)


@pytest.mark.parametrize("other", [{"producer_id": 6}, {"epoch": 1}])
def test_two_producers_in_one_request_are_refused(other: dict[str, Any]) -> None:
    async def story(desk: Desk) -> None:
        for index in range(2):
            desk.lead(1, index=index)
        codes = await Produced(desk, {0: batch(), 1: batch(**other)}).codes()
        assert codes == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2
        assert desk.verifier.asked == []

    run_story(story, partitions=2)


def test_transactional_batch_without_an_id_refuses_the_whole_request() -> None:
    """Before anything is appended, also where the compiled path could append the other batches."""

    async def story(desk: Desk) -> None:
        for index in range(2):
            desk.lead(1, index=index)
            desk.append(index=index)
        plain = batch(producer_id=-1, transactional=False)
        codes = await Produced(desk, {0: plain, 1: batch()}, transactional_id=None).codes()
        assert codes == [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED] * 2
        assert [desk.replica(index).log.log_end_offset for index in range(2)] == [1, 1]

    run_story(story, partitions=2)


def test_id_without_transactional_batches_needs_no_coordinator() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        assert await produced(desk, producer_id=-1, transactional=False) is ErrorCode.NONE
        assert desk.verifier.asked == []

    run_story(story)


@pytest.mark.parametrize(("version", "asks"), [(11, 0), (12, 1)])
def test_verification_can_be_turned_off_but_not_the_adding(version: int, asks: int) -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        assert await produced(desk, version=version) is ErrorCode.NONE
        assert len(desk.verifier.asked) == asks

    run_story(story, settings={"transaction.partition.verification.enable": "false"})


def test_partition_stays_in_the_transaction_if_the_write_fails() -> None:
    """X33: min.insync.replicas is checked after the coordinator was asked."""

    async def story(desk: Desk) -> None:
        desk.topic_settings = {"min.insync.replicas": "2"}
        desk.lead(1)
        assert await produced(desk, acks=-1) is ErrorCode.NOT_ENOUGH_REPLICAS
        assert len(desk.verifier.asked) == 1

    run_story(story)


@other_broker
def test_acks_of_all_replicas_are_waited_for_after_the_coordinator() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1, isr=(1, 2))
        sent = Produced(desk, {0: batch()}, acks=-1)
        assert isinstance(sent.outcome, PendingAnswer)
        assert not sent.outcome.lets_follow, "the producer's next batch must not overtake this one"
        await turns()
        assert desk.replica().log.log_end_offset == 1
        assert not sent._connection.arrived.done()
        desk.follower_fetched(2, 1)
        assert await sent.codes() == [ErrorCode.NONE]

    run_story(story)


@other_broker
@pytest.mark.parametrize(("answer", "succeeds"), [(ErrorCode.NONE, True), (ABORTABLE, False)])
def test_request_without_response(answer: ErrorCode, succeeds: bool) -> None:
    """acks=0: a refusal closes the connection, as the producer would learn of it in no other way."""

    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.verifier.answers = [answer]
        sent = Produced(desk, {0: batch()}, acks=0)
        if succeeds:
            assert await sent._connection.arrived is None
        else:
            with pytest.raises(ConnectionError):
                await sent._connection.arrived

    run_story(story)


def test_damaged_batch_is_refused_by_the_append() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        damaged = bytearray(batch())
        damaged[-1] ^= 1
        assert await Produced(desk, {0: bytes(damaged)}).codes() == [ErrorCode.CORRUPT_MESSAGE]
        short = Produced(desk, {0: batch()[:40]})
        [code] = await short.codes()
        assert code != ErrorCode.NONE
        assert desk.replica().log.log_end_offset == 0

    run_story(story)


@other_broker
def test_bug_in_the_verifier_closes_the_connection() -> None:
    async def story(desk: Desk) -> None:
        desk.lead(1)
        desk.verifier.answers = [{}]
        sent = Produced(desk, {0: batch()})
        with pytest.raises(ConnectionError, match="internal error"):
            await sent._connection.arrived

    run_story(story)
