"""A controller on any disk: what its start finds; its driver, with a stopped clock and immediate flushes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from random import Random
from typing import Any
from uuid import UUID

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import BrokerHeartbeat, RegisterBroker, RegisterController
from fenceline.ids import decode_uuid
from fenceline.log.core.disk import Disk
from fenceline.log.core.meta_properties import read_meta
from fenceline.metadata.features import SUPPORTED
from fenceline.metadata.image import Endpoint
from fenceline.node.controller.driver import ControllerDriver
from fenceline.node.controller.opening import OpenedController, open_controller
from fenceline.node.metadata.format import format_directory
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.quorum.control_records import VoterEndpoint

ALONE = {"controller.quorum.bootstrap.servers": "localhost:9093"}
"""The other nodes in the configuration of a controller."""
WITH_OTHERS = {"controller.quorum.bootstrap.servers": "localhost:9093,other:9093"}
CLUSTER = "AAAAAAAAQACAAAAAAAAAAA"
ENDPOINTS = (Endpoint("PLAINTEXT", "127.0.0.1", 9092, 0),)


class StillClock:
    """Changes only when the test sets it; both clocks are one."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


class AtOnce(Executor):
    """Runs each job before `submit` returns."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future


class Held(AtOnce):
    """Flushes wait until they are released, while `holds`."""

    def __init__(self, *, holds: bool = True) -> None:
        self.waiting: list[tuple[Any, Future[Any]]] = []
        self.holds = holds

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if not self.holds:
            return super().submit(fn, *args, **kwargs)
        future: Future[Any] = Future()
        self.waiting.append((lambda: fn(*args, **kwargs), future))
        return future

    def let_go(self) -> None:
        waiting, self.waiting = self.waiting, []
        for work, future in waiting:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)


def prepare(disk: Disk, directory: str) -> None:
    format_directory(
        [directory],
        cluster_id=CLUSTER,
        node_id=1,
        voter_endpoint=VoterEndpoint("CONTROLLER", "localhost", 9093),
        disk=disk,
        now_ms=1_000_000,
    )


def driver(
    disk: Disk,
    directory: str,
    *,
    seed: int = 1,
    executor: Executor | None = None,
    clock: StillClock | None = None,
    trouble: StorageTrouble | None = None,
    overrides: Mapping[str, str] | None = None,
) -> ControllerDriver:
    config = NodeConfig.load(
        None,
        {
            "log.dirs": directory,
            "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            **(overrides or {}),
        },
        {},
    )
    return ControllerDriver(
        config=config,
        disk=disk,
        directory=directory,
        cluster_id=CLUSTER,
        node_id=1,
        directory_id=decode_uuid(read_meta(disk, directory)["directory.id"]),
        clock=clock or StillClock(),
        rng=Random(seed),
        trouble=StorageTrouble(StillClock()) if trouble is None else trouble,
        executor=executor or AtOnce(),
    )


def open_voter(
    disk: Disk, directory: str, node_id: int, settings: Mapping[str, str], *, directory_id: int = 900
) -> OpenedController:
    """What a start of a controller-only node finds in its formatted directory."""
    config = NodeConfig.load(
        None,
        {
            "node.id": str(node_id),
            "process.roles": "controller",
            "log.dirs": directory,
            "listeners": "CONTROLLER://localhost:9093",
            "controller.listener.names": "CONTROLLER",
            **settings,
        },
        {},
    )
    return open_controller(
        config,
        disk,
        directory,
        cluster_id="c",
        node_id=node_id,
        directory_id=UUID(int=directory_id),
        now_ms=0,
        rng=Random(1),
    )


async def join(
    controller: ControllerDriver,
    *,
    incarnation: int = 1,
    previous: int = -1,
    log_dir: UUID = UUID(int=500),  # noqa: B008
) -> int:
    """Register controller and broker 1 and unfence it; returns the broker epoch."""
    incarnation_id = UUID(int=incarnation)
    await controller.submit(RegisterController(1, incarnation_id, ENDPOINTS, SUPPORTED))
    answer = await controller.submit(
        RegisterBroker(
            1, CLUSTER, incarnation_id, ENDPOINTS, SUPPORTED, log_dirs=(log_dir,), previous_broker_epoch=previous
        )
    )
    beat = await controller.submit(BrokerHeartbeat(1, answer.broker_epoch, controller.image.offset))
    assert not beat.is_fenced
    epoch: int = answer.broker_epoch
    return epoch


async def joined(disk: Disk, directory: str, **options: Any) -> ControllerDriver:
    """A running `driver`, with its controller and broker registered."""
    controller = driver(disk, directory, **options)
    await controller.start()
    await join(controller)
    return controller
