"""A leader's answer above the follower's limit affects one partition, and the report names the setting to raise.

KIP-74: the first batch of an answer is complete, whatever the limit of the request.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.partition.partition_log import NO_LIMIT
from fenceline.node.clock import SystemClock
from fenceline.node.replication.absent_brokers import NO_ABSENT, AbsentBrokers
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.replica.fetch_session import FetchSessions
from fenceline.replica.follower import FollowerPhase
from fenceline.wire.fetch import FetchedPartition, FetchResponse, encode_response, parse_request
from tests.node.desk import Desk, run_story
from tests.node.socket_leader import LEADER, NEVER_MS, WAIT_S, SocketLeader, empty_log, following

TOPIC_ID = UUID(int=7)
LARGE_BYTES = 3 << 20
LARGEST_BYTES = 1 << 20


class LeaderOfLargeBatches(SocketLeader):
    """Has one batch of the given size in each partition; large batches come first in its answers."""

    def __init__(self, sizes: dict[int, int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.sessions = FetchSessions(max_sessions=10)

    def heard(self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter) -> None:
        request = parse_request(header.api_version, frame[header.body_position :])
        session = self.sessions.begin(request, uses_topic_ids=True, now_ms=0, fresh_id=number, is_outdated=False)
        asked = sorted((each.asked for each in session.to_read()), key=lambda each: -self.sizes[each.index])
        answer: list[FetchedPartition] = []
        size = 0
        for each in asked:
            row = FetchedPartition(None, TOPIC_ID.bytes, each.index, 0, 1, 1, 0, records=b"")
            if each.fetch_offset == 0 and (not size or size + self.sizes[each.index] <= request.max_bytes):
                row = row._replace(records=bytes(self.sizes[each.index]))
                size += self.sizes[each.index]
            answer.append(row)
        parts = encode_response(header.api_version, FetchResponse(answer, session_id=session.session_id))
        body = header.correlation_id.to_bytes(4, "big") + b"\0" + b"".join(bytes(part) for part in parts)
        # Without records it waits for some.
        loop = asyncio.get_running_loop()
        loop.call_later(0 if size else 0.02, writer.write, len(body).to_bytes(4, "big") + body)


def replica(index: int) -> Any:
    """Its log accepts any bytes as one record."""
    log = empty_log()

    def append(records: memoryview, **_: Any) -> Any:
        log.log_end_offset += 1
        return SimpleNamespace(base_offset=log.log_end_offset - 1, size_bytes=len(records))

    log.append_as_follower = append
    return SimpleNamespace(
        topic_id_bytes=TOPIC_ID.bytes,
        topic_partition=TopicPartition("rain", index),
        log=log,
        clean_since=NO_LIMIT,
        may_lead=True,
        config=LogConfig(),
        is_being_cut=False,
        apply_leader_offsets=lambda *_: None,
    )


async def _until(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def _phase(fetchers: ReplicaFetchers, index: int) -> FollowerPhase:
    return fetchers._links[LEADER].fetcher.states[TOPIC_ID.bytes, index].phase


@pytest.mark.parametrize("large", [[0], [0, 2]])
def test_other_partitions_of_the_leader_are_replicated(large: list[int], capfd: pytest.CaptureFixture[str]) -> None:
    async def story() -> None:
        leader = LeaderOfLargeBatches({index: LARGE_BYTES if index in large else 1_000 for index in range(4)})
        absent = AbsentBrokers(SystemClock(), session_ms=NEVER_MS)
        replicas = [replica(index) for index in range(4)]
        small = [each for each in replicas if each.topic_partition.partition not in large]
        largest = [LARGEST_BYTES]
        async with following(leader, absent=absent, largest_answer=lambda: largest[0]) as fetchers:
            for each in replicas:
                fetchers.follow(each, LEADER, 3)
            await _until(lambda: all(each.log.log_end_offset == 1 for each in small))
            assert [_phase(fetchers, index) for index in large] == [FollowerPhase.WAITING] * len(large)
            assert all(replicas[index].log.log_end_offset == 0 for index in large)
            fetchers.check_connections()
            assert absent.current() is NO_ABSENT, "this node closed the connection; the leader is alive"
            largest[0] = LARGE_BYTES + 1_000
            await _until(lambda: all(each.log.log_end_offset == 1 for each in replicas))

    asyncio.run(story())
    logged = capfd.readouterr()
    lines = [line for line in (logged.out + logged.err).splitlines() if "batch too large to be replicated" in line]
    for index in large:
        assert any(f"rain-{index}" in line and "Raise socket.request.max.bytes" in line for line in lines)
    assert not any(f"rain-{index}" in line for index in {0, 1, 2, 3} - {*large} for line in lines)


def test_largest_answer_follows_from_the_limits() -> None:
    """A request carries one batch, which may grow to its topic's limit if it is recompressed."""

    async def story(desk: Desk) -> None:
        rest = (3 << 20) + (16 << 20)
        assert desk.replication._largest_answer() == rest + (200 << 20)
        desk.topic_settings = {"max.message.bytes": str(300 << 20)}
        desk.lead(1)
        assert desk.replication._largest_answer() == rest + (300 << 20)

    settings = {"socket.request.max.bytes": str(200 << 20), "replica.fetch.response.max.bytes": str(3 << 20)}
    run_story(story, settings=settings | {"queued.max.request.bytes": str(400 << 20)})
