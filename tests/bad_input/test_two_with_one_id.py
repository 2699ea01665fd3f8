"""Two processes with one node id, as each part of a node detects it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.controller.requests import RegisterBrokerAnswer, RegisterController
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import Endpoint
from fenceline.node.controller import broker_lifecycle
from fenceline.node.controller.broker_lifecycle import BrokerLifecycle
from fenceline.node.controller.registration import ControllerRegistration
from fenceline.node.logs import redirect
from fenceline.quorum.duties import Level, LogLine
from fenceline.quorum.messages import VoteRequest, VoteResponse
from tests.quorum.machine import Machine

PATIENCE_S = 60
Line = tuple[str, str, dict[str, Any]]


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    reported: list[Line] = []
    before = redirect(lambda level, room, event, fields: reported.append((level, event, fields)))
    yield reported
    redirect(before)


# --- controllers ------------------------------------------------------------------------------------------------------


class SharedCluster:
    """An active controller shared by two processes: each registration is committed at once and visible to both."""

    node_id = 3

    def __init__(self) -> None:
        self.image = SimpleNamespace(metadata_version=30, controllers={}, offset=0)
        self.registrations: list[UUID] = []
        self._changes: list[asyncio.Future[None]] = []

    def next_change(self) -> asyncio.Future[None]:
        change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes.append(change)
        return change

    async def submit(self, request: RegisterController) -> None:
        self.registrations.append(request.incarnation_id)
        endpoints = (Endpoint("CONTROLLER", "elsewhere", 9093, 0),)
        self.image.controllers[3] = SimpleNamespace(incarnation_id=request.incarnation_id, endpoints=endpoints)
        changes, self._changes = self._changes, []
        for change in changes:
            if not change.done():
                change.set_result(None)
        await asyncio.sleep(0)


def test_controllers_with_one_id_back_off_registration(lines: list[Line], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each replaces the registration of the other; the pauses grow, and both nodes report it."""
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(delay: float) -> None:
        if delay:
            pauses.append(delay)
        await real_sleep(0)

    async def story() -> list[UUID]:
        cluster = SharedCluster()
        both = [ControllerRegistration(cluster, 3, (), SUPPORTED) for _ in range(2)]  # type: ignore[arg-type]
        for each in both:
            each.start()
        async with asyncio.timeout(PATIENCE_S):
            while len(pauses) < 20:
                await real_sleep(0)
        for each in both:
            await each.stop()
        return cluster.registrations

    monkeypatch.setattr(asyncio, "sleep", sleep)
    registrations = asyncio.run(story())
    # 20 pauses, growing from a second to a minute, for a handful of records.
    assert len(registrations) <= len(pauses) + 10
    assert sorted(pauses)[0] == 1.0
    assert sorted(pauses)[-1] == 60.0
    level, event, fields = lines[0]
    assert (level, event) == ("error", "another process registers as this controller")
    assert fields["node"] == 3
    assert fields["other"] == "elsewhere:9093"
    assert "node.id=3" in fields["advice"]


def test_a_controller_registers_once() -> None:
    async def story() -> int:
        cluster = SharedCluster()
        one = ControllerRegistration(cluster, 3, (), SUPPORTED)  # type: ignore[arg-type]
        one.start()
        for _ in range(50):
            await asyncio.sleep(0)
        await one.stop()
        return len(cluster.registrations)

    assert asyncio.run(story()) == 1


# --- brokers ----------------------------------------------------------------------------------------------------------


class OtherController:
    """Returns the answers in turn; the last one repeats."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.channel = self
        self.has_failed = False
        self.image = SimpleNamespace(brokers={4: SimpleNamespace(epoch=7)}, offset=7)
        self.active = SimpleNamespace(own_broker_epoch=-1)

    async def submit(self, request: Any) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def next_change(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()


def register(*answers: Any) -> BrokerLifecycle:
    async def story() -> BrokerLifecycle:
        lifecycle = BrokerLifecycle(4, OtherController(*answers))  # type: ignore[arg-type]
        async with asyncio.timeout(PATIENCE_S):
            await lifecycle.register(
                cluster_id="c", endpoints=(), features=SUPPORTED, rack=None, log_dirs=(), previous_broker_epoch=-1
            )
        lifecycle.close()
        return lifecycle

    return asyncio.run(story())


@pytest.mark.parametrize(("attempts", "reported"), [(49, 0), (60, 1), (340, 1), (360, 2)])
def test_duplicate_broker_id_is_reported_periodically(
    lines: list[Line], monkeypatch: pytest.MonkeyPatch, attempts: int, reported: int
) -> None:
    """A broker that restarts after a kill waits until its old session expires; a long wait is reported."""
    monkeypatch.setattr(broker_lifecycle, "_RETRY_S", 0)
    taken = PeerError(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    lifecycle = register(*[taken] * attempts, RegisterBrokerAnswer(7))
    assert lifecycle.broker_epoch == 7
    assert [event for _, event, _ in lines] == ["broker not registered yet"] * reported
    if reported:
        fields = lines[0][2]
        assert "broker 4 is registered by another process" in fields["reason"]
        assert "node.id=4" in fields["advice"]
        assert "broker.session.timeout.ms" in fields["advice"]


@pytest.mark.parametrize(
    ("error", "message", "advice"),
    [
        (ErrorCode.INCONSISTENT_CLUSTER_ID, "expected cluster a, got b", "cluster.id in meta.properties"),
        (ErrorCode.UNSUPPORTED_VERSION, "metadata.version 99 is not supported", "fenceline features list"),
        (ErrorCode.INVALID_REGISTRATION, "no directories", "Correct the reported problem"),
    ],
)
def test_rejected_registration_stops_the_start_with_the_reason(error: ErrorCode, message: str, advice: str) -> None:
    with pytest.raises(OperatorError) as refused:
        register(PeerError(error, message))
    assert refused.value.message == f"Cannot register broker 4: {message}"
    assert advice in refused.value.advice


# --- the quorum -------------------------------------------------------------------------------------------------------


def test_peer_naming_this_node_as_leader_wrongly_is_reported() -> None:
    """A process with a copy of its directory leads."""
    machine = Machine()
    machine.to_prospective()
    machine.reply(machine.request_id(2, VoteRequest), VoteResponse(leader_id=1, leader_epoch=9))
    (said,) = machine.found(LogLine)
    assert said.level is Level.ERROR
    assert said.text == "A peer names node 1 as the leader of epoch 9, but this process does not lead it."
    assert "node.id=1" in said.advice
    assert machine.quorum.leader_id == -1
