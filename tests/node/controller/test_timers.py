"""When an active controller checks the sessions of brokers (controller.md C17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import FenceStaleBroker, RemoveExpiredTokens
from fenceline.controller.sessions import Sessions
from fenceline.node.controller.timers import ControllerTimers
from tests.node.controller_helpers import StillClock

_SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "log.dirs": "/d",
    "broker.session.timeout.ms": "1600",
    "broker.heartbeat.interval.ms": "300",
    "auto.leader.rebalance.enable": "false",
}
_PERIOD_MS = 200


def test_expired_tokens_are_looked_for_if_there_may_be_any(monkeypatch: pytest.MonkeyPatch) -> None:
    """security.md A32."""
    for secret, expected in (("", []), ("secret", [RemoveExpiredTokens(12_345)])):
        submitted: list[object] = []

        async def play(secret: str, submitted: list[object]) -> None:
            loop = asyncio.get_running_loop()
            due: list[tuple[float, Callable[[], object]]] = []
            monkeypatch.setattr(loop, "call_later", lambda delay_s, callback: due.append((delay_s, callback)))

            def submit(request: object) -> asyncio.Future[Any]:
                submitted.append(request)
                return loop.create_future()

            controller: Any = SimpleNamespace(node_id=1, own_broker_epoch=5, submit=submit, broker_count=3)
            state: Any = SimpleNamespace(sessions=Sessions(1600))
            clock: Any = SimpleNamespace(now_ms=lambda: 12_345, monotonic_ms=lambda: 1)
            config = {
                **_SETTINGS,
                "delegation.token.secret.key": secret,
                "delegation.token.expiry.check.interval.ms": "7000",
            }
            ControllerTimers(controller, state, NodeConfig.load(None, config), clock).start()
            for callback in [callback for delay_s, callback in due if delay_s == 7]:
                callback()

        asyncio.run(play(secret, submitted))
        assert submitted == expected


def test_session_is_checked_when_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not up to an eighth of the session later."""
    clock, sessions = StillClock(), Sessions(1600)
    due: dict[Callable[[], object], int] = {}
    submitted: list[tuple[int, object]] = []

    async def play() -> None:
        loop = asyncio.get_running_loop()

        def call_later(delay_s: float, callback: Callable[[], object]) -> asyncio.Handle:
            due[callback] = clock.ms + round(delay_s * 1000)
            return asyncio.Handle(callback, (), loop)

        def submit(request: object) -> asyncio.Future[Any]:
            submitted.append((clock.ms, request))
            return loop.create_future()

        def pass_time(until_ms: int) -> None:
            while due and min(due.values()) <= until_ms:
                first = min(due, key=lambda callback: due[callback])
                clock.ms = due.pop(first)
                first()
            clock.ms = until_ms

        monkeypatch.setattr(loop, "call_later", call_later)
        controller: Any = SimpleNamespace(node_id=1, own_broker_epoch=5, submit=submit, broker_count=3)
        state: Any = SimpleNamespace(sessions=sessions)
        timers = ControllerTimers(controller, state, NodeConfig.load(None, _SETTINGS), clock)
        timers.start()
        began = clock.ms
        pass_time(began + 70)
        sessions.begin(2, 7, clock.ms, 0)
        pass_time(began + 130)
        sessions.begin(3, 8, clock.ms, 0)
        pass_time(began + 1669)
        assert submitted == []
        pass_time(began + 1670)
        assert submitted == [(began + 1670, FenceStaleBroker())]
        # On a slow disk the first request waits: the second session is checked in time, the first again at intervals.
        pass_time(began + 1730)
        assert submitted[1:] == [(began + 1730, FenceStaleBroker())] * 2
        pass_time(began + 1730 + 3 * _PERIOD_MS)
        assert len(submitted) == 3 + 3 * 2
        timers.stop()

    asyncio.run(play())
