"""Responses to a thousand fetches that end at once: in turns of the loop, in order, and nothing else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Any, cast

import pytest

from fenceline.errors import ErrorCode, PeerError
from fenceline.node.quorum import serving as serving_module
from fenceline.node.quorum.serving import QuorumServing
from fenceline.quorum.duties import ServeRecords
from fenceline.quorum.messages import QuorumFetchResponse, ResponseMessage, VoteResponse

MANY = 220


class LogOfOneRead:
    """A metadata log that counts its reads."""

    def __init__(self) -> None:
        self.reads = 0
        self.partition_log = self
        self.resident, self.records = True, b"records"

    def read(self, offset: int, max_bytes: int, *, end_offset_exclusive: int) -> LogOfOneRead:
        self.reads += 1
        return self


def _waiting(log: Any = None) -> tuple[QuorumServing, dict[Hashable, asyncio.Future[ResponseMessage]]]:
    serving = QuorumServing(cast(Any, None), log, None, lambda error: None)
    return serving, dict(serving.expect() for _ in range(MANY))


def test_many_responses_take_several_turns() -> None:
    asyncio.run(_many_responses())


async def _many_responses() -> None:
    log = LogOfOneRead()
    serving, waiting = _waiting(log)
    vote, voted = serving.expect()
    serving.records(ServeRecords(tuple(waiting), 5, 100, 6, QuorumFetchResponse(high_watermark=5)))
    serving.answer(vote, VoteResponse(vote_granted=True))
    assert voted.done(), "an election waits for no fetch"
    completed = []
    while True:
        done = [each.done() for each in waiting.values()]
        assert done == sorted(done, reverse=True), "in order"
        completed.append(sum(done) - sum(completed))
        if all(done):
            break
        await asyncio.sleep(0)
    assert max(completed) == serving_module._RESPONSES_IN_A_TURN
    assert log.reads == 1
    assert {each.result() for each in waiting.values()} == {QuorumFetchResponse(high_watermark=5, records=b"records")}
    token, later = serving.expect()
    await asyncio.sleep(0)
    serving.answer(token, QuorumFetchResponse())
    assert later.done(), "alone it is served at once"


def test_responses_of_later_turns_fail_when_the_node_stops() -> None:
    asyncio.run(_stopped_node())


async def _stopped_node() -> None:
    serving, waiting = _waiting()
    for token in waiting:
        serving.answer(token, QuorumFetchResponse())
    serving.close(PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This node is stopping."))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    failed = [each for each in waiting.values() if each.exception() is not None]
    assert len(failed) == MANY - serving_module._RESPONSES_IN_A_TURN
    with pytest.raises(PeerError):
        failed[0].result()
