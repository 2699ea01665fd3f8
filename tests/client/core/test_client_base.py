"""Creation and closing of the blocking clients."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from fenceline.client import Admin, Consumer, Producer, RangeReader
from fenceline.client.core.client_base import AsyncClient, BlockingClient
from fenceline.errors import OperatorError


class Core(AsyncClient):
    def __init__(self, fault: Exception | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.closed = 0
        self._fault = fault

    async def close(self) -> None:
        self.closed += 1
        if self._fault is not None:
            raise self._fault


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_context_exit_closes_once_and_stops_the_thread() -> None:
    with BlockingClient("face-closes", Core) as face:
        assert len(threads("face-closes")) == 1
    face.close()
    assert face._async.closed == 1
    assert not threads("face-closes")


def test_failed_creation_leaves_no_thread() -> None:
    def refuse() -> Core:
        raise OperatorError("no", "never")

    with pytest.raises(OperatorError, match="no"):
        BlockingClient("face-refused", refuse)
    assert not threads("face-refused")


def test_failed_close_raises_and_leaves_no_thread() -> None:
    face = BlockingClient("face-fails", lambda: Core(ConnectionError("gone")))
    with pytest.raises(ConnectionError, match="gone"):
        face.close()
    assert not threads("face-fails")


def test_async_with_closes() -> None:
    async def use() -> Core:
        async with Core() as core:
            pass
        return core

    assert asyncio.run(use()).closed == 1


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer, RangeReader])
def test_unknown_property_is_logged_once(
    kind: type[Admin | Consumer | Producer | RangeReader], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fenceline.client"), kind("127.0.0.1:1", **{"ligner.ms": 5}):
        pass
    assert [r.getMessage() for r in caplog.records] == ["unknown client property ligner.ms is ignored"]
