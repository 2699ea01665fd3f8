"""A controller that accepts requests without answering, as a frozen one: requests are resent to the next leader."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.partition_requests import AlterPartition, IsrChange, IsrMember
from fenceline.controller.requests import BrokerHeartbeat, SilentBroker
from fenceline.metadata.image import Endpoint
from fenceline.node.controller import channel as controller_channel
from fenceline.node.controller.channel import ControllerChannel
from fenceline.wire import entities
from fenceline.wire.apis import ApiKey
from fenceline.wire.frame import parse_request_header

TOPIC = UUID(int=4711)
CHANGE = IsrChange(0, 5, 9, (IsrMember(1, 101),))
WAIT_S = 60
ANSWERS: dict[ApiKey, dict[str, Any]] = {
    ApiKey.ALTER_PARTITION: {
        "topics": [
            {
                "topic_id": TOPIC,
                "partitions": [
                    {"partition_index": 0, "leader_id": 1, "leader_epoch": 5, "isr": (1,), "partition_epoch": 10}
                ],
            }
        ]
    },
    ApiKey.BROKER_HEARTBEAT: {"is_caught_up": True, "is_fenced": False, "should_shut_down": False},
}
REQUESTS = {
    ApiKey.ALTER_PARTITION: AlterPartition(1, 101, ((TOPIC, (CHANGE,)),)),
    ApiKey.BROKER_HEARTBEAT: BrokerHeartbeat(1, 101, 0, want_fence=False, want_shut_down=False),
}


class Controller:
    """`answers`: how many requests it answers per connection, including ApiVersions. `fenceline_level`: as
    `wire.extensions`."""

    def __init__(self, answers: int, fenceline_level: int = 0) -> None:
        self.asked: asyncio.Queue[int] = asyncio.Queue()
        self.heartbeats: list[Any] = []
        self._answers = answers
        self._level = fenceline_level
        self.endpoint: Endpoint | None = None

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.endpoint = Endpoint("CONTROLLER", "127.0.0.1", server.sockets[0].getsockname()[1], 0)
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self._answers
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                frame = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))
                header = parse_request_header(frame)
                self.asked.put_nowait(header.api_key)
                if not left:
                    continue
                left -= 1
                answer = header.correlation_id.to_bytes(4, "big")
                if header.api_key == ApiKey.API_VERSIONS:
                    keys = [{"api_key": key, "min_version": 0, "max_version": 3} for key in ANSWERS]
                    fields = {"error_code": 0, "api_keys": keys, "fenceline_level": self._level}
                    answer += entities.write_response(ApiKey.API_VERSIONS, header.api_version, fields)
                else:
                    key = ApiKey(header.api_key)
                    if key is ApiKey.BROKER_HEARTBEAT:
                        body = frame[header.body_position :]
                        self.heartbeats.append(entities.read_request(key, header.api_version, body))
                    answer += b"\0" + entities.write_response(key, header.api_version, ANSWERS[key])
                writer.write(len(answer).to_bytes(4, "big") + answer)
        writer.close()


class Quorum:
    """The leader as known by the broker's node: the parts of a controller driver that the channel uses."""

    def __init__(self, leader: Controller) -> None:
        self.is_active = self.has_failed = False
        self.active = SimpleNamespace(submit=None)
        self.quorum = SimpleNamespace(leader_endpoint=leader.endpoint, is_leader=False)
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next_change(self) -> asyncio.Future[None]:
        return self._change

    def learn(self, leader: Controller | None) -> None:
        self.quorum.leader_endpoint = leader.endpoint if leader is not None else None
        change, self._change = self._change, asyncio.get_running_loop().create_future()
        change.set_result(None)


@pytest.mark.parametrize("key", REQUESTS)
@pytest.mark.parametrize("answers", [0, 1])
@pytest.mark.parametrize("nobody_between", [False, True])
def test_request_is_resent_to_the_next_leader_at_once(
    key: ApiKey, answers: int, nobody_between: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time-out ends the wait: all of them are longer than this test."""
    monkeypatch.setattr(controller_channel, "_ANSWER_S", 1_000.0)

    async def story() -> None:
        frozen, following = Controller(answers), Controller(1_000)
        servers = [await each.serve() for each in (frozen, following)]
        quorum = Quorum(frozen)
        channel = ControllerChannel(quorum, node_id=1)  # type: ignore[arg-type]
        asking = asyncio.ensure_future(channel.submit(REQUESTS[key]))
        heard = [await asyncio.wait_for(frozen.asked.get(), WAIT_S) for _ in range(1 + answers)]
        assert heard == [ApiKey.API_VERSIONS, key][: 1 + answers]
        quorum.learn(frozen)
        await asyncio.sleep(0)
        assert not asking.done(), "the leader is unchanged"
        if nobody_between:
            quorum.learn(None)
            await asyncio.sleep(0)
        quorum.learn(following)
        answer = await asyncio.wait_for(asking, WAIT_S)
        if key is ApiKey.ALTER_PARTITION:
            ((_, (altered,)),) = answer.topics
            assert (altered.partition_epoch, altered.isr) == (10, (1,))
        channel.close()
        for server in servers:
            server.close()

    asyncio.run(story())


@pytest.mark.parametrize(("level", "reported"), [(0, ()), (1, ((2, 9),))])
def test_only_controllers_that_announce_it_get_reports_of_silent_brokers(
    level: int, reported: tuple[tuple[int, int], ...]
) -> None:
    """A Kafka controller does not."""

    async def story() -> None:
        controller = Controller(1_000, level)
        server = await controller.serve()
        channel = ControllerChannel(Quorum(controller), node_id=1)  # type: ignore[arg-type]
        beat = BrokerHeartbeat(1, 101, 0, silent_brokers=(SilentBroker(2, 9),))
        await asyncio.wait_for(channel.submit(beat), WAIT_S)
        (heard,) = controller.heartbeats
        assert tuple((each.broker_id, each.broker_epoch) for each in heard.silent_brokers) == reported
        channel.close()
        server.close()

    asyncio.run(story())
