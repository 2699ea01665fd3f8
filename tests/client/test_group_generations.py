"""Which refusals end a membership: those of the present generation, not those of one that was left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.client import group as group_module
from fenceline.client.cluster import Cluster
from fenceline.client.config import ClientConfig
from fenceline.client.consumer import AsyncConsumer
from fenceline.client.deadline import Deadline
from fenceline.client.errors import CommitFailedError, broker_error
from fenceline.client.group import Group
from fenceline.client.offsets import CommittedOffset
from fenceline.errors import ErrorCode
from fenceline.ids import TopicPartition

SETTINGS = {"group.id": "g", "heartbeat.interval.ms": 1}


def refused(monkeypatch: pytest.MonkeyPatch, call: str, code: ErrorCode, meanwhile: int) -> tuple[int, bool]:
    """(generation, whether it was lost) after `call` of generation 3 was refused, and `meanwhile` had come by then."""

    async def run() -> tuple[int, bool]:
        config = ClientConfig.parse("consumer", "127.0.0.1:1", SETTINGS)
        async with AsyncConsumer("127.0.0.1:1", **SETTINGS) as consumer:
            cluster: Cluster = consumer.cluster
            subject = Group(cluster, config, consumer)
            subject.generation_id, subject.member_id, subject._needs_join = 3, "m", False
            answered = asyncio.Event()

            async def refuse(*_: Any, **__: Any) -> None:
                subject.generation_id = meanwhile
                answered.set()
                raise broker_error(code, "a test")

            monkeypatch.setattr(group_module, "commit" if call == "commit" else "ask_coordinator", refuse)
            if call == "commit":
                with pytest.raises(CommitFailedError, match="the commit of generation 3 was refused"):
                    await subject.commit({TopicPartition("t", 0): CommittedOffset(1)}, Deadline(1000))
            else:
                subject._start_heartbeats()
                await answered.wait()
                await subject._stop_heartbeats()
            return subject.generation_id, subject._was_lost

    return asyncio.run(run())


@pytest.mark.parametrize("call", ["commit", "heartbeat"])
def test_a_generation_that_was_left_behind_loses_nothing(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    assert refused(monkeypatch, call, ErrorCode.ILLEGAL_GENERATION, meanwhile=4) == (4, False)


@pytest.mark.parametrize("call", ["commit", "heartbeat"])
@pytest.mark.parametrize("code", [ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID])
def test_the_present_generation_is_lost(monkeypatch: pytest.MonkeyPatch, call: str, code: ErrorCode) -> None:
    assert refused(monkeypatch, call, code, meanwhile=3) == (-1, True)


def test_an_unknown_member_is_lost_whatever_the_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused(monkeypatch, "commit", ErrorCode.UNKNOWN_MEMBER_ID, meanwhile=4) == (-1, True)
