"""The operator of a simulated cluster: asks for everything that an API allows, one request at a time.

Owns the requests, and what the checks must know of them before they are sent: offsets up to which records may go. Each
operation is a method under its name in `OPERATIONS`; which ones a seed uses is `Options.operations`. What is refused
is not asked again: the next operation is another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from fenceline.controller.state import directory_is_online
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, NO_LEADER
from fenceline.metadata.image import MetadataImage, PartitionImage
from fenceline.testing.simulation.brokers_admin import Admin
from fenceline.testing.simulation.brokers_clients import ENOUGH_S
from fenceline.testing.simulation.brokers_node import directories_of
from fenceline.testing.simulation.brokers_wire import Place
from fenceline.testing.simulation.flush_checks import FLUSH_MESSAGES
from fenceline.testing.simulation.operations import Operation
from fenceline.wire.apis import ApiKey

_TIMEOUT_MS: Final = 2000
_MOST_PARTITIONS: Final = 4
_FOCUS: Final = 0.8
_HIGH_WATERMARK: Final = -1


class Operator(Admin):
    """See the module."""

    name = "operator"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        wanted = {each.strip() for each in self.options.operations.split(",") if each.strip()}
        self._wanted = [each for each in OPERATIONS if each.value in wanted or (not wanted and each not in _WHEN_NAMED)]
        self._made: set[str] = set()
        self._another = ""
        """The newest topic that is none of those that the seed begins with."""
        self._newest_topic = ""
        """That an operation named."""
        self._offsets_roll = False
        """Whether the topic of the groups has small segments."""
        self._left: dict[tuple[str, int], list[int]] = {}
        """By partition: the replicas that it had before it was moved away."""

    def quiet_s(self) -> float:
        """It asks while the other clients rest, too, and never has enough: a deletion whose answer was lost may take
        effect late, and no other client creates the topic again."""
        return 0.0

    async def one(self) -> None:
        await self.learn()
        missing = [each for each in self.topics if each not in {place.topic for place in self.places}]
        for topic in missing:
            await self._make(topic)
        if self.options.groups and self.options.segment_bytes and not self._offsets_roll:
            self._offsets_roll = await self.alter_config(
                CONSUMER_OFFSETS_TOPIC, "internal.segment.bytes", str(self.options.segment_bytes)
            )
        if not self.world.faults_strike:
            await self._replace_lost()
            if not missing:
                self.served()
            await asyncio.sleep(ENOUGH_S if 0 <= self.enough <= self.done else 0.2)
            return
        await asyncio.sleep(self.world.lasting_s(self.rng.expovariate(1 / self.options.operate_s)))
        if self.places and self._wanted:
            place = self.rng.choice(self._focus() if self.options.aim else self.places)
            await OPERATIONS[self.rng.choice(self._wanted)](self, place)
        self.served()

    def begin(self, operation: Operation, topic: str | None = None) -> None:
        self.world.coverage.operation(operation, topic)
        self._newest_topic = topic or self._newest_topic

    def _focus(self) -> list[Place]:
        """Mostly those of the topic that the newest operation named, so that several are in progress on its logs."""
        same = [place for place in self.places if place.topic == self._newest_topic]
        return same if same and self.rng.random() < _FOCUS else self.places

    # -- topics --------------------------------------------------------------------------------------------------------

    async def _make(self, topic: str) -> None:
        self.begin(Operation.RECREATE_TOPIC if topic in self._made else Operation.CREATE_TOPIC, topic)
        self._made.add(topic)
        await self.create(topic)

    def more_configs(self, topic: str) -> dict[str, str]:
        """Segments of a few batches; some topics are compacted, some delete by size, time, or both."""
        options, rng = self.options, self.rng
        configs = {}
        if options.segment_bytes:
            configs["internal.segment.bytes"] = str(options.segment_bytes)
        policies = ["delete"] + ["compact", "compact,delete"] * options.compaction
        policy = rng.choice(policies)
        configs["cleanup.policy"] = policy
        if options.retention and "delete" in policy and rng.random() < 0.7:
            configs |= rng.choice(({"retention.bytes": "1500"}, {"retention.ms": "1500"}, {"retention.bytes": "0"}))
        if rng.random() < 0.2:
            configs[FLUSH_MESSAGES] = "1"
        return configs

    async def _recreate(self, place: Place) -> None:
        topic = place.topic
        self.begin(Operation.DELETE_TOPIC, topic)
        await self.delete_only(topic)
        await asyncio.sleep(self.rng.choice((0.0, self.rng.random() * 0.3)))
        await self._make(topic)

    async def _create_another(self, _: Place) -> None:
        """A topic with a new name, in place of the one that was created in this way before."""
        if self._another:
            self.begin(Operation.DELETE_TOPIC, self._another)
            await self.delete_only(self._another)
        self._another = f"t{len(self._made)}"
        await self._make(self._another)

    async def _add_partitions(self, place: Place) -> None:
        count = sum(each.topic == place.topic for each in self.places)
        if count >= _MOST_PARTITIONS:
            return
        self.begin(Operation.ADD_PARTITIONS, place.topic)
        wanted = {"name": place.topic, "count": count + 1, "assignments": None}
        fields = {"topics": [wanted], "timeout": _TIMEOUT_MS, "validate_only": False}
        answer = await self.ask(ApiKey.CREATE_PARTITIONS, 3, fields)
        self.tell(f"makes {place.topic} have {count + 1} partitions: {answer.results[0].error_code}")

    async def _delete_records(self, place: Place) -> None:
        """Up to the high watermark, or to any offset below it: batches are cut in two."""
        history = self.history(place)
        if place.leader < 0 or history is None:
            return
        offset = self.rng.randint(0, history.end) if self.rng.random() < 0.6 else _HIGH_WATERMARK
        self.begin(Operation.DELETE_RECORDS, place.topic)
        self.checks.may_delete(place.topic, place.index, 1 << 62 if offset == _HIGH_WATERMARK else offset)
        partition = {"partition_index": place.index, "offset": offset}
        fields = {"topics": [{"name": place.topic, "partitions": [partition]}], "timeout": _TIMEOUT_MS}
        answer = (await self.wire.call(place.leader, ApiKey.DELETE_RECORDS, 2, fields)).topics[0].partitions[0]
        self.checks.has_deleted(place.topic, place.index)
        self.tell(f"deletes records of {place.topic}-{place.index} before {offset}: {answer.error_code}")

    async def _alter_config(self, place: Place) -> None:
        options, rng = self.options, self.rng
        choices = [("min.insync.replicas", "1"), ("min.insync.replicas", "2"), (FLUSH_MESSAGES, "1")]
        choices += [("max.message.bytes", rng.choice(("2000", "1048588"))), ("file.delete.delay.ms", "0")]
        if options.segment_bytes:
            choices.append(("internal.segment.bytes", str(rng.choice((300, 1000, options.segment_bytes)))))
        if options.unclean:
            choices += [("unclean.leader.election.enable", each) for each in ("true", "false")]
        if options.retention:
            choices += [("retention.bytes", each) for each in ("0", "1000", "-1")]
            choices += [("retention.ms", each) for each in ("500", "-1")]
        if options.compaction:
            choices += [("cleanup.policy", each) for each in ("compact", "delete", "compact,delete")]
            choices += [("delete.retention.ms", "0"), ("min.compaction.lag.ms", rng.choice(("0", "500")))]
        name, value = rng.choice(choices)
        self.begin(Operation.ALTER_CONFIG, place.topic)
        if name == FLUSH_MESSAGES:
            self.checks.may_flush_late(place.topic)
        await self.alter_config(place.topic, name, value)

    # -- places and leaders --------------------------------------------------------------------------------------------

    async def _reassign_away(self, place: Place) -> None:
        """To other replicas, and later back to those that it had: what a broker keeps of it must not count then."""
        rng, key = self.rng, (place.topic, place.index)
        before = self._left.pop(key, None)
        if before is not None:
            self.begin(Operation.REASSIGN_BACK, place.topic)
            await self.reassign(place.topic, place.index, before)
            return
        self.begin(Operation.REASSIGN, place.topic)
        partition = self.checks.live_keys.get(place.key)
        if partition is not None:
            self._left[key] = list(partition.replicas)
        count = self.options.replicas or rng.choice((1, 2, 2, 3))
        await self.reassign(place.topic, place.index, rng.sample(self.nodes, count))

    async def _move(self, place: Place) -> None:
        """One replica to any directory of its broker."""
        partition = self.checks.live_keys.get(place.key)
        if partition is None or self.options.log_dirs < 2:
            return
        node_id, path = self.rng.choice(partition.replicas), self.rng.choice(directories_of(self.options))
        self.begin(Operation.MOVE_DIRECTORY, place.topic)
        wanted = {"path": path, "topics": [{"name": place.topic, "partitions": [place.index]}]}
        answer = await self.wire.call(node_id, ApiKey.ALTER_REPLICA_LOG_DIRS, 2, {"dirs": [wanted]})
        code = answer.results[0].partitions[0].error_code
        self.tell(f"moves {place.topic}-{place.index} of n{node_id} to {path}: {code}")

    async def _unregister(self, _: Place) -> None:
        """A broker whose process is not there; it registers anew when it is back."""
        down = [node_id for node_id, process in sorted(self.world.processes.items()) if not process.is_up]
        if not down:
            return
        self.begin(Operation.UNREGISTER_BROKER)
        answer = await self.ask(ApiKey.UNREGISTER_BROKER, 0, {"broker_id": down[0]})
        self.tell(f"unregisters {down[0]}: {answer.error_code}")

    async def _cancel(self, place: Place) -> None:
        self.begin(Operation.CANCEL_REASSIGNMENT, place.topic)
        await self.reassign(place.topic, place.index, None)

    async def _elect_preferred(self, place: Place) -> None:
        self.begin(Operation.PREFERRED_ELECTION, place.topic)
        await self.elect(place.topic, place.index, unclean=False)

    async def _replace_lost(self) -> None:
        """Follow the advice of a node that keeps a replica offline because its files have gone with a directory, and
        all that may be elected cleanly are such replicas: elect another one."""
        image = self.checks.image
        for topic in list(image.topics_by_id.values()):
            for index, partition in enumerate(topic.partitions):
                if partition.leader == NO_LEADER and has_lost_files(partition, image):
                    self.begin(Operation.UNCLEAN_ELECTION, topic.name)
                    await self.elect(topic.name, index, unclean=True)

    async def _elect_uncleanly(self, place: Place) -> None:
        if self.options.unclean:
            self.begin(Operation.UNCLEAN_ELECTION, place.topic)
            await self.elect(place.topic, place.index, unclean=True)


def has_lost_files(partition: PartitionImage, image: MetadataImage) -> bool:
    """Whether each replica that may be elected cleanly lives, and its directory is none that its broker has."""
    for member in (*partition.isr, *partition.elr, *partition.last_known_elr):
        directory = partition.directory_of(member)
        if not image.is_active(member) or directory is None or directory_is_online(image.brokers[member], directory):
            return False
    return True


OPERATIONS: Final[Mapping[Operation, Callable[[Operator, Place], Awaitable[None]]]] = {
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
_WHEN_NAMED: Final = frozenset((Operation.CREATE_TOPIC,))
"""Not among those of a seed whose options name none: each further topic costs a part of its other operations."""
