"""Runs a node as a process: event loop, signals, ready line.

Owns the start and stop of the process. The first SIGTERM or SIGINT stops it cleanly, a second one immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fenceline.config.broker import SCHEDULING_POLICY
from fenceline.config.node import NodeConfig
from fenceline.errors import OperatorError
from fenceline.node.garbage import begin_service
from fenceline.node.logs import Logger
from fenceline.node.scheduling import set_policy
from fenceline.node.service_manager import READY, STOPPING, notify

log = Logger("node")

_EXIT_SECOND_SIGNAL = 130


def settings_from_options(overrides: Sequence[str], data_dir: Path | None, listen: str | None) -> dict[str, str]:
    """Kafka properties from command-line options. Raises OperatorError on `--override` without `=`."""
    settings: dict[str, str] = {}
    for text in overrides:
        key, separator, value = text.partition("=")
        if not separator or not key.strip():
            raise OperatorError(f"--override {text!r} has no value.", "The format is --override key=value.")
        settings[key.strip()] = value.strip()
    if data_dir is not None:
        settings["log.dirs"] = str(data_dir.absolute())
    if listen is not None:
        host, separator, port = listen.rpartition(":")
        if not separator or not port.isdigit() or int(port) > 65535:
            raise OperatorError(
                f"--listen {listen!r} is not an address.", "The format is HOST:PORT, for example :9092."
            )
        settings["listeners"] = f"PLAINTEXT://{host}:{port}"
    return settings


class RunnableNode(Protocol):
    """A broker or a controller, as a process runs it."""

    @property
    def ready_line(self) -> str: ...
    async def start(self) -> None: ...
    async def run_until(self, stop: asyncio.Event) -> None: ...
    async def stop(self) -> None: ...


def node_of(config: NodeConfig) -> RunnableNode:
    """The node that the configuration describes."""
    gc.disable()  # what modules consist of is permanent: to look at it again and again is a tenth of the start
    try:
        if config.is_broker:
            from fenceline.node.broker import Broker

            return Broker(config)
        from fenceline.node.controller_node import ControllerNode

        return ControllerNode(config)
    finally:
        gc.enable()


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run_node(
    config_file: Path | None,
    overrides: Mapping[str, str],
    *,
    make: Callable[[NodeConfig], RunnableNode] = node_of,
    make_loop: Callable[[], asyncio.AbstractEventLoop] = new_loop,
) -> int:
    """Run a node until it is stopped; returns the process's exit code. `make` is called in its event loop.

    Raises OperatorError."""
    config = NodeConfig.load(config_file, overrides, os.environ)
    _raise_file_limit()
    set_policy(config.text(SCHEDULING_POLICY))
    for warning in config.warnings:
        log.warning("configuration", detail=warning)
    if inert := config.without_effect:
        log.info("configuration", detail="keys without effect on this node", keys=", ".join(inert))
    with asyncio.Runner(loop_factory=make_loop) as runner:
        return runner.run(_serve(lambda: make(config)))


def _report_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An unhandled exception is our bug: log it with its traceback and continue."""
    error = context.get("exception")
    log.error("unhandled", detail=context.get("message", ""), exc_info=error)


def _raise_file_limit() -> None:
    """Raise the limit of open files to its maximum: every connection needs one, and every partition in use two."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(make: Callable[[], RunnableNode]) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def on_signal() -> None:
        if stop.is_set():
            os._exit(_EXIT_SECOND_SIGNAL)
        stop.set()

    loop.set_exception_handler(_report_unhandled)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    node = make()
    starting = asyncio.ensure_future(node.start())
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            # Without a majority of the controllers a start may never complete.
            starting.cancel()
            await asyncio.wait((starting,))
            return 0
        starting.result()
        begin_service()
        print(node.ready_line, flush=True)
        notify(READY)
        await node.run_until(stop)
    finally:
        notify(STOPPING)
        stopping.cancel()
        await node.stop()
    sys.stdout.flush()
    return 0
