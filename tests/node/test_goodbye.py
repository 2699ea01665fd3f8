"""Nodes that stop: let go by the controller, refused, or left alone because the whole cluster stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import BrokerHeartbeatAnswer
from fenceline.errors import ErrorCode, PeerError
from fenceline.node import broker_lifecycle, controller_channel
from fenceline.node.broker_lifecycle import BrokerLifecycle
from fenceline.node.controller_channel import ControllerChannel
from fenceline.node.shutdown_wait import wait_while_quorum_possible
from fenceline.quorum.control_records import Voter, VoterEndpoint

PATIENCE_S = 60
FOREVER_S = 3600.0
GONE, SILENT, THERE = "gone", "silent", "there"


class OtherController:
    """A controller elsewhere: `answers` to heartbeats, then silence; `looks` at the majority, the last for good."""

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


async def goodbye(controller: OtherController) -> None:
    lifecycle = BrokerLifecycle(1, controller)  # type: ignore[arg-type]
    async with asyncio.timeout(PATIENCE_S):
        await lifecycle.controlled_shutdown()


@pytest.fixture(autouse=True)
def forever(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that waiting for it would be seen."""
    for limit in ("_SHUTDOWN_TIMEOUT_S", "_NO_RESPONSE_S"):
        monkeypatch.setattr(broker_lifecycle, limit, FOREVER_S)


def test_the_controller_lets_the_broker_go() -> None:
    keep, go = heartbeat_answer(should_shut_down=False), heartbeat_answer(should_shut_down=True)
    controller = OtherController([keep, keep, go], [False])
    asyncio.run(goodbye(controller))
    assert not controller.answers


def test_nobody_is_left_to_let_it_go() -> None:
    """No answer ever comes; the second look finds the others gone."""
    controller = OtherController([heartbeat_answer(should_shut_down=False)], [False, True])
    asyncio.run(goodbye(controller))
    assert controller.looks == [True]


def test_what_the_controller_refuses_is_raised() -> None:
    with pytest.raises(PeerError) as refused:
        asyncio.run(goodbye(OtherController([PeerError(ErrorCode.STALE_BROKER_EPOCH, "another")], [False])))
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH


def test_an_election_of_controllers_is_waited_for() -> None:
    nobody, go = PeerError(ErrorCode.NOT_CONTROLLER, "nobody leads"), heartbeat_answer(should_shut_down=True)
    controller = OtherController([nobody, nobody, go], [False])
    asyncio.run(goodbye(controller))
    assert not controller.answers


@pytest.mark.parametrize("limit", ["_SHUTDOWN_TIMEOUT_S", "_NO_RESPONSE_S"])
def test_a_majority_that_stays_silent_is_not_waited_for_for_ever(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lifecycle, limit, 0.0)
    asyncio.run(goodbye(OtherController([], [False])))


def test_a_controller_that_answers_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes as long as it takes: leaders move, and every other broker must know."""
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
    asyncio.run(goodbye(controller))
    assert not controller.answers


# --- a controller that stops --------------------------------------------------------------------------------------


def test_work_that_needs_others_ends_when_they_are_gone() -> None:
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
def test_work_is_waited_for_while_they_are_there(others: OtherController | None) -> None:
    async def stop() -> None:
        looked = asyncio.Event()

        async def work() -> None:
            # Longer than one look.
            await asyncio.wait_for(looked.wait(), PATIENCE_S)

        asyncio.get_running_loop().call_later(0.2, looked.set)
        async with asyncio.timeout(PATIENCE_S):
            await wait_while_quorum_possible(others, work(), lambda: pytest.fail("it gave up"))

    asyncio.run(stop())


def test_what_work_raises_is_raised() -> None:
    async def work() -> None:
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        asyncio.run(wait_while_quorum_possible(OtherController([], [False]), work(), lambda: None))


# --- who is there -------------------------------------------------------------------------------------------------


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
def test_refusals_that_leave_no_majority(
    own_id: int, states: Sequence[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a refused connection tells that a process is gone."""
    monkeypatch.setattr(controller_channel, "_REFUSAL_S", 0.0 if SILENT in states else FOREVER_S)

    async def connect(factory: Any, host: str, port: int) -> tuple[Any, Any]:
        assert port != own_id, "it asks itself"
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
