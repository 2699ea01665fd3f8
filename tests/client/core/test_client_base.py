"""Creation and closing of the blocking clients."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from typing import Any

import pytest

from fenceline.client import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncTransactionOwner,
    Consumer,
    Producer,
    RangeReader,
    TransactionOwner,
)
from fenceline.client.core.client_base import AsyncClient, BlockingClient, blocking
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

    async def double(self, number: int, *, plus: int = 0) -> int:
        """Twice the number."""
        await asyncio.sleep(0)
        return 2 * number + plus

    def is_on_loop(self) -> bool:
        return asyncio.get_running_loop() is self.loop


class Face(BlockingClient[Core]):
    double = blocking(Core.double)
    is_on_loop = blocking(Core.is_on_loop)


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


def test_derived_methods_run_on_the_loop_of_the_core() -> None:
    with Face("face-derived", Core) as face:
        assert (face.double(3, plus=1), face.is_on_loop()) == (7, True)
        with pytest.raises(TypeError):
            face.double()  # type: ignore[call-arg]
    with pytest.raises(OperatorError, match="closed"):
        face.double(3)


def test_derived_methods_have_signature_and_description_of_the_core() -> None:
    assert inspect.signature(Face.double) == inspect.signature(Core.double)
    assert (Face.double.__doc__, Face.double.__qualname__) == ("Twice the number.", "Face.double")
    assert not inspect.iscoroutinefunction(Face.double)


_CORE_ONLY = {"poll_pieces", "put_back_pieces", "mark_pieces_returned", "decide_truncations", "committable"}
_CORE_ONLY |= {"partitions_assigned", "partitions_revoked", "partitions_lost"}


@pytest.mark.parametrize(
    ("face", "core"), [(Admin, AsyncAdmin), (Consumer, AsyncConsumer), (TransactionOwner, AsyncTransactionOwner)]
)
def test_blocking_clients_have_every_call_of_their_core(face: type[Any], core: type[Any]) -> None:
    def calls(owner: type[Any]) -> dict[str, Any]:
        members = inspect.getmembers(owner, inspect.isfunction)
        return {name: function for name, function in members if not name.startswith("_")}

    missing = calls(core).keys() - calls(face).keys() - _CORE_ONLY
    assert not missing, "add each as `name = blocking(...)`, or to the calls of the core only"
    for name, function in calls(face).items():
        if hasattr(function, "__wrapped__"):
            assert function.__wrapped__ is getattr(core, name)


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer, RangeReader])
def test_unknown_property_is_logged_once(
    kind: type[Admin | Consumer | Producer | RangeReader], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fenceline.client"), kind("127.0.0.1:1", **{"ligner.ms": 5}):
        pass
    assert [r.getMessage() for r in caplog.records] == ["unknown client property ligner.ms is ignored"]
