"""Messages that a broker sends without waiting for its next heartbeat (`node.controller.broker_lifecycle`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

import pytest

from fenceline.controller.requests import (
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    RegisterBroker,
    RegisterBrokerAnswer,
    SilentBroker,
)
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.changes import Delta
from fenceline.metadata.image import BrokerImage
from fenceline.node.controller import broker_lifecycle
from fenceline.node.controller.broker_lifecycle import BrokerLifecycle

PATIENCE_S: Final = 60
ME: Final = 1
EPOCH: Final = 5


def broker(broker_id: int, *, epoch: int = EPOCH, fenced: bool = False, stopping: bool = False) -> BrokerImage:
    return BrokerImage(broker_id, epoch, UUID(int=broker_id), (), {}, None, fenced, stopping, ())


class Elsewhere:
    """A controller on another node, and this node's image."""

    def __init__(self) -> None:
        self.channel = self
        self.has_failed = False
        self.asked: list[Any] = []
        self.listeners: list[Callable[[Any, Delta], None]] = []
        self.refusals: list[PeerError] = []
        self.active = SimpleNamespace(own_broker_epoch=-1)
        self.next_epoch = EPOCH
        self.changed = asyncio.Event()
        self.image = SimpleNamespace(offset=7, brokers={})
        self.tell(broker(ME))

    def tell(self, *brokers: BrokerImage, changed: tuple[int, ...] = ()) -> None:
        """Publish a new image."""
        known = {**self.image.brokers, **{each.id: each for each in brokers}}
        self.image = SimpleNamespace(offset=self.image.offset + 1, brokers=known)
        for listener in self.listeners:
            listener(self.image, Delta(changed_brokers=changed or tuple(each.id for each in brokers)))

    def subscribe(self, listener: Callable[[Any, Delta], None]) -> None:
        self.listeners.append(listener)

    def next_change(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    async def submit(self, request: Any) -> Any:
        self.asked.append(request)
        self.changed.set()
        if self.refusals:
            raise self.refusals.pop(0)
        if isinstance(request, RegisterBroker):
            self.next_epoch += 1
            return RegisterBrokerAnswer(self.next_epoch)
        return BrokerHeartbeatAnswer(is_caught_up=True, is_fenced=False, should_shut_down=False)

    async def until_asked(self, count: int) -> None:
        while len(self.asked) < count:
            self.changed.clear()
            await self.changed.wait()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lifecycle, "_JITTER_S", 0.0)


def play(story: Callable[[Elsewhere, BrokerLifecycle], Awaitable[None]]) -> None:
    """A broker that is registered and unfenced."""

    async def whole() -> None:
        controller = Elsewhere()
        lifecycle = BrokerLifecycle(ME, controller)  # type: ignore[arg-type]
        lifecycle.broker_epoch = EPOCH
        async with asyncio.timeout(PATIENCE_S):
            await lifecycle.unfence()
            controller.asked.clear()
            await story(controller, lifecycle)

    asyncio.run(whole())


def test_fenced_broker_sends_a_heartbeat_at_once() -> None:
    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(broker(ME, fenced=True))
        await controller.until_asked(1)
        assert isinstance(controller.asked[0], BrokerHeartbeat)
        assert controller.asked[0].current_metadata_offset == controller.image.offset
        assert not controller.asked[0].want_fence

    play(story)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.DUPLICATE_BROKER_REGISTRATION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    ],
)
def test_registration_is_retried_on_transient_errors(code: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The active controller's disk may be full: the broker must keep trying."""
    monkeypatch.setattr(broker_lifecycle, "_RETRY_S", 0.0)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.refusals = [PeerError(code), PeerError(code)]
        registering = asyncio.ensure_future(
            lifecycle.register(
                cluster_id="c", endpoints=(), features={}, rack=None, log_dirs=(), previous_broker_epoch=-1
            )
        )
        while lifecycle.broker_epoch == EPOCH:
            assert not registering.done(), registering
            await asyncio.sleep(0)
        assert [type(each) for each in controller.asked[:3]] == [RegisterBroker] * 3
        registering.cancel()

    play(story)


@pytest.mark.parametrize("code", [ErrorCode.NOT_CONTROLLER, ErrorCode.KAFKA_STORAGE_ERROR])
def test_unfencing_is_retried_until_a_controller_leads(code: ErrorCode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An election, or a full disk of the active controller, must not stop a broker that starts."""
    monkeypatch.setattr(broker_lifecycle, "_SOON_S", 0.0)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.refusals = [PeerError(code), PeerError(code)]
        await lifecycle.unfence()
        assert [type(each) for each in controller.asked] == [BrokerHeartbeat] * 3
        controller.refusals = [PeerError(ErrorCode.UNSUPPORTED_VERSION)]
        with pytest.raises(PeerError):
            await lifecycle.unfence()

    play(story)


def test_heartbeat_is_sent_when_another_broker_starts_shutdown() -> None:
    """C14: that broker waits until all others have applied its shutdown, so they report it at once."""

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(broker(2, stopping=True))
        await controller.until_asked(1)

    play(story)


@pytest.mark.parametrize("reported", [broker(2), broker(2, fenced=True), broker(ME), broker(ME, epoch=4, fenced=True)])
def test_other_metadata_changes_send_no_heartbeat(reported: BrokerImage) -> None:
    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(reported)
        await settled()
        assert controller.asked == []

    play(story)


def test_no_extra_heartbeats_during_own_shutdown() -> None:
    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(broker(ME, stopping=True))
        lifecycle.close()
        controller.tell(broker(ME, fenced=True))
        await settled()
        assert controller.asked == []

    play(story)


def test_unknown_broker_registers_again_and_is_unfenced() -> None:
    """It sees its own new registration as fenced, and asks to be unfenced."""

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        lifecycle._registration = RegisterBroker(ME, "cluster", UUID(int=1), (), {})
        controller.refusals.append(PeerError(ErrorCode.STALE_BROKER_EPOCH, "unknown"))
        await lifecycle.heartbeat()
        assert lifecycle.broker_epoch == EPOCH + 1
        controller.tell(broker(ME, epoch=EPOCH + 1, fenced=True))
        await controller.until_asked(3)
        assert [type(each) for each in controller.asked] == [BrokerHeartbeat, RegisterBroker, BrokerHeartbeat]
        assert controller.asked[-1].broker_epoch == EPOCH + 1

    play(story)


def test_broker_unregistered_before_its_image_shows_it_registers_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its image never shows the epoch of the first registration (`operations`, game 7000170: a slow disk, no metadata
    log, and an operator who unregisters the broker while it reads a snapshot)."""
    monkeypatch.setattr(broker_lifecycle, "_RETRY_S", 0.0)

    async def whole() -> None:
        controller = Elsewhere()
        lifecycle = BrokerLifecycle(ME, controller, heartbeat_s=0.0)  # type: ignore[arg-type]
        registering = asyncio.ensure_future(
            lifecycle.register(
                cluster_id="c", endpoints=(), features={}, rack=None, log_dirs=(), previous_broker_epoch=-1
            )
        )
        async with asyncio.timeout(PATIENCE_S):
            await controller.until_asked(2)
            assert lifecycle.broker_epoch == EPOCH + 1
            controller.refusals.append(PeerError(ErrorCode.STALE_BROKER_EPOCH, "unknown"))
            while lifecycle.broker_epoch == EPOCH + 1:
                await controller.until_asked(len(controller.asked) + 1)
                await settled()
            assert all(each.want_fence for each in controller.asked if isinstance(each, BrokerHeartbeat))
            controller.tell(broker(ME, epoch=EPOCH + 2, fenced=True))
            await registering
        lifecycle.close()

    asyncio.run(whole())


def test_failed_directory_is_reported_until_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-858; also with every later heartbeat, since a new controller may not know of it."""
    monkeypatch.setattr(broker_lifecycle, "_RETRY_S", 0.0)
    failed, other = UUID(int=901), UUID(int=902)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.refusals = [PeerError(ErrorCode.NOT_CONTROLLER), PeerError(ErrorCode.REQUEST_TIMED_OUT)]
        await lifecycle.report_failed(failed)
        await lifecycle.heartbeat()
        assert [each.offline_log_dirs for each in controller.asked] == [(failed,)] * 4
        await lifecycle.report_failed(other)
        assert controller.asked[-1].offline_log_dirs == (failed, other)

    play(story)


def test_new_registration_omits_failed_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller no longer knows the broker."""
    failed, kept = UUID(int=901), UUID(int=902)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        registering = asyncio.ensure_future(
            lifecycle.register(
                cluster_id="c",
                endpoints=(),
                features={},
                rack=None,
                log_dirs=(failed, kept),
                previous_broker_epoch=-1,
            )
        )
        await controller.until_asked(1)
        registering.cancel()
        await settled()
        await lifecycle.report_failed(failed)
        controller.refusals = [PeerError(ErrorCode.STALE_BROKER_EPOCH)]
        await lifecycle.heartbeat()
        assert isinstance(controller.asked[-1], RegisterBroker)
        assert controller.asked[-1].log_dirs == (kept,)

    play(story)


def test_silent_leaders_are_reported_at_once_and_until_none_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeatedly, since another controller may be active by now; with the epoch of the image."""
    monkeypatch.setattr(broker_lifecycle, "_SILENCE_S", 0.0)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(broker(2, epoch=8))
        lifecycle.report_silent((2, 3))
        await controller.until_asked(3)
        assert {each.silent_brokers for each in controller.asked} == {(SilentBroker(2, 8),)}, "3 is not registered"
        lifecycle.report_silent(())
        controller.asked.clear()
        await controller.until_asked(1)
        await settled()
        assert [each.silent_brokers for each in controller.asked][-1] == ()
        count = len(controller.asked)
        await settled()
        assert len(controller.asked) == count, "there is nothing left to report"

    play(story)


def test_silence_that_begins_while_a_heartbeat_is_under_way_is_reported_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(broker_lifecycle, "_SILENCE_S", 3600.0)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(broker(2), broker(3))
        lifecycle.report_silent((2,))
        await asyncio.sleep(0)
        lifecycle.report_silent((2, 3))
        await controller.until_asked(2)
        await settled()
        assert controller.asked[-1].silent_brokers == (SilentBroker(2, EPOCH), SilentBroker(3, EPOCH))

    play(story)


def test_refused_heartbeat_does_not_end_the_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_lifecycle, "_SILENCE_S", 0.0)

    async def story(controller: Elsewhere, lifecycle: BrokerLifecycle) -> None:
        controller.tell(broker(2))
        controller.refusals = [PeerError(ErrorCode.NOT_CONTROLLER), PeerError(ErrorCode.REQUEST_TIMED_OUT)]
        lifecycle.report_silent((2,))
        await controller.until_asked(4)

    play(story)
