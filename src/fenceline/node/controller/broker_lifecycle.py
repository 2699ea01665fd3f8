"""Registration, heartbeats and controlled shutdown of this broker (Kafka's BrokerLifecycleManager).

Owns the broker epoch and the content of registrations and heartbeats. Never decides whether the broker is fenced: the
controller does, and this module logs it.

If the controller is or may become another node, requests are repeated until there is a response; between registration
and unfencing the broker sends heartbeats that ask to stay fenced.

Some changes trigger a heartbeat at once: a broker that finds itself fenced reports that it is alive, and when one
broker is shutting down, all others report how far they have applied the metadata, because it waits for that (C14).
While a leader does not answer this broker's fetches, heartbeats report it twice a second (`controller.silence`).

Rules: controller.md C11-C19, C46 (`node.broker` recovers logs and applies the first image before it calls `unfence`);
since_4_0.md K23, K24, K37. Unlike Kafka's (C13), a broker that is unknown to the controller registers again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Final
from uuid import UUID

from fenceline.config.listeners import SECURITY_PROTOCOLS, ListenerConfig
from fenceline.controller.requests import BrokerHeartbeat, BrokerHeartbeatAnswer, RegisterBroker, SilentBroker
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import random_id
from fenceline.metadata.changes import Delta
from fenceline.metadata.features import Levels
from fenceline.metadata.image import Endpoint, MetadataImage
from fenceline.node.logs import Logger

if TYPE_CHECKING:
    from fenceline.node.controller.ports import ControllerClient

log = Logger("broker")

_SHUTDOWN_HEARTBEATS: Final = 3
"""Heartbeats of a controlled shutdown: the first moves leadership away, a later one finds that the broker leads
nothing."""
_SHUTDOWN_TIMEOUT_S: Final = 300.0
"""How long a broker waits for another node to complete its controlled shutdown, as in Kafka: leadership moves, and all
other brokers must know."""
_NO_RESPONSE_S: Final = 10.0
"""Without any response from a controller the broker stops earlier: an election would be over by then."""
_JITTER_S: Final = 0.05
"""All brokers report within this time that they know of another's shutdown."""
_RETRY_S: Final = 0.2
"""Interval between attempts to register."""
_SOON_S: Final = 0.05
_CHECK_S: Final = 0.1
"""Interval between checks whether the other controllers are running, during a controlled shutdown."""
_SILENCE_S: Final = 0.5
"""Interval of heartbeats while a leader is silent."""
_LOG_EVERY: Final = 300
"""Attempts to register, or to be unfenced, between two log lines."""
_LOG_FIRST: Final = 50
"""By then the session of a killed previous incarnation has expired."""
_RETRIABLE: Final = frozenset(
    {
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""Retriable errors: there is no active controller, the controller has just started and is slow, the previous
incarnation of this broker is not known to have ended, or the active controller's disk is full and it is about to
resign."""


class BrokerLifecycle:
    """One incarnation of a broker. Call `register` first, then `unfence`, `shut_down` last."""

    def __init__(
        self,
        node_id: int,
        controller: ControllerClient,
        *,
        heartbeat_s: float = 2.0,
        rng: Random | None = None,
    ) -> None:
        self._node_id = node_id
        self._controller = controller
        self._heartbeat_s = heartbeat_s
        self._rng = rng or Random()
        self._incarnation_id = random_id(self._rng)
        self._is_fenced = True
        self._registration: RegisterBroker | None = None
        self._fenced_heartbeats: asyncio.Task[None] | None = None
        self._extra_heartbeat: asyncio.Task[None] | None = None
        self._heartbeat_lock = asyncio.Lock()
        self._is_watching = False
        self._last_response_s = 0.0
        """Time of the last response from a controller during the controlled shutdown, by the loop's clock."""
        self.broker_epoch = -1
        """-1 until the controller has registered the broker."""
        self._failed_dirs: tuple[UUID, ...] = ()
        self._cordoned_dirs: tuple[UUID, ...] = ()
        self._silent_ids: tuple[int, ...] = ()
        """Leaders that do not answer this broker's fetches."""
        self._silence_changed = asyncio.Event()
        self._silence_reports: asyncio.Task[None] | None = None
        self._acknowledged_dirs: tuple[UUID, ...] = ()
        """Failed directories that were reported to the controller."""

    @property
    def _is_alone(self) -> bool:
        return self._controller.channel is None

    async def register(
        self,
        *,
        cluster_id: str,
        endpoints: Iterable[ListenerConfig],
        features: Mapping[str, Levels],
        rack: str | None,
        log_dirs: tuple[UUID, ...],
        previous_broker_epoch: int,
    ) -> None:
        """Register the broker, and wait until this node's image contains the registration. Raises PeerError, and
        OperatorError if the controller rejects it. A failure of this node's metadata does not end the wait
        (`unless_failed`)."""
        self._registration = RegisterBroker(
            broker_id=self._node_id,
            cluster_id=cluster_id,
            incarnation_id=self._incarnation_id,
            endpoints=tuple(
                Endpoint(each.name, each.host, each.port, SECURITY_PROTOCOLS[each.security_protocol])
                for each in endpoints
            ),
            features=features,
            rack=rack,
            log_dirs=log_dirs,
            previous_broker_epoch=previous_broker_epoch,
        )
        try:
            await self._register()
        except PeerError as error:
            if self._is_alone or self._controller.has_failed:
                raise
            raise self._refused(error) from error
        if not self._is_alone:
            self._fenced_heartbeats = asyncio.ensure_future(self._stay_fenced())
            while not self._is_known:
                await asyncio.wait([self._controller.next_change()], timeout=_RETRY_S)

    @property
    def _is_known(self) -> bool:
        known = self._controller.image.brokers.get(self._node_id)
        return known is not None and known.epoch == self.broker_epoch

    async def _register(self) -> None:
        assert self._registration is not None, "call register first"
        attempts = 0
        while True:
            try:
                answer = await self._controller.submit(self._registration)
                break
            except PeerError as error:
                if not self._is_retriable(error):
                    raise
                attempts += 1
                if attempts % _LOG_EVERY == _LOG_FIRST:
                    self._log_waiting("broker not registered yet", error)
                await asyncio.sleep(_RETRY_S)
        self.broker_epoch = answer.broker_epoch
        self._controller.active.own_broker_epoch = self.broker_epoch

    def _is_retriable(self, error: PeerError) -> bool:
        return not self._is_alone and error.code in _RETRIABLE and not self._controller.has_failed

    def _log_waiting(self, event: str, error: PeerError) -> None:
        reason = error.message or error.code.name
        advice = "The node retries. A majority of the controllers must be running and reachable from here."
        if error.code is ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            reason = f"broker {self._node_id} is registered by another process whose session has not expired"
            advice = (
                f"If another node runs with node.id={self._node_id}, stop this node and give it its own node.id and log"
                " directory. If it was a previous process of this node, its session expires after"
                " broker.session.timeout.ms and this node then registers."
            )
        elif error.code is ErrorCode.KAFKA_STORAGE_ERROR:
            advice = "The node retries. Check the log of the active controller: its disk is full or has failed."
        log.warning(event, reason=reason, advice=advice)

    def _refused(self, error: PeerError) -> OperatorError:
        advice = "Correct the reported problem, then start this broker again."
        if error.code is ErrorCode.INCONSISTENT_CLUSTER_ID:
            advice = (
                "Either this broker's directory or the controllers' addresses belong to another cluster. Compare"
                " cluster.id in meta.properties, and check controller.quorum.bootstrap.servers and"
                " controller.quorum.voters."
            )
        elif error.code is ErrorCode.UNSUPPORTED_VERSION:
            advice = (
                "The releases and feature levels of this broker and the controllers must be compatible (`fenceline"
                " features list`), and controller.quorum.bootstrap.servers and controller.quorum.voters must name"
                " controller listeners, not broker listeners."
            )
        reason = error.message or error.code.name
        return OperatorError(f"Cannot register broker {self._node_id}: {reason}", advice)

    async def _stay_fenced(self) -> None:
        """Send heartbeats that ask to stay fenced. If the broker is unregistered meanwhile, it registers again;
        otherwise its image would never contain the epoch that `register` waits for."""
        while True:
            await asyncio.sleep(self._heartbeat_s)
            with contextlib.suppress(PeerError):
                await self.heartbeat()

    async def unfence(self) -> None:
        """Wait until the controller unfences this broker, however long there is no leader. Raises PeerError."""
        if self._fenced_heartbeats is not None:
            self._fenced_heartbeats.cancel()
            self._fenced_heartbeats = None
        attempts = 0
        while True:
            try:
                await self.heartbeat()
            except PeerError as error:
                if not self._is_retriable(error):
                    raise
                attempts += 1
                if attempts % _LOG_EVERY == _LOG_FIRST:
                    self._log_waiting("broker not unfenced yet", error)
            else:
                if not self._is_fenced or self._is_alone:
                    break
            await asyncio.wait([self._controller.next_change()], timeout=_SOON_S)
        if not self._is_alone:
            self._is_watching = True
            self._controller.subscribe(self._on_image)

    def _on_image(self, image: MetadataImage, delta: Delta) -> None:
        """Send a heartbeat at once if this broker was fenced or another one is shutting down."""
        if not delta.changed_brokers or not self._is_watching:
            return
        own = image.brokers.get(self._node_id)
        if own is None or own.epoch != self.broker_epoch or own.in_controlled_shutdown:
            return
        if own.fenced:
            self._heartbeat_soon(0.0)
        elif any((other := image.brokers.get(each)) and other.in_controlled_shutdown for each in delta.changed_brokers):
            self._heartbeat_soon(_JITTER_S * self._rng.random())

    def _heartbeat_soon(self, delay_s: float) -> None:
        if self._extra_heartbeat is not None and not self._extra_heartbeat.done():
            return

        async def beat() -> None:
            await asyncio.sleep(delay_s)
            with contextlib.suppress(PeerError):
                await self.heartbeat()

        self._extra_heartbeat = asyncio.ensure_future(beat())

    def report_cordoned(self, directory_ids: tuple[UUID, ...]) -> None:
        """Report the cordoned directories (K25), at once or with the next heartbeat."""
        self._cordoned_dirs = directory_ids
        if self._registration is not None and not self._is_fenced:
            self._heartbeat_soon(0.0)

    def report_silent(self, broker_ids: Collection[int]) -> None:
        """Report the leaders that do not answer, at once and until none is left."""
        self._silent_ids = tuple(broker_ids)
        self._silence_changed.set()
        is_reporting = self._silence_reports is not None and not self._silence_reports.done()
        if self._is_watching and not is_reporting:
            self._silence_reports = asyncio.ensure_future(self._report_silence())

    async def _report_silence(self) -> None:
        while True:
            self._silence_changed.clear()
            reported = self._silent_ids
            with contextlib.suppress(PeerError):
                await self.heartbeat()
            if not reported and not self._silent_ids:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SILENCE_S):
                    await self._silence_changed.wait()

    async def report_failed(self, directory_id: UUID) -> None:
        """Report a failed log directory until a heartbeat was acknowledged (KIP-858)."""
        self._failed_dirs = (*self._failed_dirs, directory_id)
        if self._registration is not None:
            remaining = tuple(each for each in self._registration.log_dirs if each != directory_id)
            self._registration = replace(self._registration, log_dirs=remaining)
        while directory_id not in self._acknowledged_dirs:
            try:
                await self.heartbeat()
            except PeerError:
                await asyncio.sleep(_RETRY_S)

    async def heartbeat(self) -> None:
        """Send a heartbeat to the controller. Raises PeerError."""
        async with self._heartbeat_lock:
            await self._heartbeat()

    async def _heartbeat(self) -> None:
        # Between registration and unfencing the broker stays fenced (see `_stay_fenced`).
        beat = self._heartbeat_request(want_fence=self._fenced_heartbeats is not None)
        try:
            answer: BrokerHeartbeatAnswer = await self._controller.submit(beat)
        except PeerError as error:
            if error.code is not ErrorCode.STALE_BROKER_EPOCH or self._is_alone or self._registration is None:
                raise
            log.warning("broker unknown to the controller, registering again", epoch=self.broker_epoch)
            await self._register()
            return
        self._acknowledged_dirs = beat.offline_log_dirs
        if answer.is_fenced and not self._is_fenced:
            log.warning("broker fenced", epoch=self.broker_epoch)
        elif not answer.is_fenced and self._is_fenced:
            log.debug("broker unfenced", epoch=self.broker_epoch)
        self._is_fenced = answer.is_fenced

    async def controlled_shutdown(self) -> None:
        """Controlled shutdown: move leadership to other brokers and wait until the controller lets this one stop.
        Raises PeerError."""
        self.close()
        if not self._is_alone:
            await self._controlled_shutdown()
            return
        for _ in range(_SHUTDOWN_HEARTBEATS):
            answer = await self._controller.submit(self._heartbeat_request(want_shut_down=True))
            if answer.should_shut_down:
                return
        log.warning("controlled shutdown not completed by the controller", epoch=self.broker_epoch)

    async def _controlled_shutdown(self) -> None:
        self._last_response_s = asyncio.get_running_loop().time()
        going = asyncio.ensure_future(self._await_shutdown())
        alone = asyncio.ensure_future(self._watch_controllers())
        try:
            done, _ = await asyncio.wait(
                (going, alone), timeout=_SHUTDOWN_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if going in done:
                going.result()
            elif alone in done:
                log.info(alone.result())
            else:
                log.warning("controlled shutdown timed out", epoch=self.broker_epoch)
        finally:
            going.cancel()
            alone.cancel()
            await asyncio.gather(going, alone, return_exceptions=True)

    async def _await_shutdown(self) -> None:
        while True:
            try:
                answer = await self._controller.submit(self._heartbeat_request(want_shut_down=True))
            except PeerError as error:
                if error.code is not ErrorCode.NOT_CONTROLLER or self._controller.has_failed:
                    raise
            else:
                self._last_response_s = asyncio.get_running_loop().time()
                if answer.should_shut_down:
                    return
            await asyncio.sleep(_SOON_S)

    async def _watch_controllers(self) -> str:
        """Returns why waiting is useless: the whole cluster is stopping, or no controller is reachable."""
        assert self._controller.channel is not None, "there are other controllers"
        loop = asyncio.get_running_loop()
        while True:
            if await self._controller.channel.has_no_majority():
                return "controlled shutdown skipped: the other controllers have stopped"
            if loop.time() - self._last_response_s >= _NO_RESPONSE_S:
                return "controlled shutdown skipped: no controller responds"
            await asyncio.sleep(_CHECK_S)

    def close(self) -> None:
        """Stop sending heartbeats."""
        self._is_watching = False
        if self._silence_reports is not None:
            self._silence_reports.cancel()
        if self._extra_heartbeat is not None:
            self._extra_heartbeat.cancel()
        if self._fenced_heartbeats is not None:
            self._fenced_heartbeats.cancel()
            self._fenced_heartbeats = None

    def _heartbeat_request(self, *, want_fence: bool = False, want_shut_down: bool = False) -> BrokerHeartbeat:
        registered = self._controller.image.brokers if self._silent_ids else {}
        return BrokerHeartbeat(
            self._node_id,
            self.broker_epoch,
            current_metadata_offset=self._controller.image.offset,
            want_fence=want_fence,
            want_shut_down=want_shut_down,
            offline_log_dirs=self._failed_dirs,
            cordoned_log_dirs=self._cordoned_dirs,
            silent_brokers=tuple(
                SilentBroker(each, registered[each].epoch) for each in self._silent_ids if each in registered
            ),
        )
