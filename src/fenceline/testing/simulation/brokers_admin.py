"""The administrator of a simulated cluster: creates the topics, and then changes them, one request at a time.

Owns the requests to the controllers: replicas, leaders, configs, deletion and recreation.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fenceline.testing.simulation.brokers_clients import SimulatedClient
from fenceline.testing.simulation.flush_checks import FLUSH_MESSAGES
from fenceline.wire.apis import ApiKey

SEGMENT_BYTES: Final = "internal.segment.bytes"
"""Without the lower bound of segment.bytes."""


class SimulatedAdmin(SimulatedClient):
    """See the module. A rejected request is not retried: the next change is another."""

    name = "admin"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.options = self.world.options
        self.topics = [f"t{number}" for number in range(self.options.topics)]

    async def one_request(self) -> None:
        options = self.options
        await self.fetch_metadata()
        missing = [each for each in self.topics if each not in {place.topic for place in self.places}]
        for topic in missing:
            await self.create(topic)
        periods_s = [each for each in (options.churn_s, options.swap_s) if each > 0]
        if not periods_s or not self.world.faults_active:
            if not missing:
                self.request_completed()
            await asyncio.sleep(0.2)
            return
        period_s = self.rng.choice(periods_s)
        await asyncio.sleep(self.rng.expovariate(1 / period_s))
        topic, index = self.rng.choice(self.topics), self.rng.randrange(options.partitions)
        if period_s == options.swap_s:
            await self._swap(topic, index)
        else:
            await self._change(topic, index)
        self.request_completed()

    async def ask(self, key: ApiKey, version: int, fields: dict[str, Any]) -> Any:
        return await self.wire.call(self.rng.choice(self.nodes), key, version, fields)

    async def create(self, topic: str) -> None:
        options, rng = self.options, self.rng
        unclean = "true" if options.unclean and (options.strand_s or rng.random() < 0.5) else "false"
        configs = {
            "min.insync.replicas": str(options.min_isr or rng.choice((1, 2, 2))),
            "unclean.leader.election.enable": unclean,
            **self.more_configs(topic),
            **({FLUSH_MESSAGES: "1"} if options.flush_each else {}),
        }
        count, replication_factor = options.partitions, options.replicas or rng.choice((3, 3, 2))
        assignments: list[dict[str, Any]] = []
        if options.strand_s:  # on the nodes that can be stranded
            nodes = self.nodes[-replication_factor:]
            assignments = [
                {"partition_index": index, "broker_ids": rng.sample(nodes, len(nodes))} for index in range(count)
            ]
            count = replication_factor = -1
        wanted = {
            "name": topic,
            "num_partitions": count,
            "replication_factor": replication_factor,
            "assignments": assignments,
            "configs": [{"name": name, "value": value} for name, value in configs.items()],
        }
        answer = await self.ask(ApiKey.CREATE_TOPICS, 7, {"topics": [wanted], "timeout": 3000, "validate_only": False})
        self.log_event(f"creates {topic} {configs}: {answer.topics[0].error_code}")

    def more_configs(self, topic: str) -> dict[str, str]:
        """Configs of a topic that is about to be created."""
        return {}

    async def _swap(self, topic: str, index: int) -> None:
        """Make another in-sync replica the leader: reorder the replicas and elect the first. Often the previous leader
        is elected again at once."""
        rng, count = self.rng, self.options.replicas or 3
        before = [place.leader for place in self.places if (place.topic, place.index) == (topic, index)]
        order = rng.sample(self.nodes, count)
        await self.reassign(topic, index, order)
        await self.elect(topic, index, unclean=False)
        if before and before[0] in order and rng.random() < 0.5:
            await asyncio.sleep(rng.uniform(0, 0.3))
            await self.reassign(topic, index, sorted(order, key=lambda node: node != before[0]))
            await self.elect(topic, index, unclean=False)

    async def _change(self, topic: str, index: int) -> None:
        options, rng = self.options, self.rng
        kinds = ["reassign", "reassign", "cancel", "preferred", "preferred"]
        if options.unclean:
            kinds += ["unclean", "config"]
        if options.deletes:
            kinds.append("delete")
        kind = rng.choice(kinds)
        if kind == "reassign":
            await self.reassign(topic, index, rng.sample(self.nodes, options.replicas or rng.choice((2, 3, 3))))
        elif kind == "cancel":
            await self.reassign(topic, index, None)
        elif kind in ("preferred", "unclean"):
            await self.elect(topic, index, unclean=kind == "unclean")
        elif kind == "config":
            await self.allow_unclean(topic, rng.choice(("true", "false")))
        else:
            await self.delete(topic)

    async def reassign(self, topic: str, index: int, replicas: list[int] | None) -> None:
        """`replicas` None: cancel a reassignment in progress."""
        partition = {"partition_index": index, "replicas": replicas}
        fields = {"timeout": 3000, "topics": [{"name": topic, "partitions": [partition]}]}
        answer = await self.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, fields)
        self.log_event(f"reassigns {topic}-{index} to {replicas}: {answer.error_code}")

    async def elect(self, topic: str, index: int, *, unclean: bool) -> None:
        fields = {
            "election_type": int(unclean),
            "topic_partitions": [{"topic": topic, "partitions": [index]}],
            "timeout": 3000,
        }
        answer = await self.ask(ApiKey.ELECT_LEADERS, 2, fields)
        self.log_event(f"{'unclean' if unclean else 'preferred'} election of {topic}-{index}: {answer.error_code}")

    async def allow_unclean(self, topic: str, value: str) -> None:
        await self.alter_config(topic, "unclean.leader.election.enable", value)

    async def alter_config(self, topic: str, name: str, value: str) -> bool:
        """Whether it succeeded."""
        config = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
        fields = {"resources": [resource], "validate_only": False}
        answer = await self.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields)
        code = answer.responses[0].error_code
        self.log_event(f"sets {name}={value} of {topic}: {code}")
        return not code

    async def roll_early(self, topic: str) -> bool:
        """Give it segments of a few batches. Whether it succeeded."""
        return await self.alter_config(topic, SEGMENT_BYTES, str(self.options.segment_bytes))

    async def delete(self, topic: str) -> None:
        await self.delete_only(topic)
        await asyncio.sleep(self.rng.random() * 0.3)
        await self.create(topic)

    async def delete_only(self, topic: str) -> None:
        fields = {"topics": [{"name": topic, "topic_id": None}], "timeout": 3000}
        answer = await self.ask(ApiKey.DELETE_TOPICS, 6, fields)
        self.log_event(f"deletes {topic}: {answer.responses[0].error_code}")
