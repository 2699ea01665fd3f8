"""Clients and operators of the chaos of operations: they use every API under every fault.

Owns the load (one producer a topic), the operations by name, and what was asked for by whom (`chaos_model.Topic`). An
operation whose answer did not come may have been done, or is done later: it counts as asked for. Asserts nothing.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from fenceline.client import Consumer
from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.client.core.metadata import PartitionMetadata
from fenceline.client.core.offsets import EARLIEST, LATEST
from fenceline.errors import ErrorCode, FencelineError, PeerError
from fenceline.ids import TopicPartition
from fenceline.local_cluster.cuts import NetworkCut
from fenceline.testing.simulation.operations import Fault, Operation
from fenceline.testing.waiting import eventually
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from tests.support.chaos_cluster import WAIT_S, ChaosCluster
from tests.support.chaos_model import Acknowledged, LogOfPartition, Topic

_BATCH: Final = 10
_KEYS: Final = 7
_GROUP: Final = "g"
_LATE_S: Final = 60.0
"""By then a frozen node has done what lay in its sockets."""
_TROUBLE: Final = (FencelineError, OSError, MalformedRequest, LookupError)
"""`LookupError`: a broker that has not heard of it yet."""
_TINY: Final = {"segment.ms": "400", "min.insync.replicas": "2"}
_TINIER: Final = ("200", "400", "1500")


def topics() -> list[Topic]:
    """One of each kind; `again-...` are deleted and recreated."""
    kept = {**_TINY, "retention.ms": "-1"}
    return [
        Topic("kept", 2, kept),
        Topic("again-0", 1, kept),
        Topic("again-1", 2, kept),
        Topic("short", 1, {**_TINY, "retention.bytes": "20000", "retention.ms": "-1"}, has_retention=True),
        Topic(
            "keyed",
            1,
            {
                **kept,
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": "0.01",
                "min.compaction.lag.ms": "0",
                "delete.retention.ms": "0",
            },
            is_compacted=True,
        ),
        Topic("torn", 2, {"min.insync.replicas": "1", "retention.ms": "-1"}, replicas=(1, 2), may_lose=True),
    ]


class Load(threading.Thread):
    """Writes into one topic until it is over; what was acknowledged is noted."""

    def __init__(self, bootstrap: str, topic: Topic) -> None:
        super().__init__(name=f"load {topic.name}", daemon=True)
        self._servers, self._topic = bootstrap, topic
        self._number = 0
        self.is_over = threading.Event()
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.is_over.is_set():
                producer = self._producer()
                with contextlib.suppress(KafkaException, BufferError):
                    while not self.is_over.is_set():
                        self._batch(producer)
                producer.purge()
        except BaseException as error:
            self.failure = error

    def _producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self._servers,
                # Of what may be lost, a leader's word is enough; an idempotent producer would stop at the loss.
                "acks": "1" if self._topic.may_lose else "all",
                "enable.idempotence": not self._topic.may_lose,
                "message.timeout.ms": 20_000,
                "linger.ms": 0,
                "log_level": 0,
                "topic.metadata.refresh.interval.ms": 2_000,
            }
        )

    def _batch(self, producer: Producer) -> None:
        """Some records, until each is acknowledged or given up. Raises KafkaException where it can write no more."""
        topic, fatal = self._topic, []
        for _ in range(_BATCH):
            self._number += 1
            key = str(self._number % _KEYS).encode()
            value = f"{topic.name}/{topic.life}/{self._number}".encode()
            sent_s = time.monotonic()

            def settled(error: Any, message: Any, *, sent: tuple[bytes, bytes, float] = (key, value, sent_s)) -> None:
                if error is not None:
                    fatal.append(error)
                elif message.offset() is not None and message.offset() >= 0:
                    where = message.partition(), message.offset()
                    topic.note(Acknowledged(*where, *sent, time.monotonic()))

            producer.produce(topic.name, value, key=key, on_delivery=settled)
        while len(producer) and not self.is_over.is_set():
            producer.poll(0.1)
        if fatal:
            # A new one: what an idempotent producer gave up leaves a gap in its sequences.
            raise KafkaException(fatal[0])
        time.sleep(0.1)


class Operators:
    """Does one operation after the other, each of the list in turns of random order."""

    def __init__(self, chaos: ChaosCluster, all_topics: list[Topic], rng: random.Random) -> None:
        self._chaos, self._rng = chaos, rng
        self.topics = {each.name: each for each in all_topics}
        self.done: Counter[Operation] = Counter()
        self.asked: Counter[Operation] = Counter()
        self._left: dict[tuple[str, int], tuple[int, ...]] = {}
        """Replicas that a partition had before it was reassigned."""
        self._may_be: dict[int, set[int]] = {0: {-1}, 1: {-1}}
        """By partition of `kept`: what the group may have committed; -1: nothing."""
        self._unsure_s = -_LATE_S
        """When a change of the group's offsets last had no answer."""
        self.wrong: list[str] = []
        self.driven: Mapping[Operation, Callable[[], None]] = {
            Operation.FETCH: self._fetch,
            Operation.LIST_OFFSETS: self._list_offsets,
            Operation.END_OF_EPOCH: self._end_of_epoch,
            Operation.RECREATE_TOPIC: self._recreate,
            Operation.DELETE_RECORDS: self._delete_records,
            Operation.ADD_PARTITIONS: self._add_partitions,
            Operation.REASSIGN: self._reassign,
            Operation.REASSIGN_BACK: self._reassign_back,
            Operation.CANCEL_REASSIGNMENT: self._cancel,
            Operation.MOVE_DIRECTORY: self._move,
            Operation.ALTER_CONFIG: self._alter,
            Operation.PREFERRED_ELECTION: self._preferred,
            Operation.COMMIT_OFFSETS: self._commit,
            Operation.FETCH_COMMITTED: self._committed,
            Operation.RESET_OFFSETS: self._reset,
            Operation.DELETE_OFFSETS: self._forget,
            Operation.DELETE_GROUP: self._delete_group,
        }
        """By requests."""
        self.by_others: Mapping[Operation, str] = {
            Operation.PRODUCE: "`Load`",
            Operation.CREATE_TOPIC: "`create_all`, and with each deletion",
            Operation.DELETE_TOPIC: "with each `_recreate`",
            Operation.RETENTION: "the brokers, in the topic `short`",
            Operation.COMPACTION: "the brokers, in the topic `keyed`",
            Operation.METADATA_SNAPSHOT: "the nodes, by `metadata.log.max.record.bytes.between.snapshots`",
            Operation.UNCLEAN_ELECTION: "`strand`",
            Operation.UNREGISTER_BROKER: "`unregister`",
        }
        """Where the others are done."""

    def _admin(self) -> Admin:
        return Admin({**self._client(), "default.api.timeout.ms": 15_000})

    def _client(self) -> dict[str, Any]:
        """A broker that is cut off is not always the first that is tried, nor for long."""
        servers = self._rng.sample(self._chaos.bootstrap.split(","), len(self._chaos.nodes))
        return {"bootstrap.servers": ",".join(servers), "socket.connection.setup.timeout.ms": 2_000}

    def create_all(self) -> None:
        for topic in self.topics.values():
            self._create(topic)

    def one(self, operation: Operation) -> None:
        self.asked[operation] += 1
        try:
            self.driven[operation]()
        except _TROUBLE as error:
            self._chaos.say(f"{operation}: {type(error).__name__} {str(error)[:100]}")
        else:
            self.done[operation] += 1

    def _any(self, *names: str) -> tuple[Topic, int]:
        topic = self.topics[self._rng.choice(names or ("kept", "again-0", "again-1", "short", "keyed"))]
        return topic, self._rng.randrange(topic.partitions)

    def _partition(self, name: str, index: int) -> PartitionMetadata:
        with self._admin() as admin:
            found: PartitionMetadata = admin.metadata([name]).topics[name].partitions[index]
        return found

    # -- topics --------------------------------------------------------------------------------------------------------

    def _create(self, topic: Topic) -> None:
        """Until it is there: a request without an answer may have been done."""
        placed = dict.fromkeys(range(topic.partitions), topic.replicas) if topic.replicas else {}
        new = NewTopic(
            topic.name,
            -1 if placed else topic.partitions,
            -1 if placed else 3,
            configs=topic.configs,
            assignments=placed,
        )

        def created() -> bool:
            with self._admin() as admin:
                try:
                    admin.create_topics([new])
                except PeerError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise
            return True

        eventually(created, f"{topic.name} is created", wait_s=WAIT_S, step_s=0.5)
        topic.born_s = time.monotonic()

    def _recreate(self) -> None:
        """By id: a request that a frozen node does later must not meet the next life."""
        topic, _ = self._any("again-0", "again-1")
        with self._admin() as admin:
            topic_id = admin.metadata([topic.name]).topics[topic.name].id
        topic.deletions.append(time.monotonic())

        def deleted() -> bool:
            rows = [{"name": None, "topic_id": topic_id}]
            answer = self._chaos.call(ApiKey.DELETE_TOPICS, (6, 6), {"topics": rows, "timeout": 5_000})
            return answer.responses[0].error_code in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)

        eventually(deleted, f"{topic.name} is deleted", wait_s=WAIT_S, step_s=0.5)
        topic.life += 1
        for key in [key for key in self._left if key[0] == topic.name]:
            del self._left[key]
        topic.partitions = self._rng.randint(1, 2)
        topic.deleted_below.clear()
        self._create(topic)

    def _delete_records(self) -> None:
        """Once, at the leader: what a frozen node does later would meet the next life of a topic of its name."""
        topic, index = self._any("kept")
        where = TopicPartition(topic.name, index)
        with self._admin() as admin:
            end = admin.list_offsets({where: LATEST})[where].offset
            target = self._rng.randint(0, end)
            topic.deleted_below[index] = max(topic.deleted_below.get(index, 0), target)
            admin.delete_records({where: target})

    def _add_partitions(self) -> None:
        topic, _ = self._any("again-0", "again-1")
        if topic.partitions < 4:
            with self._admin() as admin:
                admin.create_partitions({topic.name: topic.partitions + 1})
            topic.partitions += 1

    def _alter(self) -> None:
        topic, _ = self._any("kept", "again-0", "again-1", "keyed")
        with self._admin() as admin:
            admin.alter_configs({("topic", topic.name): {"segment.ms": self._rng.choice(_TINIER)}})

    # -- replicas ------------------------------------------------------------------------------------------------------

    def _set_replicas(self, name: str, index: int, replicas: tuple[int, ...] | None) -> None:
        row = {"partition_index": index, "replicas": None if replicas is None else list(replicas)}
        fields = {"timeout": 5_000, "topics": [{"name": name, "partitions": [row]}]}
        answer = self._chaos.call(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 0), fields)
        code = answer.error_code or answer.responses[0].partitions[0].error_code
        if code not in (ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS):
            raise PeerError(ErrorCode(code))

    def _reassign(self) -> None:
        """Away from one broker, and another leads first: two replicas stay, as many as acknowledge a record."""
        topic, index = self._any("kept", "again-0", "again-1", "keyed")
        before = self._partition(topic.name, index).replicas
        if len(before) == 3:
            self._left[topic.name, index] = before
            self._set_replicas(topic.name, index, tuple(self._rng.sample(before, 2)))

    def _reassign_back(self) -> None:
        if self._left:
            (name, index), replicas = self._left.popitem()
            try:
                self._set_replicas(name, index, replicas)
            except _TROUBLE:
                self._left[name, index] = replicas
                raise

    def _cancel(self) -> None:
        """Of what is under way just now."""
        self._reassign()
        if self._left:
            name, index = list(self._left)[-1]
            self._set_replicas(name, index, None)

    def bring_back(self) -> None:
        """All replicas that were taken away."""
        while self._left:
            eventually(lambda: self._reassign_back() is None, "a replica comes back", wait_s=WAIT_S, step_s=0.5)

    def _move(self) -> None:
        node = self._rng.choice(self._chaos.nodes)
        topic, index = self._any()
        fields = {
            "dirs": [
                {
                    "path": str(self._rng.choice(node.log_dirs)),
                    "topics": [{"name": topic.name, "partitions": [index]}],
                }
            ]
        }
        answer = self._chaos.call(ApiKey.ALTER_REPLICA_LOG_DIRS, (1, 2), fields, node=node.node_id)
        code = answer.results[0].partitions[0].error_code
        if code:
            raise PeerError(ErrorCode(code))

    def _preferred(self) -> None:
        self._elect(0, None)

    def _elect(self, kind: int, topic: Topic | None) -> None:
        rows = None if topic is None else [{"topic": topic.name, "partitions": list(range(topic.partitions))}]
        fields = {"election_type": kind, "topic_partitions": rows, "timeout": 5_000}
        answer = self._chaos.call(ApiKey.ELECT_LEADERS, (1, 2), fields)
        if answer.error_code:
            raise PeerError(ErrorCode(answer.error_code))

    # -- readers and groups --------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        topic, index = self._any()
        where = TopicPartition(topic.name, index)
        with Consumer({**self._client(), "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([where])
            consumer.seek_to_beginning()
            last = -1
            for record in consumer.poll(1_000, max_records=500):
                if record.offset <= last:
                    self.wrong.append(f"{where}: offset {record.offset} behind {last}")
                last = record.offset

    def _list_offsets(self) -> None:
        topic, index = self._any()
        with self._admin() as admin:
            admin.list_offsets({TopicPartition(topic.name, index): self._rng.choice((EARLIEST, LATEST))})

    def _end_of_epoch(self) -> None:
        topic, index = self._any()
        with self._admin() as admin:
            admin.offsets_for_leader_epoch({TopicPartition(topic.name, index): self._rng.randrange(4)})

    def _set_offset(self, offset: int | None, index: int, change: Callable[[Admin], None]) -> None:
        """None: nothing is committed afterwards."""
        value = -1 if offset is None else offset
        self._may_be[index].add(value)
        with self._sure(), self._admin() as admin:
            change(admin)
        self._settle(index, value)

    @contextlib.contextmanager
    def _sure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._unsure_s = time.monotonic()
            raise

    def _settle(self, index: int, value: int) -> None:
        """Nothing else may be committed, unless a request without an answer may still be done."""
        if time.monotonic() > self._unsure_s + _LATE_S:
            self._may_be[index] = {value}

    def _commit(self) -> None:
        index, offset = self._rng.randrange(2), self._rng.randrange(1_000, 1_000_000)
        where = {TopicPartition("kept", index): offset}
        self._set_offset(offset, index, lambda admin: admin.alter_group_offsets(_GROUP, where))

    def _reset(self) -> None:
        index = self._rng.randrange(2)
        where = {TopicPartition("kept", index): 0}
        self._set_offset(0, index, lambda admin: admin.alter_group_offsets(_GROUP, where))

    def _forget(self) -> None:
        index = self._rng.randrange(2)
        where = [TopicPartition("kept", index)]
        self._set_offset(None, index, lambda admin: admin.delete_group_offsets(_GROUP, where))

    def _delete_group(self) -> None:
        for index in self._may_be:
            self._may_be[index].add(-1)
        with self._sure(), self._admin() as admin:
            admin.delete_groups([_GROUP])
        for index in self._may_be:
            self._settle(index, -1)

    def _committed(self) -> None:
        wanted = [TopicPartition("kept", index) for index in self._may_be]
        with self._admin() as admin:
            found = admin.list_group_offsets(_GROUP, wanted)
        for where in wanted:
            offset = found[where].offset if where in found else -1
            if offset not in self._may_be[where.partition]:
                self.wrong.append(f"{where}: {offset} committed, may be {self._may_be[where.partition]}")

    # -- stories of operations and faults ------------------------------------------------------------------------------

    def unregister(self) -> None:
        """A broker is taken out of the metadata while it is down, and registers again."""
        node = self._rng.choice(self._chaos.ours)
        self._chaos.say(f"unregister {node.node_id}")
        self.asked[Operation.UNREGISTER_BROKER] += 1
        node.stop(wait_s=WAIT_S)
        try:
            with self._admin() as admin:
                admin.unregister_broker(node.node_id)
            self.done[Operation.UNREGISTER_BROKER] += 1
        except _TROUBLE as error:
            self._chaos.say(f"not unregistered: {error}")
        self._chaos.start(node)

    def strand(self) -> Fault:
        """A leader that was alone in sync is cut off, and one that lacks its records is elected by request."""
        torn, chaos = self.topics["torn"], self._chaos
        ahead_id, behind_id = self._rng.sample(torn.replicas, 2)
        behind = chaos.cluster.node(behind_id)
        chaos.say(f"strand {ahead_id}, {behind_id} lacks records")
        behind.kill()

        def everywhere(holds: Callable[[PartitionMetadata], bool], what: str) -> None:
            indexes = range(torn.partitions)
            eventually(lambda: all(holds(self._partition(torn.name, each)) for each in indexes), what, wait_s=WAIT_S)

        everywhere(lambda each: each.leader == ahead_id and each.isr == (ahead_id,), f"{ahead_id} leads alone")
        count = len(torn.acknowledged)
        eventually(lambda: len(torn.acknowledged) > count + _BATCH, "it acknowledges records", wait_s=WAIT_S)
        chaos.cuts.isolate(ahead_id, [NetworkCut()])
        chaos.start(behind)
        everywhere(lambda each: each.leader != ahead_id, f"{ahead_id} is fenced")
        self.asked[Operation.UNCLEAN_ELECTION] += 1

        def elected() -> bool:
            with contextlib.suppress(*_TROUBLE):
                self._elect(1, torn)
            return all(self._partition(torn.name, each).leader == behind_id for each in range(torn.partitions))

        eventually(elected, f"{behind_id} is elected", wait_s=WAIT_S, step_s=0.5)
        self.done[Operation.UNCLEAN_ELECTION] += 1
        chaos.cuts.heal(ahead_id)
        self.in_sync([torn])
        chaos.say("stranded over")
        return Fault.STRANDED

    # -- afterwards ----------------------------------------------------------------------------------------------------

    def in_sync(self, wanted: list[Topic]) -> None:
        def holds() -> bool:
            with self._admin() as admin:
                found = admin.metadata([each.name for each in wanted]).topics
            return all(
                partition.leader >= 0 and len(partition.isr) == len(partition.replicas)
                for topic in wanted
                for partition in found[topic.name].partitions.values()
            )

        eventually(holds, "all replicas are in sync", wait_s=WAIT_S, step_s=0.2)

    def read(self, topic: Topic) -> dict[int, LogOfPartition]:
        """The whole log of each partition that there is."""
        with self._admin() as admin:
            indexes = sorted(admin.metadata([topic.name]).topics[topic.name].partitions)
            logs = {}
            for index in indexes:
                where = TopicPartition(topic.name, index)
                start = admin.list_offsets({where: EARLIEST})[where].offset
                end = admin.list_offsets({where: LATEST})[where].offset
                logs[index] = LogOfPartition(start, end, self._records(where, start, end))
        return logs

    def _records(self, where: TopicPartition, start: int, end: int) -> dict[int, tuple[bytes, bytes]]:
        found: dict[int, tuple[bytes, bytes]] = {}
        with Consumer({**self._client(), "auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([where])
            consumer.seek(where, start)

            def is_read() -> bool:
                for record in consumer.poll(200):
                    found[record.offset] = bytes(record.key or b""), bytes(record.value or b"")
                return consumer.position(where) >= end

            eventually(is_read, f"{where} is read up to {end}", wait_s=WAIT_S)
        return found
