"""A cluster in which any request may reach the controller, and the invariants after every response.

`World` knows brokers only as they know themselves: by the responses that they got. Each action draws its choices from
the given generator, and is checked record by record. Sources of the checks are beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final
from uuid import UUID

from fenceline.controller.partition_requests import (
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    BalanceLeaders,
    ElectionType,
    ElectLeaders,
    ElectUncleanLeaders,
    IsrChange,
    IsrMember,
    Reassignment,
)
from fenceline.controller.replica_index import ReplicaIndex
from fenceline.controller.requests import (
    BrokerHeartbeat,
    ConfigChange,
    ConfigOperation,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    FeatureUpdate,
    FenceEndedBroker,
    FenceStaleBroker,
    IncrementalAlterConfigs,
    NewPartitions,
    TopicReference,
    TopicToCreate,
    UnregisterBroker,
    UpdateFeatures,
    UpgradeType,
)
from fenceline.controller.state import MAX_VISITS
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.delta import apply
from fenceline.metadata.image import (
    EMPTY_IMAGE,
    ConfigResource,
    ConfigResourceType,
    LeaderRecoveryState,
    PartitionImage,
    TopicImage,
)
from fenceline.metadata.records import MetadataRecord, PartitionChangeRecord
from fenceline.metadata.snapshot import image_of, image_records
from fenceline.metadata.topics_delta import changed_partition
from tests.controller.helpers import Cluster

BROKERS: Final = (1, 2, 3, 4)
_NO_CHANGE: Final = -2
_RECOVERED, _RECOVERING = LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING


def directories(broker: int) -> tuple[UUID, UUID]:
    return UUID(int=10_000 + 2 * broker), UUID(int=10_001 + 2 * broker)


class World:
    """See the module docstring."""

    def __init__(self, *, elr: bool = True, metadata_version: int = 30, max_visits: int = MAX_VISITS) -> None:
        levels = {"metadata.version": metadata_version, **({"eligible.leader.replicas.version": 1} if elr else {})}
        self.cluster = Cluster(0, features=levels, max_visits=max_visits)
        self.everything: list[MetadataRecord] = []
        self.incarnations: Counter[int] = Counter()
        self.failed: dict[int, tuple[UUID, ...]] = {}
        self.asked: Any = None
        start = self.cluster.records
        self.everything += start
        self._topic_number = 0

    @property
    def image(self) -> Any:
        return self.cluster.image

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, request: Any) -> Any:
        """Ask, then check all invariants. None when the request is rejected as a whole."""
        before = self.image
        self.asked = request
        self.cluster.records = []
        try:
            answer = self.cluster.ask(request)
        except PeerError:
            assert self.image is before, "a refused request changes nothing (C4)"
            return None
        self.everything += self.cluster.records
        self._check_records(before)
        self._check_state()
        return answer

    # -- actions -------------------------------------------------------------------------------------------------------

    def register(self, rng: Random) -> None:
        """A broker starts: for the first time, after a crash or after a clean stop."""
        broker = rng.choice(BROKERS)
        known = self.image.brokers.get(broker)
        if known is not None and rng.random() < 0.8:
            self.cluster.now_ms += 9000
        self.failed[broker] = ()
        self.incarnations[broker] += 1
        previous = known.epoch if known is not None and rng.random() < 0.5 else -1
        before = self.image
        try:
            self.cluster.register(
                broker,
                incarnation=self.incarnations[broker],
                rack=f"rack{broker % 2}",
                previous=previous,
                log_dirs=directories(broker),
            )
        except PeerError:
            assert self.image is before, "a refused registration changes nothing (C4)"
            assert known is not None, "only another incarnation is refused"
            return
        self.asked = "register"
        self.everything += self.cluster.records
        self._check_records(before)
        self._check_state()
        for _, _, partition in self._partitions():
            assert broker not in partition.isr or (not self.image.elr_enabled and partition.leader == -1), "K23, C28"

    def heartbeat(self, rng: Random) -> None:
        registered = list(self.image.brokers)
        if not registered:
            return
        broker = rng.choice(registered)
        if rng.random() < 0.1:
            self.failed[broker] = tuple(d for d in directories(broker) if rng.random() < 0.5)
        stop = rng.random() < 0.15
        stopping = self.image.brokers[broker].in_controlled_shutdown
        held = self.image.brokers[broker].log_dirs
        led = any(p.leader == broker for _, _, p in self._partitions())
        answer = self.ask(
            BrokerHeartbeat(
                broker,
                self.image.brokers[broker].epoch if rng.random() < 0.95 else 1,
                self.cluster.controller.next_offset - 1 if rng.random() < 0.9 else 0,
                want_fence=rng.random() < 0.1,
                want_shut_down=stop,
                offline_log_dirs=self.failed.get(broker, ()),
                cordoned_log_dirs=rng.choice([None, (), (directories(broker)[0],)]),
            )
        )
        if answer is not None and answer.should_shut_down:
            assert stop or stopping
            assert not any(p.leader == broker for _, _, p in self._partitions()), "it still leads (C14)"
            hurried = self.asked.want_fence or set(held) <= set(self.failed.get(broker, ()))
            assert not led or hurried, "no other broker knows the new leader yet (C14)"

    def pass_time(self, rng: Random) -> None:
        self.cluster.now_ms += rng.choice([100, 3000, 9000])
        alive = [b for b in self.image.brokers.values() if rng.random() < 0.6]
        for broker in alive:
            session = self.cluster.controller.state.sessions.get(broker.id)
            if session is not None:
                session.last_contact_ms = self.cluster.now_ms
        self.ask(FenceStaleBroker())

    def lose(self, rng: Random) -> None:
        """A probe found that the process of a broker has ended, rightly or wrongly."""
        if self.image.brokers:
            broker = self.image.brokers[rng.choice(list(self.image.brokers))]
            before = broker.fenced
            self.ask(FenceEndedBroker(broker.id, broker.epoch, self.cluster.now_ms - rng.choice([0, 0, 100])))
            after = self.image.brokers[broker.id]
            assert after.epoch == broker.epoch
            assert before <= after.fenced

    def create(self, rng: Random) -> None:
        if not self.image.brokers:
            return
        self._topic_number += 1
        if rng.random() < 0.3:
            topic = TopicToCreate(f"t{self._topic_number}", rng.randint(1, 3), rng.randint(1, 3))
        else:
            size = rng.randint(1, 4)
            replicas = [tuple(rng.sample(BROKERS, size)) for _ in range(rng.randint(1, 3))]
            topic = TopicToCreate(f"t{self._topic_number}", assignments=tuple(enumerate(replicas)))
        configs = []
        if rng.random() < 0.5:
            configs.append(("min.insync.replicas", str(rng.randint(1, 3))))
        if rng.random() < 0.2:
            configs.append(("unclean.leader.election.enable", "true"))
        topic = TopicToCreate(
            topic.name, topic.num_partitions, topic.replication_factor, topic.assignments, tuple(configs)
        )
        answer = self.ask(CreateTopics((topic,)))
        assert answer is None or answer.topics[0].outcome.failed == (not self.cluster.records)

    def delete(self, rng: Random) -> None:
        if len(self.image.topics_by_name) > 3:
            self.ask(DeleteTopics((TopicReference(self._topic(rng).name),)))

    def grow(self, rng: Random) -> None:
        if self.image.topics_by_name:
            topic = self._topic(rng)
            answer = self.ask(CreatePartitions((NewPartitions(topic.name, len(topic.partitions) + rng.randint(0, 1)),)))
            assert answer.topics[0].outcome.failed == (not self.cluster.records)

    def alter_partition(self, rng: Random) -> None:
        """Mostly requests of a correct leader; sometimes any request."""
        if not self.image.topics_by_name:
            return
        topic = self._topic(rng)
        index = rng.randrange(len(topic.partitions) + (rng.random() < 0.05))
        partition = self._partition(topic, index)
        sender = partition.leader if rng.random() < 0.95 else rng.choice(BROKERS)
        registered = self.image.brokers.get(sender)
        if registered is None:
            return
        wanted = [b for b in partition.replicas if b == sender or rng.random() < 0.7]
        if rng.random() < 0.03:
            wanted.append(rng.choice(BROKERS))
        members = tuple(
            IsrMember(b, rng.choice([-1, self.image.brokers[b].epoch if b in self.image.brokers else 5]))
            for b in wanted
        )
        change = IsrChange(
            index,
            partition.leader_epoch + (rng.choice([-1, 1]) if rng.random() < 0.05 else 0),
            partition.partition_epoch + (rng.choice([-1, 1]) if rng.random() < 0.05 else 0),
            members,
            rng.choice([0, 0, 0, 0, 1, 7]),
        )
        topic_id = topic.id if rng.random() < 0.97 else UUID(int=404)
        answer = self.ask(AlterPartition(sender, registered.epoch, ((topic_id, (change, change)),)))
        if answer is None:
            return
        ((_, (first, second)),) = answer.topics
        assert first.code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED) or not self.cluster.records
        if first.code in (ErrorCode.NONE, ErrorCode.NEW_LEADER_ELECTED):
            assert sender == partition.leader, "V18"
        if first.code is ErrorCode.NONE and len(self.cluster.records) == 1:
            after = self._partition(self.image.topics_by_id[topic.id], index)
            assert (
                first.leader,
                first.leader_epoch,
                first.isr,
                first.leader_recovery_state,
                first.partition_epoch,
            ) == (
                after.leader,
                after.leader_epoch,
                after.isr,
                after.leader_recovery_state,
                after.partition_epoch,
            ), "V24"
            late = (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH)
            assert second.code in late, "the same request again comes too late (V18)"

    def elect(self, rng: Random) -> None:
        kind = rng.choice([0, 1])
        if rng.random() < 0.3 or not self.image.topics_by_name:
            self.ask(ElectLeaders(kind))
            return
        topic = self._topic(rng)
        index = rng.randrange(len(topic.partitions))
        answer = self.ask(ElectLeaders(kind, ((topic.name, (index,)),)))
        assert answer.topics[0][1][0].outcome.failed == (not self.cluster.records)

    def reassign(self, rng: Random) -> None:
        if not self.image.topics_by_name:
            return
        topic = self._topic(rng)
        index = rng.randrange(len(topic.partitions))
        target = None if rng.random() < 0.3 else tuple(rng.sample(BROKERS, rng.randint(1, 3)))
        request = AlterPartitionReassignments(
            ((topic.name, (Reassignment(index, target),)),), allow_replication_factor_change=rng.random() < 0.9
        )
        answer = self.ask(request)
        if answer.topics[0][1][0].outcome.failed:
            assert not self.cluster.records
        elif target is not None:
            partition = self._partition(self.image.topics_by_id[topic.id], index)
            wanted = tuple(b for b in partition.replicas if b not in partition.removing)
            assert wanted == target, "C32: the wished order, removed ones behind"

    def assign_directories(self, rng: Random) -> None:
        if not self.image.topics_by_name or not self.image.brokers:
            return
        topic = self._topic(rng)
        broker = self.image.brokers[rng.choice(list(self.image.brokers))]
        index = rng.randrange(len(topic.partitions))
        directory = rng.choice(directories(broker.id))
        answer = self.ask(
            AssignReplicasToDirs(broker.id, broker.epoch, ((directory, ((topic.id, (index,)),)),)),
        )
        if answer is None:
            assert self.image.metadata_version < 17
            return
        ((_, ((_, (assigned,)),)),) = answer.directories
        if assigned.code is ErrorCode.NONE:
            partition = self._partition(self.image.topics_by_id[topic.id], index)
            assert partition.directory_of(broker.id) == directory or broker.id not in partition.replicas
        else:
            assert not self.cluster.records

    def unregister(self, rng: Random) -> None:
        if rng.random() < 0.3:
            broker = rng.choice(BROKERS)
            self.ask(UnregisterBroker(broker))
            for _, _, partition in self._partitions():
                assert broker in self.image.brokers or broker not in partition.elr, "C19"
                if self.image.elr_enabled and broker not in self.image.brokers:
                    assert broker not in partition.isr, "C19"

    def configure(self, rng: Random) -> None:
        kind = ConfigResourceType.TOPIC if rng.random() < 0.7 else ConfigResourceType.BROKER
        if kind is ConfigResourceType.TOPIC and not self.image.topics_by_name:
            return
        name = self._topic(rng).name if kind is ConfigResourceType.TOPIC else ""
        key, value = rng.choice(
            [
                ("unclean.leader.election.enable", rng.choice(["true", "false"])),
                ("min.insync.replicas", str(rng.randint(1, 3))),
            ]
        )
        operation = rng.choice([ConfigOperation.SET, ConfigOperation.SET, ConfigOperation.DELETE])
        change = ConfigChange(key, operation, value if operation is ConfigOperation.SET else None)
        answer = self.ask(IncrementalAlterConfigs(((ConfigResource(kind, name), (change,)),)))
        if key == "unclean.leader.election.enable" and self.cluster.records:
            assert not answer.resources[0].outcome.failed
            for topic, _, partition in self._partitions():
                if partition.leader == -1 and self.cluster.controller.state.unclean_election(topic):
                    assert not any(self._may_lead(b, partition) for b in partition.replicas), "G45"

    def upgrade(self, rng: Random) -> None:
        if rng.random() < 0.1:
            self.ask(UpdateFeatures((FeatureUpdate("eligible.leader.replicas.version", 1, UpgradeType.UPGRADE),)))

    def tick(self, rng: Random) -> None:
        self.ask(rng.choice([BalanceLeaders(), ElectUncleanLeaders()]))

    def fail_over(self, rng: Random) -> None:
        """Another controller takes over with the records in the log (C2, C15)."""
        if rng.random() < 0.3:
            controller = self.cluster.controller
            controller.activate(self.image, controller.next_offset, self.cluster.now_ms)

    # -- invariants ----------------------------------------------------------------------------------------------------

    def _check_records(self, before: Any) -> None:
        """Each partition change by itself, in order."""
        held: dict[tuple[UUID, int], PartitionImage] = {}
        for record in self.cluster.records:
            if not isinstance(record, PartitionChangeRecord):
                continue
            key = record.topic_id, record.partition_id
            old = held.get(key) or before.topics_by_id[record.topic_id].partitions[record.partition_id]
            new = held[key] = changed_partition(old, record)
            self._check_change(record, old, new, self.image.topics_by_id[record.topic_id].name)

    def _check_change(self, record: PartitionChangeRecord, old: PartitionImage, new: PartitionImage, name: str) -> None:
        assert new.partition_epoch == old.partition_epoch + 1
        assert new._replace(partition_epoch=old.partition_epoch) != old, "a record that changes nothing (C9)"
        assert len(new.directories) == (len(new.replicas) if self.image.metadata_version >= 17 else 0)
        lost_replica = not set(old.replicas) <= set(new.replicas)
        shrinks = self.image.metadata_version < 12 and not set(old.isr) <= set(new.isr)
        begins_epoch = new.leader != old.leader or lost_replica or shrinks
        assert new.leader_epoch == old.leader_epoch + begins_epoch, "C27"
        self._check_sets(new, name)
        if new.leader not in (-1, old.leader):
            self._check_election(old, new, name)
        if (old.leader_recovery_state, new.leader_recovery_state) == (_RECOVERED, _RECOVERING):
            told_later = not self.image.elr_enabled and new.leader == -1  # the next leader may lack records: G47, V35
            assert len(new.isr) == 1, "V7"
            assert new.isr == (new.leader,) or told_later, "V7"
        if (old.leader_recovery_state, new.leader_recovery_state) == (_RECOVERING, _RECOVERED):
            assert isinstance(self.asked, AlterPartition), "V8"
            assert self.asked.broker_id == old.leader, "V8"

    def _check_election(self, old: PartitionImage, new: PartitionImage, name: str) -> None:
        reported = self.asked.topics[0][1][0].new_isr if isinstance(self.asked, AlterPartition) else ()
        if new.leader in {*old.isr, *(member.broker_id for member in reported)}:
            return
        assert new.isr == (new.leader,), "a replica that was not in sync leads alone"
        if new.leader in old.elr:
            assert not any(self._may_lead(b, new) for b in old.isr), "V10: the ISR comes first"
            return
        assert new.leader_recovery_state is _RECOVERING, "a data loss is not recorded (V9)"
        asked = self.asked
        allowed = (
            self.cluster.controller.state.unclean_election(name)
            or (isinstance(asked, ElectLeaders) and asked.election_type == ElectionType.UNCLEAN)
            or old.last_known_elr == (new.leader,)
        )
        assert allowed, "unclean election was not enabled (V12)"

    def _check_sets(self, partition: PartitionImage, name: str) -> None:
        replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
        assert isr <= replicas
        assert len(isr) == len(partition.isr)
        assert elr <= replicas
        assert not isr & elr
        assert {*partition.adding, *partition.removing} <= replicas
        assert set(partition.last_known_elr) <= replicas or partition.leader == -1
        assert partition.leader == -1 or partition.leader in isr, "LeaderInIsr"
        assert partition.leader_recovery_state is _RECOVERED or len(isr) <= 1, "V6"
        assert self.image.elr_enabled or not elr
        assert self.image.elr_enabled or isr, "C28"
        minimum = min(self.cluster.controller.state.min_isr(name), len(replicas))
        assert len(isr) < minimum or not elr, "K21: enough are in sync"
        needed = replicas - set(partition.removing)
        waits_for = set(partition.adding) if len(partition.adding) >= len(partition.removing) else needed
        if (partition.adding or partition.removing) and partition.leader_recovery_state is _RECOVERED:
            assert not waits_for <= isr or not isr - set(partition.removing), (
                "a completed reassignment is not ended (C33)"
            )

    def _check_state(self) -> None:
        """The image, and the state derived from it."""
        state = self.cluster.controller.state
        for name, index, partition in self._partitions():
            where = f"{name}-{index} {partition}"
            if partition.leader != -1:
                assert self._may_lead(partition.leader, partition), f"a dead leader: {where}"
            else:
                pool = partition.isr or (partition.elr if self.image.elr_enabled else ())
                assert not any(self._may_lead(b, partition) for b in pool), f"somebody could lead: {where}"
        rebuilt = ReplicaIndex(self.image)
        while not rebuilt.build(partitions=1):
            pass
        for slot in set(ReplicaIndex.__slots__) - {"_to_build"}:
            ours, fresh = getattr(state.index, slot), getattr(rebuilt, slot)
            assert {k: v for k, v in ours.items() if v} == {k: v for k, v in fresh.items() if v}, slot

    def check_history(self) -> None:
        """All records lead to the same image, and so does a snapshot of it."""
        offset, epoch = self.image.offset, self.image.epoch
        replayed, _ = apply(EMPTY_IMAGE, self.everything, offset, epoch)
        assert replayed == self.image
        assert image_of(image_records(self.image), offset, epoch) == self.image

    def _may_lead(self, broker: int, partition: PartitionImage) -> bool:
        return self.image.is_active(broker) and self.cluster.controller.state.replica_is_online(broker, partition)

    def _partitions(self) -> list[tuple[str, int, PartitionImage]]:
        return [
            (topic.name, index, partition)
            for topic in self.image.topics_by_id.values()
            for index, partition in enumerate(topic.partitions)
        ]

    def _topic(self, rng: Random) -> TopicImage:
        found: TopicImage = self.image.topics_by_name[rng.choice(sorted(self.image.topics_by_name))]
        return found

    def _partition(self, topic: TopicImage, index: int) -> PartitionImage:
        return topic.partitions[min(index, len(topic.partitions) - 1)]


ACTIONS: Final[tuple[tuple[int, Callable[[World, Random], None]], ...]] = (
    (4, World.register),
    (12, World.heartbeat),
    (3, World.pass_time),
    (3, World.create),
    (1, World.delete),
    (1, World.grow),
    (10, World.alter_partition),
    (4, World.elect),
    (6, World.reassign),
    (2, World.assign_directories),
    (1, World.unregister),
    (3, World.configure),
    (1, World.upgrade),
    (2, World.tick),
    (1, World.fail_over),
)
"""Actions, with their relative weights."""


def run_history(
    seed: int, steps: int = 120, more: tuple[tuple[int, Callable[[World, Random], None]], ...] = ()
) -> World:
    """A whole history of one seed, checked: every third without eligible replicas, some of those at old levels. `more`
    are actions in addition to `ACTIONS`.
    """
    rng = Random(seed)
    max_visits = 1 if seed % 4 == 1 else MAX_VISITS
    if seed % 3:
        world = World(elr=True, max_visits=max_visits)
    else:
        world = World(elr=False, metadata_version=(30, 22, 16, 11)[seed // 3 % 4], max_visits=max_visits)
    weights, actions = zip(*ACTIONS, *more, strict=True)
    for _ in range(6):
        world.register(rng)
    for _ in range(8):
        world.heartbeat(rng)
    for _ in range(steps):
        rng.choices(actions, weights)[0](world, rng)
    world.check_history()
    return world
