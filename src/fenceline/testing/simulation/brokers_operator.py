"""The operator of a simulated cluster: sends every request that an API allows, one at a time.

Owns the requests, and what the checks must know of them before they are sent: offsets up to which records may be
deleted. Each operation is a method listed in `OPERATIONS`; `Options.operations` selects those that a seed uses. A
rejected request is not retried: the next operation is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fenceline.controller.state import directory_is_online
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, NO_LEADER
from fenceline.metadata.image import MetadataImage, PartitionImage
from fenceline.testing.simulation.brokers_admin import SEGMENT_BYTES, SimulatedAdmin
from fenceline.testing.simulation.brokers_clients import ENOUGH_S
from fenceline.testing.simulation.brokers_node import directories_of
from fenceline.testing.simulation.brokers_wire import PartitionInfo
from fenceline.testing.simulation.flush_checks import FLUSH_MESSAGES
from fenceline.testing.simulation.operations import Operation
from fenceline.wire.apis import ApiKey

_TIMEOUT_MS: Final = 2000
_MOST_PARTITIONS: Final = 4
_FOCUS: Final = 0.8
_HIGH_WATERMARK: Final = -1


class Operator(SimulatedAdmin):
    """See the module."""

    name = "operator"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        wanted = {each.strip() for each in self.options.operations.split(",") if each.strip()}
        self._wanted = [
            each for each in OPERATIONS if each.value in wanted or (not wanted and each not in _ONLY_IF_NAMED)
        ]
        self._created: set[str] = set()
        self._another = ""
        """The newest topic that is none of the initial ones."""
        self._newest_topic = ""
        """The topic of the newest operation."""
        self._offsets_roll = False
        """Whether `__consumer_offsets` has small segments."""
        self._replicas_before: dict[tuple[str, int], list[int]] = {}
        """By partition: the replicas before it was reassigned."""

    def quiet_s(self) -> float:
        """It continues during pauses of the other clients, and has no request limit: a deletion whose response was lost
        may take effect late, and no other client recreates the topic."""
        return 0.0

    async def one_request(self) -> None:
        await self.fetch_metadata()
        missing = [each for each in self.topics if each not in {place.topic for place in self.places}]
        for topic in missing:
            await self._create_topic(topic)
        if self.options.groups and self.options.segment_bytes and not self._offsets_roll:
            self._offsets_roll = await self.roll_early(CONSUMER_OFFSETS_TOPIC)
        if not self.world.faults_active:
            await self._elect_for_lost_files()
            if not missing:
                self.request_completed()
            await asyncio.sleep(ENOUGH_S if 0 <= self.request_limit <= self.done else 0.2)
            return
        await asyncio.sleep(self.world.lasting_s(self.rng.expovariate(1 / self.options.operate_s)))
        if self.places and self._wanted:
            place = self.rng.choice(self._focus() if self.options.aim else self.places)
            await OPERATIONS[self.rng.choice(self._wanted)](self, place)
        self.request_completed()

    def record_operation(self, operation: Operation, topic: str | None = None) -> None:
        self.world.coverage.operation(operation, topic)
        self._newest_topic = topic or self._newest_topic

    def _focus(self) -> list[PartitionInfo]:
        """Mostly the partitions of the topic of the newest operation, so that several operations are in progress on its
        logs."""
        same = [place for place in self.places if place.topic == self._newest_topic]
        return same if same and self.rng.random() < _FOCUS else self.places

    # -- topics --------------------------------------------------------------------------------------------------------

    async def _create_topic(self, topic: str) -> None:
        self.record_operation(Operation.RECREATE_TOPIC if topic in self._created else Operation.CREATE_TOPIC, topic)
        self._created.add(topic)
        await self.create(topic)

    def more_configs(self, topic: str) -> dict[str, str]:
        """Segments of a few batches; some topics are compacted, some delete by size, time, or both."""
        options, rng = self.options, self.rng
        configs = {}
        if options.segment_bytes:
            configs[SEGMENT_BYTES] = str(options.segment_bytes)
        policies = ["delete"] + ["compact", "compact,delete"] * options.compaction
        policy = rng.choice(policies)
        configs["cleanup.policy"] = policy
        if options.retention and "delete" in policy and rng.random() < 0.7:
            configs |= rng.choice(({"retention.bytes": "1500"}, {"retention.ms": "1500"}, {"retention.bytes": "0"}))
        if rng.random() < 0.2:
            configs[FLUSH_MESSAGES] = "1"
        return configs

    async def _recreate(self, place: PartitionInfo) -> None:
        topic = place.topic
        self.record_operation(Operation.DELETE_TOPIC, topic)
        await self.delete_only(topic)
        await asyncio.sleep(self.rng.choice((0.0, self.rng.random() * 0.3)))
        await self._create_topic(topic)

    async def _create_another(self, _: PartitionInfo) -> None:
        """Create a topic with a new name, in place of the previous one created in this way."""
        if self._another:
            self.record_operation(Operation.DELETE_TOPIC, self._another)
            await self.delete_only(self._another)
        self._another = f"t{len(self._created)}"
        await self._create_topic(self._another)

    async def _add_partitions(self, place: PartitionInfo) -> None:
        count = sum(each.topic == place.topic for each in self.places)
        if count >= _MOST_PARTITIONS:
            return
        self.record_operation(Operation.ADD_PARTITIONS, place.topic)
        wanted = {"name": place.topic, "count": count + 1, "assignments": None}
        fields = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}
        answer = await self.ask(ApiKey.CREATE_PARTITIONS, 3, fields)
        self.log_event(f"makes {place.topic} have {count + 1} partitions: {answer.results[0].error_code}")

    async def _delete_records(self, place: PartitionInfo) -> None:
        """Delete up to the high watermark, or to any offset below it, even within a batch."""
        history = self.history(place)
        if place.leader < 0 or history is None:
            return
        offset = self.rng.randint(0, history.end) if self.rng.random() < 0.6 else _HIGH_WATERMARK
        self.record_operation(Operation.DELETE_RECORDS, place.topic)
        self.checks.may_delete(place.topic, place.index, 1 << 62 if offset == _HIGH_WATERMARK else offset)
        partition = {"partition_index": place.index, "offset": offset}
        fields = {"topics": [{"name": place.topic, "partitions": [partition]}], "timeout": _TIMEOUT_MS}
        answer = (await self.wire.call(place.leader, ApiKey.DELETE_RECORDS, 2, fields)).topics[0].partitions[0]
        self.checks.has_deleted(place.topic, place.index)
        self.log_event(f"deletes records of {place.topic}-{place.index} before {offset}: {answer.error_code}")

    async def _alter_config(self, place: PartitionInfo) -> None:
        options, rng = self.options, self.rng
        choices = [("min.insync.replicas", "1"), ("min.insync.replicas", "2"), (FLUSH_MESSAGES, "1")]
        choices += [("max.message.bytes", rng.choice(("2000", "1048588"))), ("file.delete.delay.ms", "0")]
        if options.segment_bytes:
            choices.append((SEGMENT_BYTES, str(rng.choice((500, 1000, options.segment_bytes)))))
        if options.unclean:
            choices += [("unclean.leader.election.enable", each) for each in ("true", "false")]
        if options.retention:
            choices += [("retention.bytes", each) for each in ("0", "1000", "-1")]
            choices += [("retention.ms", each) for each in ("500", "-1")]
        if options.compaction:
            choices += [("cleanup.policy", each) for each in ("compact", "delete", "compact,delete")]
            choices += [("delete.retention.ms", "0"), ("min.compaction.lag.ms", rng.choice(("0", "500")))]
        name, value = rng.choice(choices)
        self.record_operation(Operation.ALTER_CONFIG, place.topic)
        if name == FLUSH_MESSAGES:
            self.checks.may_flush_late(place.topic)
        await self.alter_config(place.topic, name, value)

    # -- replicas and leaders ------------------------------------------------------------------------------------------

    async def _reassign_away(self, place: PartitionInfo) -> None:
        """Reassign to other replicas, and later back: data that a broker still has from before must not count then."""
        rng, key = self.rng, (place.topic, place.index)
        before = self._replicas_before.pop(key, None)
        if before is not None:
            self.record_operation(Operation.REASSIGN_BACK, place.topic)
            await self.reassign(place.topic, place.index, before)
            return
        self.record_operation(Operation.REASSIGN, place.topic)
        partition = self.checks.live_keys.get(place.key)
        if partition is not None:
            self._replicas_before[key] = list(partition.replicas)
        count = self.options.replicas or rng.choice((1, 2, 2, 3))
        await self.reassign(place.topic, place.index, rng.sample(self.nodes, count))

    async def _move(self, place: PartitionInfo) -> None:
        """Move one replica to any directory of its broker."""
        partition = self.checks.live_keys.get(place.key)
        if partition is None or self.options.log_dirs < 2:
            return
        node_id, path = self.rng.choice(partition.replicas), self.rng.choice(directories_of(self.options))
        self.record_operation(Operation.MOVE_DIRECTORY, place.topic)
        wanted = {"path": path, "topics": [{"name": place.topic, "partitions": [place.index]}]}
        answer = await self.wire.call(node_id, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [wanted]})
        code = answer.results[0].partitions[0].error_code
        self.log_event(f"moves {place.topic}-{place.index} of n{node_id} to {path}: {code}")

    async def _unregister(self, _: PartitionInfo) -> None:
        """Unregister a broker that is down; it registers again when it restarts."""
        down = [node_id for node_id, process in sorted(self.world.processes.items()) if not process.is_up]
        if not down:
            return
        self.record_operation(Operation.UNREGISTER_BROKER)
        answer = await self.ask(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": down[0]})
        self.log_event(f"unregisters {down[0]}: {answer.error_code}")

    async def _cancel(self, place: PartitionInfo) -> None:
        self.record_operation(Operation.CANCEL_REASSIGNMENT, place.topic)
        await self.reassign(place.topic, place.index, None)

    async def _elect_preferred(self, place: PartitionInfo) -> None:
        self.record_operation(Operation.PREFERRED_ELECTION, place.topic)
        await self.elect(place.topic, place.index, unclean=False)

    async def _elect_for_lost_files(self) -> None:
        """Follow the advice of a node that keeps a replica offline because its files were lost with a directory: if all
        replicas eligible for a clean election are such replicas, elect another one uncleanly."""
        image = self.checks.image
        for topic in list(image.topics_by_id.values()):
            for index, partition in enumerate(topic.partitions):
                if partition.leader == NO_LEADER and has_lost_files(partition, image):
                    self.record_operation(Operation.UNCLEAN_ELECTION, topic.name)
                    await self.elect(topic.name, index, unclean=True)

    async def _elect_uncleanly(self, place: PartitionInfo) -> None:
        if self.options.unclean:
            self.record_operation(Operation.UNCLEAN_ELECTION, place.topic)
            await self.elect(place.topic, place.index, unclean=True)


def has_lost_files(partition: PartitionImage, image: MetadataImage) -> bool:
    """Whether each replica that is eligible for a clean election is active, and its directory is none that its broker
    has."""
    for member in (*partition.isr, *partition.elr, *partition.last_known_elr):
        directory = partition.directory_of(member)
        if not image.is_active(member) or directory is None or directory_is_online(image.brokers[member], directory):
            return False
    return True


OPERATIONS: Final[Mapping[Operation, Callable[[Operator, PartitionInfo], Awaitable[None]]]] = {
    Operation.RECREATE_TOPIC: Operator._recreate,
    Operation.CREATE_TOPIC: Operator._create_another,
    Operation.ADD_PARTITIONS: Operator._add_partitions,
    Operation.DELETE_RECORDS: Operator._delete_records,
    Operation.ALTER_CONFIG: Operator._alter_config,
    Operation.REASSIGN: Operator._reassign_away,
    Operation.MOVE_DIRECTORY: Operator._move,
    Operation.UNREGISTER_BROKER: Operator._unregister,
    Operation.CANCEL_REASSIGNMENT: Operator._cancel,
    Operation.PREFERRED_ELECTION: Operator._elect_preferred,
    Operation.UNCLEAN_ELECTION: Operator._elect_uncleanly,
}
_ONLY_IF_NAMED: Final = frozenset((Operation.CREATE_TOPIC,))
"""Only used if an option names it: each additional topic takes its share of the other operations."""
