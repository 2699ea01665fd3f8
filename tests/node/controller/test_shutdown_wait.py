"""Nodes that stop: with the consent of the controller, with an error, or while the whole cluster stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import BrokerHeartbeatAnswer
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.controller import broker_lifecycle
from fenceline.node.controller import channel as controller_channel
from fenceline.node.controller.broker_lifecycle import BrokerLifecycle
from fenceline.node.controller.channel import ControllerChannel
from fenceline.node.controller.shutdown_wait import wait_while_quorum_possible
from fenceline.quorum.control_records import Voter, VoterEndpoint

PATIENCE_S = 60
FOREVER_S = 3600.0
GONE, SILENT, THERE = "gone", "silent", "there"


class OtherController:
    """A remote controller: `answers` to heartbeats, then silence; `looks` for a majority (the last one repeats)."""

    has_failed = False
    is_done: asyncio.Event

    def __init__(self, answers: Sequence[BrokerHeartbeatAnswer | PeerError], looks: Sequence[bool]) -> None:
        self.answers, self.looks = list(answers), list(looks)
        self.image = SimpleNamespace(offset=7)
        self.channel = self

    def submit(self, request: Any) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.answers:
            said = self.answers.pop(0)
            if isinstance(said, PeerError):
                answer.set_exception(said)
            else:
                answer.set_result(said)
        return answer

    async def has_no_majority(self) -> bool:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


def heartbeat_answer(*, should_shut_down: bool) -> BrokerHeartbeatAnswer:
    return BrokerHeartbeatAnswer(is_caught_up=True, is_fenced=False, should_shut_down=should_shut_down)


async def shut_down(controller: OtherController) -> None:
    lifecycle = BrokerLifecycle(1, controller)  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        await lifecycle.controlled_shutdown()


@pytest.fixture(autouse=True)
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every wait for a time-out visible."""
    for limit in ("_SHUTDOWN_TIMEOUT_S", "_NO_RESPONSE_S"):
        monkeypatch.setattr(broker_lifecycle, limit, FOREVER_S)


def test_broker_stops_when_the_controller_allows_it() -> None:
    keep, go = heartbeat_answer(should_shut_down=False), heartbeat_answer(should_shut_down=True)
    controller = OtherController([keep, keep, go], [False])
    asyncio.run(shut_down(controller))
    assert not controller.answers


def test_broker_stops_without_a_majority_of_controllers() -> None:
    """No answer arrives; the second check finds the other controllers stopped."""
    controller = OtherController([heartbeat_answer(should_shut_down=False)], [False, True])
    asyncio.run(shut_down(controller))
    assert controller.looks == [True]


def test_error_of_the_controller_is_raised() -> None:
    with pytest.raises(PeerError) as refused:
        asyncio.run(shut_down(OtherController([PeerError(ErrorCode.STALE_BROKER_EPOCH, "another")], [False])))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_shutdown_waits_for_a_controller_election() -> None:
    nobody, go = PeerError(ErrorCode.NOT_CONTROLLER, "nobody leads"), heartbeat_answer(should_shut_down=True)
    controller = OtherController([nobody, nobody, go], [False])
    asyncio.run(shut_down(controller))
    assert not controller.answers


@pytest.mark.parametrize("limit", ["_SHUTDOWN_TIMEOUT_S", "_NO_RESPONSE_S"])
def test_shutdown_wait_for_a_silent_majority_is_limited(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lifecycle, limit, 0.0)
    asyncio.run(shut_down(OtherController([], [False])))


def test_responding_controller_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no limit: leaders move, and every other broker must learn of it."""
    monkeypatch.setattr(broker_lifecycle, "_NO_RESPONSE_S", 0.0)
    keep, go = heartbeat_answer(should_shut_down=False), heartbeat_answer(should_shut_down=True)

    class Slow(OtherController):
        def submit(self, request: Any) -> asyncio.Future[Any]:
            answer = super().submit(request)
            if not self.answers:
                self.is_done.set()
            return answer

        async def has_no_majority(self) -> bool:
            await self.is_done.wait()
            return False

    controller = Slow([keep, go], [False])
    controller.is_done = asyncio.Event()
    asyncio.run(shut_down(controller))
    assert not controller.answers


# --- a controller that stops --------------------------------------------------------------------------------------


def test_quorum_work_ends_without_a_majority() -> None:
    async def stop() -> list[str]:
        gave_up = asyncio.Event()
        done = []

        async def work() -> None:
            await gave_up.wait()
            done.append("work")

        async with asyncio.timeout(PATIENCE_S):
            await wait_while_quorum_possible(OtherController([], [False, False, True]), work(), gave_up.set)
        return done

    assert asyncio.run(stop()) == ["work"]


@pytest.mark.parametrize("others", [None, OtherController([], [False])])
def test_quorum_work_continues_while_a_majority_is_possible(others: OtherController | None) -> None:
    async def stop() -> None:
        looked = asyncio.Event()

        async def work() -> None:
            # Longer than one check.
            await asyncio.wait_for(looked.wait(), PATIENCE_S)

        asyncio.get_running_loop().call_later(0.2, looked.set)
        async with asyncio.timeout(PATIENCE_S):
            await wait_while_quorum_possible(others, work(), lambda: pytest.fail("it gave up"))

    asyncio.run(stop())


def test_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        asyncio.run(wait_while_quorum_possible(OtherController([], [False]), work(), lambda: None))


# --- reachable controllers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own_id", "states", "expected"),
    [
        (1, (THERE, THERE, THERE), False),
        (1, (THERE, GONE, THERE), False),
        (1, (THERE, GONE, GONE), True),
        (1, (THERE, GONE, SILENT), False),
        (1, (THERE, SILENT, SILENT), False),
        (1, (THERE, GONE), True),
        (1, (THERE, THERE), False),
        (1, (THERE,), False),
        (9, (GONE, THERE, THERE), False),
        (9, (GONE, GONE, THERE), True),
        (9, (GONE,), True),
        (1, (THERE, GONE, THERE, THERE), False),
        (1, (THERE, GONE, GONE, THERE), True),
    ],
)
def test_refused_connections_that_exclude_a_majority(
    own_id: int, states: Sequence[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a refused connection shows that a process has stopped."""
    monkeypatch.setattr(controller_channel, "_REFUSAL_S", 0.0 if SILENT in states else FOREVER_S)

    async def connect(factory: Any, host: str, port: int) -> tuple[Any, Any]:
        assert port != own_id, "it connects to itself"
        if states[port - 1] == GONE:
            raise ConnectionRefusedError
        if states[port - 1] == SILENT:
            await asyncio.Event().wait()
        return SimpleNamespace(close=lambda: None), factory()

    voters = [
        Voter(node_id, UUID(int=node_id), (VoterEndpoint("CONTROLLER", "voter", node_id),))
        for node_id in range(1, len(states) + 1)
    ]

    async def look() -> bool:
        controller: Any = SimpleNamespace(node_id=own_id, quorum=SimpleNamespace(voters=voters))
        channel = ControllerChannel(controller, node_id=own_id, connect=connect)  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE_S):
            return await channel.has_no_majority()

    assert asyncio.run(look()) is expected
