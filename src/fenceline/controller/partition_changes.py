"""Changes of partitions within one decision, each based on the previous ones.

Owns the records of the decision and the state of the partitions once they are replayed: a partition that a request
names twice, or that two causes affect, changes twice in a row and never from the same state. `controller.elections`
computes each change.

Rules: controller.md C3, C26, C37; recovery.md V10 (who may lead), V12 (when an unclean election is allowed).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, TypedDict, Unpack
from uuid import UUID

from fenceline.controller.elections import Election, change_partition
from fenceline.controller.state import ControllerState
from fenceline.ids import NO_LEADER
from fenceline.metadata.features import MV_DIRECTORIES, MV_NO_EPOCH_ON_SHRINK
from fenceline.metadata.image import UNASSIGNED_DIRECTORY, LeaderRecoveryState, PartitionImage, TopicImage
from fenceline.metadata.records import MetadataRecord, PartitionChangeRecord
from fenceline.metadata.topics_delta import changed_partition

NO_BROKERS: Final[frozenset[int]] = frozenset()


class ChangeTargets(TypedDict, total=False):
    """Targets of a change, as `elections.change_partition` accepts them."""

    target_isr: tuple[int, ...]
    target_replicas: tuple[int, ...]
    target_adding: tuple[int, ...]
    target_removing: tuple[int, ...]
    unclean_shutdown: int
    recovery_state: LeaderRecoveryState


class _TopicRules(NamedTuple):
    """Topic configs that affect its elections."""

    min_isr: int
    election: Election


class PartitionChanges:
    """The partition records of one decision, in order."""

    def __init__(self, state: ControllerState) -> None:
        self.records: list[MetadataRecord] = []
        self._state = state
        self._elr_enabled = state.image.elr_enabled
        version = state.image.metadata_version
        self._directory_of = state.default_directory if version >= MV_DIRECTORIES else None
        self._shrinking_starts_an_epoch = version < MV_NO_EPOCH_ON_SHRINK
        self._changed: dict[tuple[str, int], tuple[PartitionImage, PartitionChangeRecord]] = {}
        self._rules: dict[str, _TopicRules] = {}
        self._equal_rules: dict[_TopicRules, _TopicRules] = {}

    def partition(self, topic: TopicImage, index: int) -> PartitionImage | None:
        """The partition with all changes so far; None if the topic does not have it."""
        if not 0 <= index < len(topic.partitions):
            return None
        change = self._changed.get((topic.name, index))
        return topic.partitions[index] if change is None else changed_partition(*change)

    def is_unclean_allowed(self, topic: TopicImage) -> bool:
        """V12: the topic's config."""
        return self._rules_of(topic).election is Election.UNCLEAN

    def change(
        self,
        topic: TopicImage,
        index: int,
        *,
        leaving: Collection[int] = NO_BROKERS,
        arriving: int = NO_LEADER,
        failed_directories: Collection[UUID] = frozenset(),
        election: Election | None = None,
        directories: Mapping[int, UUID] | None = None,
        **targets: Unpack[ChangeTargets],
    ) -> PartitionChangeRecord | None:
        """Write the record of `elections.change_partition`; None if nothing changes.

        Brokers in `leaving` cannot lead although the image has them as active; `arriving` can although the image has it
        as fenced. `election` defaults to ONLINE or UNCLEAN by the topic's config.
        """
        state, image = self._state, self._state.image
        partition = self.partition(topic, index)
        assert partition is not None, "callers check that the partition exists"
        rules = self._rules_of(topic)
        placed = partition if directories is None else _moved(partition, directories)

        def may_lead(broker: int) -> bool:
            return (
                broker not in leaving
                and (broker == arriving or image.is_active(broker))
                and state.replica_is_online(broker, placed, failed_directories)
            )

        record = change_partition(
            partition,
            topic.id,
            index,
            may_lead=may_lead,
            min_isr=rules.min_isr,
            elr_enabled=self._elr_enabled,
            election=election or rules.election,
            directory_of=self._directory_of,
            directories=directories or {},
            shrinking_starts_an_epoch=self._shrinking_starts_an_epoch,
            **targets,
        )
        if record is not None:
            self._changed[topic.name, index] = partition, record
            self.records.append(record)
        return record

    def leave(
        self,
        partitions: Iterable[tuple[UUID, int]],
        broker: int,
        *,
        unclean: bool = False,
        failed_directories: Collection[UUID] = frozenset(),
    ) -> None:
        """Remove `broker` from the ISR of `partitions` and elect leaders where it led.

        `unclean`: it lost its latest records, or is removed for good, and also leaves the eligible leader replicas.
        Without these the last member of an ISR stays in it (C28), but RECOVERING, so that a loss is detected when it
        leads again (G47).
        """
        leaving = frozenset((broker,))

        def leave_one(topic: TopicImage, index: int) -> PartitionChangeRecord | None:
            partition = self.partition(topic, index)
            assert partition is not None, "the index contains only existing partitions"
            remaining = tuple(member for member in partition.isr if member != broker)
            targets: ChangeTargets = {"target_isr": remaining, "unclean_shutdown": broker if unclean else NO_LEADER}
            if unclean and not remaining and not self._elr_enabled:
                targets["recovery_state"] = LeaderRecoveryState.RECOVERING
            return self.change(topic, index, leaving=leaving, failed_directories=failed_directories, **targets)

        self._change_alike(partitions, leave_one)

    def elect(
        self,
        partitions: Iterable[tuple[UUID, int]],
        *,
        arriving: int = NO_LEADER,
        failed_directories: Collection[UUID] = frozenset(),
    ) -> None:
        """Elect a leader for each of `partitions` without one; `arriving` is being unfenced by this decision."""

        def elect_one(topic: TopicImage, index: int) -> PartitionChangeRecord | None:
            return self.change(topic, index, arriving=arriving, failed_directories=failed_directories)

        self._change_alike(partitions, elect_one)

    def _change_alike(
        self,
        partitions: Iterable[tuple[UUID, int]],
        change: Callable[[TopicImage, int], PartitionChangeRecord | None],
    ) -> None:
        """Change partitions for one cause. Equal ones of equally configured topics change in the same way, which is
        decided once: most partitions of a broker are in one of few states, and share their image."""
        known: dict[tuple[int, int], PartitionChangeRecord | None] = {}  # by identity, while the image keeps both
        topic: TopicImage | None = None
        rules: _TopicRules | None = None
        for topic_id, index in partitions:
            if topic is None or topic.id is not topic_id:
                found = self._state.image.topics_by_id.get(topic_id)
                if found is None:
                    continue  # deleted since the first step of this decision
                topic, rules = found, self._rules_of(found)
            key = id(topic.partitions[index]), id(rules)
            if (topic.name, index) in self._changed:
                change(topic, index)
            elif key in known:
                self.repeat(topic, index, known[key])
            else:
                known[key] = change(topic, index)

    def repeat(self, topic: TopicImage, index: int, record: PartitionChangeRecord | None) -> None:
        """Change a partition as one in the same state with the same rules was changed. Only if nothing has changed it
        before."""
        if record is not None:
            repeated = record.of_partition(topic.id, index)
            self._changed[topic.name, index] = topic.partitions[index], repeated
            self.records.append(repeated)

    def is_unchanged(self, topic: TopicImage, index: int) -> bool:
        """Whether this decision has not changed the partition so far."""
        return (topic.name, index) not in self._changed

    def rules_key(self, topic: TopicImage) -> int:
        """Equal for topics whose configs treat elections alike."""
        return id(self._rules_of(topic))

    def _rules_of(self, topic: TopicImage) -> _TopicRules:
        rules = self._rules.get(topic.name)
        if rules is None:
            unclean = self._state.unclean_election(topic.name)
            rules = _TopicRules(self._state.min_isr(topic.name), Election.UNCLEAN if unclean else Election.ONLINE)
            rules = self._rules[topic.name] = self._equal_rules.setdefault(rules, rules)
        return rules


def _moved(partition: PartitionImage, directories: Mapping[int, UUID]) -> PartitionImage:
    known = dict(zip(partition.replicas, partition.directories, strict=False))
    moved = (directories.get(replica) or known.get(replica, UNASSIGNED_DIRECTORY) for replica in partition.replicas)
    return partition._replace(directories=tuple(moved))
