"""The internal topics of the coordinators: how they are created, and when.

Owns their configs (`transactions.md X25`) and the one attempt at a time. Decides nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import TopicToCreate
from fenceline.errors import PeerError
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fenceline.node.logs import Logger

log: Final = Logger("coordinators")


def topic_to_create(name: str, config: NodeConfig) -> TopicToCreate:
    """A coordinator's topic as Kafka creates it: compacted, with its own partition count and replication factor. Any
    other topic with the cluster's defaults."""
    if name == CONSUMER_OFFSETS_TOPIC:
        return TopicToCreate(
            name,
            config.get_int("offsets.topic.num.partitions"),
            config.get_int("offsets.topic.replication.factor"),
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.get_int("offsets.topic.segment.bytes"))),
            ),
        )
    if name == TRANSACTION_STATE_TOPIC:
        return TopicToCreate(
            name,
            config.get_int("transaction.state.log.num.partitions"),
            config.get_int("transaction.state.log.replication.factor"),
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "uncompressed"),
                ("min.insync.replicas", str(config.get_int("transaction.state.log.min.isr"))),
                ("segment.bytes", str(config.get_int("transaction.state.log.segment.bytes"))),
                ("unclean.leader.election.enable", "false"),
            ),
        )
    return TopicToCreate(name)


class TopicCreation:
    """Creates one topic when a client looks for a coordinator and there is none."""

    def __init__(self, topic: str, create: Callable[[Sequence[str]], Awaitable[object]]) -> None:
        self._topic = topic
        self._create = create
        self._trying: asyncio.Future[None] | None = None

    async def create(self) -> None:
        """Try once for all concurrent callers. A failure is logged; clients get no coordinator and retry."""
        if self._trying is None:
            self._trying = asyncio.ensure_future(self._try())
        await asyncio.shield(self._trying)

    async def _try(self) -> None:
        try:
            await self._create([self._topic])
        except PeerError as error:
            log.warning("topic creation failed", topic=self._topic, reason=str(error))
        finally:
            self._trying = None
