"""Timers of an active controller: broker sessions, leader balancing, NoOp records.

Owns the timers and their periods. Never decides: each timer submits an ordinary request.

Rules: controller.md C7, C17, C30; recovery.md V12; security.md A32.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.partition_requests import BalanceLeaders, ElectUncleanLeaders
from fenceline.controller.requests import FenceStaleBroker, RemoveExpiredTokens, Request, WriteNoOp

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.controller.state import ControllerState
    from fenceline.node.clock import Clock
    from fenceline.node.controller.ports import Decider

_STALE_CHECKS_PER_SESSION: Final = 8


class ControllerTimers:
    """The timers of one controller; they run from `start` to `stop`."""

    def __init__(self, controller: Decider, state: ControllerState, config: NodeConfig, clock: Clock) -> None:
        self._controller = controller
        self._state = state
        self._config = config
        self._clock = clock
        self._handles: dict[Callable[[], None], asyncio.TimerHandle] = {}

    def start(self) -> None:
        config = self._config
        self._again(self._until_a_session_may_end_ms, self.check_sessions)
        if config.get_bool("auto.leader.rebalance.enable"):
            self._every(1000 * config.get_int("leader.imbalance.check.interval.seconds"), self._balance_leaders)
        self._every(config.get_int("unclean.leader.election.interval.ms"), self._elect_unclean_leaders)
        if config.get("delegation.token.secret.key"):
            self._every(config.get_int("delegation.token.expiry.check.interval.ms"), self._remove_expired_tokens)
        if config.is_set("metadata.max.idle.interval.ms"):
            # Kafka's NoOp records keep the log's followers moving (C7). Here they learn a new high watermark at once
            # (K12), so NoOp records are written only if configured.
            idle_ms = config.get_int("metadata.max.idle.interval.ms")
            if idle_ms > 0:
                self._every(idle_ms, self._write_idle_record)

    def stop(self) -> None:
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _every(self, period_ms: int, action: Callable[[], None]) -> None:
        self._again(lambda: period_ms, action)

    def _again(self, wait_ms: Callable[[], int], action: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()

        def wait() -> None:
            self._handles[action] = loop.call_later(wait_ms() / 1000, fire)

        def fire() -> None:
            wait()
            action()

        wait()

    def _until_a_session_may_end_ms(self) -> int:
        """Time until the next session expires; at most a fraction of a session timeout, for sessions that a request
        could not end."""
        now_ms = self._clock.monotonic_ms()
        period_ms = max(1, self._config.get_int("broker.session.timeout.ms") // _STALE_CHECKS_PER_SESSION)
        ends_ms = self._state.sessions.next_end_ms(now_ms)
        return period_ms if ends_ms is None else min(period_ms, ends_ms - now_ms)

    def check_sessions(self) -> None:
        """C17. The broker of this process is alive while this code runs: only other brokers can time out.

        An incarnation with its id that registered before this process did has ended.
        """
        sessions = self._state.sessions
        now_ms = self._clock.monotonic_ms()
        own = sessions.get(self._controller.node_id)
        if own is not None and own.broker_epoch == self._controller.own_broker_epoch:
            own.last_contact_ms = now_ms
        silent = sum(1 for _ in sessions.expired(now_ms))
        for _ in range(silent):
            self._submit(FenceStaleBroker())

    def _balance_leaders(self) -> None:
        if self._controller.broker_count > 1:
            self._sweep(BalanceLeaders())

    def _elect_unclean_leaders(self) -> None:
        self._sweep(ElectUncleanLeaders())

    def _remove_expired_tokens(self) -> None:
        self._sweep(RemoveExpiredTokens(self._clock.now_ms()))

    def _write_idle_record(self) -> None:
        self._submit(WriteNoOp())

    def _sweep(self, request: BalanceLeaders | ElectUncleanLeaders | RemoveExpiredTokens) -> None:
        """Repeat passes while there is work (C30, V12)."""

        def passed(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None and done.result().more:
                self._sweep(request)

        self._controller.submit(request).add_done_callback(passed)

    def _submit(self, request: Request) -> None:
        """The response is ignored; a failure also shows in the next request."""
        answer: asyncio.Future[Any] = self._controller.submit(request)
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
