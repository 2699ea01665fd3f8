"""End markers on their way to the leaders: one connection and one request in flight for each broker, never a retry.

Rules: transactions.md X21, X22. Brokers are fakes that receive the requests as bytes; time is virtual.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnectionLost
from fenceline.node.transactions.marker_sender import _MOST_IN_A_REQUEST, MarkerSender
from fenceline.testing.simulation.loop import run
from fenceline.transactions.messages import EndMarkers, ProducerIdentity
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from tests.node.api.handlers.fakes import broker_image, image_of, partition, topic_image

HERE, THERE, ELSEWHERE = 1, 2, 3


class FakeBroker:
    """Answers WriteTxnMarkers; it is its own connection."""

    def __init__(self) -> None:
        self.newest = 2
        self.is_open = True
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.requests: list[Any] = []
        self.opened = self.closed = 0
        self.codes: dict[tuple[str, int], ErrorCode] = {}
        self.leaves_out: set[int] = set()
        """Producers that its responses do not have."""

    def version_for(self, key: ApiKey, low: int, high: int) -> int:
        if self.newest < low:
            raise NoSuchVersion("too old")
        return min(self.newest, high)

    def close(self) -> None:
        self.closed += 1

    async def call(self, key: ApiKey, version: int, fields: Mapping[str, Any], timeout_s: float) -> Any:
        request = read_request(key, version, write_request(key, version, fields))
        self.requests.append(request)
        try:
            async with asyncio.timeout(timeout_s):
                await self.may_answer.wait()
        except TimeoutError:
            raise PeerConnectionLost("no response in time") from None
        markers = [
            {
                "producer_id": each.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": self.codes.get((topic.name, index), 0)}
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in request.markers
            if each.producer_id not in self.leaves_out
        ]
        return read_response(key, version, write_response(key, version, {"markers": markers}))


class Cluster:
    """Topic `t`: partition 0 is led here, 1 and 2 by broker 2, 3 by broker 3, and 4 by none."""

    def __init__(self) -> None:
        self.brokers = {THERE: FakeBroker(), ELSEWHERE: FakeBroker()}
        leaders = (HERE, THERE, THERE, ELSEWHERE, -1)
        topic = topic_image("t", *(partition((HERE, THERE), leader=leader) for leader in leaders))
        self.image = image_of([topic], [broker_image(each) for each in (HERE, THERE, ELSEWHERE)])
        self.written: list[tuple[int, dict[int, ErrorCode]]] = []
        self.ended_here: list[tuple[int, tuple[Any, ...]]] = []
        self.here: asyncio.Future[Mapping[Any, ErrorCode]] | None = None
        self.is_reachable = True
        peers: Any = self
        self.sender = MarkerSender(
            HERE, lambda: self.image, peers, self.end_here, self.on_written, request_timeout_ms=1_000
        )

    def end_here(self, markers: EndMarkers) -> Any:
        self.ended_here.append((markers.identity.producer_id, markers.partitions))
        return self.here or dict.fromkeys(markers.partitions, ErrorCode.NONE)

    def on_written(self, markers: EndMarkers, codes: Mapping[Any, ErrorCode]) -> None:
        self.written.append((markers.identity.producer_id, {index: code for (_, index), code in codes.items()}))

    async def open(self, node_id: int, client_id: str) -> Any:
        broker = self.brokers[node_id]
        if not self.is_reachable:
            raise PeerConnectionLost("refused")
        broker.opened += 1
        return broker

    def send(self, producer_id: int, *indexes: int, commit: bool = True) -> None:
        partitions = tuple(("t", index) for index in indexes)
        identity = ProducerIdentity(producer_id, 3)
        self.sender.send(EndMarkers(0, 8, f"id-{producer_id}", identity, commit, 2, partitions))


def run_story(story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        cluster = Cluster()
        await story(cluster)
        await cluster.sender.close()
        assert len(asyncio.all_tasks()) == 1

    run(whole())


async def settled() -> None:
    await asyncio.sleep(0.01)


def test_each_leader_gets_its_markers_and_every_partition_a_code() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.brokers[THERE].codes["t", 2] = ErrorCode.NOT_LEADER_OR_FOLLOWER
        cluster.send(5, 0, 1, 2, 3, 4, 9)
        assert cluster.written == [
            (5, {4: ErrorCode.LEADER_NOT_AVAILABLE, 9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}),
            (5, {0: ErrorCode.NONE}),
        ]
        await settled()
        assert cluster.written[2:] == [
            (5, {1: ErrorCode.NONE, 2: ErrorCode.NOT_LEADER_OR_FOLLOWER}),
            (5, {3: ErrorCode.NONE}),
        ]
        (request,) = cluster.brokers[THERE].requests
        (marker,) = request.markers
        assert (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch) == (5, 3, 8)
        assert (marker.transaction_result, marker.transaction_version) == (True, 2)
        assert cluster.sender.waiting_count == 0

    run_story(story)


def test_markers_that_wait_leave_in_one_request() -> None:
    async def story(cluster: Cluster) -> None:
        there = cluster.brokers[THERE]
        there.may_answer.clear()
        cluster.send(5, 1)
        await settled()
        for producer_id in (6, 7, 8):
            cluster.send(producer_id, 1, 2)
        assert cluster.sender.waiting_count == 4
        there.may_answer.set()
        await settled()
        assert [[each.producer_id for each in request.markers] for request in there.requests] == [[5], [6, 7, 8]]
        assert there.opened == 1

    run_story(story)


def test_markers_of_many_transactions_leave_in_several_requests() -> None:
    async def story(cluster: Cluster) -> None:
        there = cluster.brokers[THERE]
        there.may_answer.clear()
        for producer_id in range(2 * _MOST_IN_A_REQUEST + 1):
            cluster.send(producer_id, 1)
        there.may_answer.set()
        await settled()
        sent = [[each.producer_id for each in request.markers] for request in there.requests]
        assert [len(each) for each in sent] == [_MOST_IN_A_REQUEST, _MOST_IN_A_REQUEST, 1]
        assert [number for each in sent for number in each] == list(range(2 * _MOST_IN_A_REQUEST + 1))
        assert len(cluster.written) == 2 * _MOST_IN_A_REQUEST + 1
        assert cluster.sender.waiting_count == 0

    run_story(story)


@pytest.mark.parametrize("trouble", ["unreachable", "silent", "too old"])
def test_broker_that_does_not_answer_is_a_network_error_and_asked_over_a_new_connection(trouble: str) -> None:
    async def story(cluster: Cluster) -> None:
        there = cluster.brokers[THERE]
        match trouble:
            case "unreachable":
                cluster.is_reachable = False
            case "silent":
                there.may_answer.clear()
            case _:
                there.newest = 0
        cluster.send(5, 1, 2)
        await asyncio.sleep(2)
        assert cluster.written == [(5, {1: ErrorCode.NETWORK_EXCEPTION, 2: ErrorCode.NETWORK_EXCEPTION})]
        cluster.is_reachable, there.newest = True, 2
        there.may_answer.set()
        before = there.opened
        cluster.send(5, 1)
        await settled()
        assert cluster.written[1:] == [(5, {1: ErrorCode.NONE})]
        assert there.opened == before + 1

    run_story(story)


def test_marker_that_a_response_leaves_out_is_a_network_error() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.brokers[THERE].leaves_out = {6}
        cluster.send(5, 1)
        cluster.send(6, 1)
        await settled()
        assert sorted(cluster.written) == [(5, {1: ErrorCode.NONE}), (6, {1: ErrorCode.NETWORK_EXCEPTION})]

    run_story(story)


def test_partition_led_here_is_written_without_a_request_and_may_take_time() -> None:
    async def story(cluster: Cluster) -> None:
        cluster.here = asyncio.get_running_loop().create_future()
        cluster.send(5, 0, commit=False)
        await settled()
        assert cluster.written == []
        cluster.here.set_result({("t", 0): ErrorCode.REQUEST_TIMED_OUT})
        await settled()
        assert cluster.written == [(5, {0: ErrorCode.REQUEST_TIMED_OUT})]

    run_story(story)


def test_link_to_a_broker_that_is_gone_is_forgotten_once_it_has_nothing_to_do() -> None:
    async def story(cluster: Cluster) -> None:
        there = cluster.brokers[THERE]
        there.may_answer.clear()
        cluster.send(5, 1)
        await settled()
        cluster.image = image_of(cluster.image.topics_by_name.values(), [broker_image(HERE)])
        cluster.sender.on_brokers_changed()
        assert there.closed == 0, "a request is in flight"
        there.may_answer.set()
        await settled()
        cluster.sender.on_brokers_changed()
        assert there.closed == 1

    run_story(story)


def test_nothing_is_told_after_the_end() -> None:
    """The next coordinator writes the markers."""

    async def story(cluster: Cluster) -> None:
        cluster.brokers[THERE].may_answer.clear()
        cluster.send(5, 1)
        await settled()
        await cluster.sender.close()
        cluster.send(6, 1, 4)
        await settled()
        assert cluster.written == []

    run_story(story)
