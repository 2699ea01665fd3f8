"""Other replicas are asked before a coordinator answers from memory: one request in flight for each broker, questions
that are repeated, reads whose patience ends. The other brokers are fakes that receive the requests as bytes.

The answers of a Fenceline broker are compared with what the leader takes them for. Rules: epochs.md E2, E37.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TopicPartition
from fenceline.metadata.image import LeaderRecoveryState, MetadataImage
from fenceline.node.coordination import read_barriers
from fenceline.node.coordination.read_barriers import ReadBarriers
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnectionLost
from fenceline.replica.leader import InSyncRules, LeaderState
from fenceline.replica.read_barrier import OfficeAnswer, office_answer
from fenceline.replica.waiters import Waiters
from fenceline.wire.apis import ApiKey
from tests.node.answering_peer import AnsweringPeer
from tests.node.api.handlers.fakes import image_of, partition, topic_image
from tests.node.desk import Desk, run_story, turns

NONE, NOT_COORDINATOR = ErrorCode.NONE, ErrorCode.NOT_COORDINATOR
NOT_REPLACED = ErrorCode.UNKNOWN_LEADER_EPOCH
EPOCH = 7


class Peer(AnsweringPeer):
    """A broker with replicas: answers when the test says so."""

    def __init__(self) -> None:
        super().__init__(newest=4)
        self.codes: dict[int, ErrorCode] = {}
        """By partition; others NOT_REPLACED."""
        self.attempts = 0

    def version_for(self, key: ApiKey, low: int, high: int) -> int:
        assert key is ApiKey.OFFSET_FOR_LEADER_EPOCH
        return super().version_for(key, low, high)

    def fields_of(self, request: Any) -> dict[str, Any]:
        topics = [
            {
                "topic": topic.topic,
                "partitions": [
                    {"error_code": self.codes.get(each.partition, NOT_REPLACED), "partition": each.partition}
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
        return {"topics": topics}


async def until(condition: Callable[[], object]) -> None:
    """Wait; the test's own limit ends it."""
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it did not happen")


class Stage:
    """Broker 1 leads two partitions of `__consumer_offsets`; 2 and 3 are in sync."""

    def __init__(self, patience_ms: int = 60_000) -> None:
        self.peers = {2: Peer(), 3: Peer()}
        self.isr = (1, 2, 3)
        self.partition_epoch = 0
        self.replicas: list[Any] = [
            SimpleNamespace(leader=self._leader(), waiters=Waiters()),
            SimpleNamespace(leader=self._leader(), waiters=Waiters()),
        ]
        led: Any = SimpleNamespace(leader=self._led)
        peers: Any = self
        self.barriers = ReadBarriers(1, led, self._image, peers, patience_ms=patience_ms, request_timeout_ms=30_000)
        self.codes: list[ErrorCode] = []

    def _leader(self) -> LeaderState:
        return LeaderState(
            node_id=1,
            broker_epoch=1,
            leader_epoch=EPOCH,
            partition_epoch=0,
            replicas=(1, 2, 3),
            isr=frozenset(self.isr),
            epoch_start_offset=0,
            rules=InSyncRules(lambda _: 9, 30_000),
        )

    def _led(self, topic: str, topic_id: None, index: int) -> Any:
        if self.replicas[index].leader is None:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.replicas[index]

    def _image(self) -> MetadataImage:
        state = partition((1, 2, 3), isr=self.isr, leader_epoch=EPOCH, partition_epoch=self.partition_epoch, leader=1)
        return image_of([topic_image(CONSUMER_OFFSETS_TOPIC, state, state, number=3)])

    async def open(self, node_id: int, client_id: str) -> Any:
        assert client_id == "broker-1-read-barrier"
        peer = self.peers[node_id]
        peer.attempts += 1
        if peer.fails is not None:
            raise peer.fails
        peer.opened += 1
        peer.is_open = True
        return peer

    def shrink(self, *isr: int) -> None:
        """The metadata shows another ISR."""
        self.isr = isr
        self.partition_epoch += 1
        for replica in self.replicas:
            replica.leader.isr = frozenset(isr)
            replica.leader.partition_epoch = self.partition_epoch
            self.wake(replica)

    def wake(self, replica: Any) -> None:
        for callback in tuple(replica.waiters):
            callback()

    def resign(self, index: int = 0) -> None:
        self.replicas[index].leader = None
        self.wake(self.replicas[index])

    def read(self, index: int = 0, epoch: int = EPOCH) -> None:
        self.barriers.confirm(TopicPartition(CONSUMER_OFFSETS_TOPIC, index), epoch, self.codes.append)

    async def answered(self, count: int = 1) -> list[ErrorCode]:
        """The codes of reads, when there are so many."""
        await until(lambda: len(self.codes) >= count)
        return self.codes

    def rests(self) -> bool:
        """Nothing is left of reads that were answered."""
        is_watched = any(replica.waiters for replica in self.replicas)
        links = self.barriers._links.values()
        return not (is_watched or self.barriers._barriers or any(link._waiting for link in links))


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_barriers, "_RETRY_S", 0.001)


def run(story: Callable[[Stage], Coroutine[Any, Any, None]], **given: Any) -> None:
    async def whole() -> None:
        stage = Stage(**given)
        await story(stage)
        await stage.barriers.close()

    asyncio.run(asyncio.wait_for(whole(), 30))


def test_all_members_are_asked_about_the_next_epoch() -> None:
    async def story(stage: Stage) -> None:
        stage.read(1)
        assert stage.codes == []
        assert await stage.answered() == [NONE]
        for peer in stage.peers.values():
            (request,) = peer.requests
            assert request.replica_id == 1
            (topic,) = request.topics
            assert topic.topic == CONSUMER_OFFSETS_TOPIC
            (row,) = topic.partitions
            assert (row.partition, row.current_leader_epoch, row.leader_epoch) == (1, EPOCH + 1, EPOCH)
        assert stage.rests()
        assert stage.barriers.durations.count == 1

    run(story)


def test_no_question_without_other_members() -> None:
    async def story(stage: Stage) -> None:
        stage.shrink(1)
        stage.read()
        assert stage.codes == [NONE]
        assert stage.barriers._links == {}

    run(story)


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE], ids=str
)
def test_one_member_of_a_later_epoch_suffices_to_reject(code: ErrorCode) -> None:
    async def story(stage: Stage) -> None:
        stage.peers[2].may_answer.clear()
        stage.peers[3].codes = {0: code}
        stage.read()
        stage.read()
        assert await stage.answered(2) == [NOT_COORDINATOR] * 2
        assert stage.rests()
        assert stage.barriers.rejected == 2

    run(story)


def test_reads_wait_for_a_question_that_is_sent_after_them() -> None:
    async def story(stage: Stage) -> None:
        for peer in stage.peers.values():
            peer.may_answer.clear()
        stage.read()
        stage.read()
        await turns()
        stage.read()
        stage.read()
        await turns()
        assert [len(peer.requests) for peer in stage.peers.values()] == [1, 1]
        for peer in stage.peers.values():
            peer.may_answer.set()
        assert await stage.answered(4) == [NONE] * 4
        assert [len(peer.requests) for peer in stage.peers.values()] == [2, 2]
        assert [peer.opened for peer in stage.peers.values()] == [1, 1]

    run(story)


def test_partitions_share_requests() -> None:
    async def story(stage: Stage) -> None:
        stage.read(0)
        stage.read(1)
        assert await stage.answered(2) == [NONE] * 2
        (request,) = stage.peers[2].requests
        assert [row.partition for row in request.topics[0].partitions] == [0, 1]

    run(story)


@pytest.mark.parametrize("code", [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.KAFKA_STORAGE_ERROR], ids=str)
def test_a_member_that_knows_nothing_of_the_epoch_is_asked_again(code: ErrorCode) -> None:
    async def story(stage: Stage) -> None:
        stage.peers[2].codes = {0: code}
        stage.read()
        await until(lambda: len(stage.peers[2].requests) >= 3)
        assert stage.codes == []
        stage.peers[2].codes = {}
        assert await stage.answered() == [NONE]
        assert len(stage.peers[3].requests) == 1

    run(story)


@pytest.mark.parametrize(
    "error", [PeerConnectionLost("gone"), ConnectionRefusedError("closed"), NoSuchVersion("old")], ids=repr
)
def test_a_member_that_cannot_be_asked_is_waited_for_until_it_leaves_the_isr(error: Exception) -> None:
    async def story(stage: Stage) -> None:
        stage.peers[2].fails = error
        stage.read()
        await until(lambda: stage.peers[2].attempts >= 3 and stage.peers[3].requests)
        assert stage.codes == []
        stage.shrink(1, 3)
        assert await stage.answered() == [NONE]
        assert stage.rests()

    run(story)


def test_a_connection_that_failed_is_opened_again() -> None:
    async def story(stage: Stage) -> None:
        stage.read()
        await stage.answered()
        stage.peers[2].fails = PeerConnectionLost("gone")
        stage.read()
        await until(lambda: stage.peers[2].attempts >= 2)
        stage.peers[2].fails = None
        assert await stage.answered(2) == [NONE] * 2
        assert [peer.opened for peer in stage.peers.values()] == [2, 1]

    run(story)


def test_a_member_that_joins_is_asked_too() -> None:
    async def story(stage: Stage) -> None:
        stage.shrink(1, 2)
        stage.peers[2].may_answer.clear()
        stage.peers[3].may_answer.clear()
        stage.read()
        await turns()
        stage.shrink(1, 2, 3)
        stage.peers[2].may_answer.set()
        await turns(50)
        assert stage.codes == []
        stage.peers[3].may_answer.set()
        assert await stage.answered() == [NONE]

    run(story)


def test_reads_wait_for_metadata_as_new_as_the_leader() -> None:
    async def story(stage: Stage) -> None:
        leader = stage.replicas[0].leader
        leader.isr, leader.partition_epoch = frozenset({1}), 1
        stage.read()
        await turns()
        assert stage.codes == []
        assert not stage.peers[2].requests
        stage.shrink(1)
        assert stage.codes == [NONE]

    run(story)


def test_patience_ends(capsys: pytest.CaptureFixture[str]) -> None:
    async def story(stage: Stage) -> None:
        stage.peers[3].may_answer.clear()
        stage.read()
        assert await stage.answered() == [NOT_COORDINATOR]
        assert '"waits_for": [3]' in capsys.readouterr().err
        assert stage.rests()
        stage.read()
        stage.peers[3].may_answer.set()
        assert await stage.answered(2) == [NOT_COORDINATOR, NONE]

    run(story, patience_ms=50)


def test_reads_end_with_the_leadership() -> None:
    async def story(stage: Stage) -> None:
        for peer in stage.peers.values():
            peer.may_answer.clear()
        stage.read(0)
        stage.read(1)
        stage.resign(0)
        assert stage.codes == [NOT_COORDINATOR]
        stage.read(0)
        assert stage.codes == [NOT_COORDINATOR] * 2
        stage.read(1, EPOCH - 1)
        assert stage.codes == [NOT_COORDINATOR] * 3

    run(story)


def test_reads_of_an_earlier_epoch_end_when_one_of_a_later_epoch_arrives() -> None:
    async def story(stage: Stage) -> None:
        stage.peers[3].may_answer.clear()
        stage.read()
        stage.replicas[0].leader.leader_epoch = EPOCH + 1
        stage.read(epoch=EPOCH + 1)
        assert stage.codes == [NOT_COORDINATOR]
        stage.peers[3].may_answer.set()
        assert await stage.answered(2) == [NOT_COORDINATOR, NONE]
        assert stage.peers[3].requests[-1].topics[0].partitions[0].current_leader_epoch == EPOCH + 2

    run(story)


def test_a_node_that_stops_answers() -> None:
    async def story(stage: Stage) -> None:
        stage.peers[3].may_answer.clear()
        stage.read()
        await turns()
        await stage.barriers.close()
        assert stage.codes == [NOT_COORDINATOR]
        stage.read()
        assert stage.codes == [NOT_COORDINATOR] * 2
        assert not stage.peers[3].is_open

    run(story)


def test_metrics() -> None:
    async def story(stage: Stage) -> None:
        stage.read()
        await stage.answered()
        stage.resign()
        stage.read()
        values = {sample.name: sample.value for family in stage.barriers.collect() for sample in family.samples}
        assert values["fenceline_stable_reads_rejected_total"] == 1
        assert values["fenceline_stable_read_confirmation_seconds_count"] == 1

    run(story)


def _follows(desk: Desk) -> None:
    desk.follow(EPOCH)


def _follows_in_an_earlier_epoch(desk: Desk) -> None:
    desk.follow(EPOCH - 1)


def _is_elected(desk: Desk) -> None:
    desk.follow(EPOCH)
    desk.lead(EPOCH + 1)


def _is_elected_while_its_log_is_cut(desk: Desk) -> None:
    """It leads once the cut has ended."""
    desk.follow(EPOCH).is_being_cut = True
    desk.lead(EPOCH + 1)


def _recovers_after_an_unclean_election(desk: Desk) -> None:
    desk.follow(EPOCH)
    desk.lead(EPOCH + 1, leader_recovery_state=LeaderRecoveryState.RECOVERING)


def _follows_the_next_leader(desk: Desk) -> None:
    _follows(desk)
    desk.follow(EPOCH + 1, leader=3)


def _has_led(desk: Desk) -> None:
    _is_elected(desk)
    desk.follow(EPOCH + 2, leader=3)


def _has_led_and_was_moved_away(desk: Desk) -> None:
    _is_elected(desk)
    desk.tell(leader=3, leader_epoch=EPOCH + 2, replicas=(2, 3), isr=(2, 3))


def _has_no_leader(desk: Desk) -> None:
    _follows(desk)
    desk.tell(leader=-1, leader_epoch=EPOCH + 1)


def _has_lost_its_topic(desk: Desk) -> None:
    _follows(desk)
    desk.delete_topic()


@pytest.mark.parametrize(
    ("replica", "meaning"),
    [
        (_follows, OfficeAnswer.CONFIRMED),
        (_follows_in_an_earlier_epoch, OfficeAnswer.CONFIRMED),
        (_is_elected_while_its_log_is_cut, OfficeAnswer.CONFIRMED),
        (_is_elected, OfficeAnswer.REPLACED),
        (_recovers_after_an_unclean_election, OfficeAnswer.REPLACED),
        (_follows_the_next_leader, OfficeAnswer.REPLACED),
        (_has_led, OfficeAnswer.REPLACED),
        (_has_led_and_was_moved_away, OfficeAnswer.REPLACED),
        (_has_no_leader, OfficeAnswer.REPLACED),
        (_has_lost_its_topic, OfficeAnswer.UNDECIDED),
    ],
)
def test_answers_of_a_replica(replica: Callable[[Desk], None], meaning: OfficeAnswer) -> None:
    async def story(desk: Desk) -> None:
        replica(desk)
        answer = await desk.epoch_end(EPOCH, current=EPOCH + 1)
        assert office_answer(answer.error_code) is meaning

    run_story(story)
