"""A leader that receives fetches and does not respond, and new partitions while a fetch is pending."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from fenceline.ids import TopicPartition
from fenceline.log.core.config import LogConfig
from fenceline.log.partition.partition_log import NO_LIMIT
from fenceline.wire.fetch import FetchRequest, parse_request
from tests.node.socket_leader import LEADER, SocketLeader, empty_log, following

TOPIC_ID = UUID(int=7)


class SilentLeader(SocketLeader):
    """Responds to no fetch. `fetches` are those it has received, each with its connection's number."""

    def heard(
        self, number: int, header: Any, frame: memoryview, writer: asyncio.StreamWriter
    ) -> tuple[int, FetchRequest]:
        return number, parse_request(header.api_version, frame[header.body_position :])


def replica(index: int) -> Any:
    log = empty_log()
    return SimpleNamespace(
        topic_id_bytes=TOPIC_ID.bytes,
        topic_partition=TopicPartition("rain", index),
        log=log,
        clean_since=NO_LIMIT,
        may_lead=True,
        is_being_cut=False,
        config=LogConfig(),
    )


def test_a_leader_that_times_out_is_fetched_from_on_a_new_connection() -> None:
    async def story() -> None:
        leader = SilentLeader()
        async with following(leader, answer_timeout_ms=50) as fetchers:
            fetchers.follow(replica(0), LEADER, 3)
            for number in range(1, 4):
                heard, request = await leader.fetched()
                assert (heard, request.session_epoch, len(request.partitions)) == (number, 0, 1)

    asyncio.run(story())


def test_a_new_partition_does_not_wait_for_the_pending_fetch() -> None:
    async def story() -> None:
        leader = SilentLeader()
        async with following(leader) as fetchers:
            fetchers.follow(replica(0), LEADER, 3)
            assert (await leader.fetched())[0] == 1
            fetchers.follow(replica(1), LEADER, 3)
            heard, request = await leader.fetched()
            assert (heard, sorted(each.index for each in request.partitions)) == (2, [0, 1])

    asyncio.run(story())
