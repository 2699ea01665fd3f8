"""Changes of topics and partitions from one image to the next.

Owns the meaning of topic and partition records. A changed topic gets a draft (a list of its partitions); everything
else is shared with the previous image. A record that does not fit is our bug (C10).

Rules: controller.md C9, C10, C25; recovery.md V1; since_4_0.md K21, K26 (ClearElrRecord).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from immutables import Map

from fenceline.errors import InternalError
from fenceline.metadata.changes import ChangedPartition, changed_partitions
from fenceline.metadata.image import MetadataImage, PartitionImage, TopicImage
from fenceline.metadata.partition_values import PartitionDecoder, partition_key, recovery_state
from fenceline.metadata.records import ClearElrRecord, PartitionChangeRecord, PartitionRecord, TopicRecord

_NO_LEADER_CHANGE: Final = -2
_NO_RECOVERY_CHANGE: Final = -1
_REMEMBERED: Final = 8192
_MISSING: Final = PartitionImage((), (), partition_epoch=-1)


class _TopicDraft:
    """Draft of a topic; `before` is the topic in the last image."""

    __slots__ = ("before", "has_gaps", "id", "id_bytes", "name", "partitions", "touched")

    def __init__(self, topic_id: UUID, name: str, before: TopicImage | None) -> None:
        self.id = topic_id
        self.id_bytes = topic_id.bytes
        self.name = name
        self.before = before
        self.partitions: list[PartitionImage] = list(before.partitions) if before is not None else []
        self.touched: set[int] = set()
        self.has_gaps = False

    def build(self) -> TopicImage:
        if self.has_gaps and _MISSING in self.partitions:
            raise InternalError(f"the metadata log lacks partition {self.partitions.index(_MISSING)} of {self.name!r}")
        return TopicImage(self.id, self.name, tuple(self.partitions))


class BuiltTopics(NamedTuple):
    """All topics after the delta, and the changes."""

    by_name: Map[str, TopicImage]
    by_id: Map[UUID, TopicImage]
    created: tuple[TopicImage, ...]
    deleted: tuple[TopicImage, ...]
    changed: tuple[ChangedPartition, ...]


class TopicsDelta:
    """Topic records replayed on top of an image. Raises InternalError for records that do not fit."""

    __slots__ = ("_changed", "_decoder", "_deleted", "_drafts", "_image", "_last_topic", "_names")

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._drafts: dict[UUID, _TopicDraft] = {}
        self._names: dict[str, UUID] = {}
        self._deleted: dict[UUID, TopicImage] = {}
        self._last_topic: _TopicDraft | None = None
        self._decoder = PartitionDecoder()
        self._changed: dict[tuple[int, int], tuple[PartitionImage, PartitionChangeRecord, PartitionImage]] = {}
        """By identity: a partition, its change, and the partition after it."""

    def _topic(self, topic_id: UUID) -> _TopicDraft:
        last = self._last_topic
        if last is not None and last.id == topic_id:
            return last
        draft = self._drafts.get(topic_id)
        if draft is None:
            before = None if topic_id in self._deleted else self._image.topics_by_id.get(topic_id)
            if before is None:
                raise InternalError(f"a metadata record names the unknown topic id {topic_id}")
            draft = self._drafts[topic_id] = _TopicDraft(topic_id, before.name, before)
        self._last_topic = draft
        return draft

    def create(self, record: TopicRecord) -> None:
        existing = self._names.get(record.name)
        if existing is None and record.name in self._image.topics_by_name:
            existing = self._image.topics_by_name[record.name].id
            if existing in self._deleted:
                existing = None
        if existing is not None:
            raise InternalError(f"topic {record.name!r} is created twice in the metadata log")
        draft = _TopicDraft(record.topic_id, record.name, None)
        self._drafts[record.topic_id] = self._last_topic = draft
        self._names[record.name] = record.topic_id

    def set_partition(self, record: PartitionRecord) -> None:
        self._place(self._topic(record.topic_id), record.partition_id, self._decoder.image_of(record))

    def set_partition_value(self, value: bytes) -> None:
        """The same from an encoded PartitionRecord; a snapshot consists mostly of these."""
        image = self._decoder.decode(value)
        index, id_bytes = partition_key(value)
        draft = self._last_topic
        if draft is None or draft.id_bytes != id_bytes:
            draft = self._topic(UUID(bytes=id_bytes))
        self._place(draft, index, image)

    def _place(self, draft: _TopicDraft, index: int, image: PartitionImage) -> None:
        partitions = draft.partitions
        if index == len(partitions):
            partitions.append(image)
        else:
            if index > len(partitions):
                partitions.extend([_MISSING] * (index + 1 - len(partitions)))
                draft.has_gaps = True
            partitions[index] = image
        draft.touched.add(index)

    def change_partition(self, record: PartitionChangeRecord) -> None:
        self._change(self._topic(record.topic_id), record.partition_id, self._decoder.change_of(record))

    def change_partition_value(self, value: bytes) -> None:
        """The same from an encoded PartitionChangeRecord: a broker that returns changes all its partitions."""
        change = self._decoder.decode_change(value)
        index, id_bytes = partition_key(value)
        draft = self._last_topic
        if draft is None or draft.id_bytes != id_bytes:
            draft = self._topic(UUID(bytes=id_bytes))
        self._change(draft, index, change)

    def _change(self, draft: _TopicDraft, index: int, change: PartitionChangeRecord) -> None:
        partitions = draft.partitions
        if not 0 <= index < len(partitions):
            raise InternalError(f"a metadata record changes the unknown partition {index} of topic {draft.name!r}")
        before = partitions[index]
        known = self._changed.get((id(before), id(change)))
        if known is None or known[0] is not before or known[1] is not change:
            after = self._decoder.share_image(changed_partition(before, change, self._decoder.share))
            if len(self._changed) >= _REMEMBERED:
                self._changed.clear()
            known = self._changed[id(before), id(change)] = before, change, after
        partitions[index] = known[2]
        draft.touched.add(index)

    def remove(self, topic_id: UUID) -> str:
        """Delete the topic with its partitions (C25); returns its name."""
        draft = self._topic(topic_id)
        del self._drafts[topic_id]
        self._last_topic = None
        if draft.before is not None:
            self._deleted[topic_id] = draft.before
        if self._names.get(draft.name) == topic_id:
            del self._names[draft.name]
        return draft.name

    def clear_elr(self, record: ClearElrRecord) -> None:
        """K26: "" means all topics. Partitions without eligible leader replicas are unchanged."""
        if record.topic_name:
            topic_id = self._names.get(record.topic_name)
            if topic_id is None:
                known = self._image.topics_by_name.get(record.topic_name)
                if known is None or known.id in self._deleted:
                    raise InternalError(f"ClearElrRecord names the unknown topic {record.topic_name!r}")
                topic_id = known.id
            ids: Iterable[UUID] = (topic_id,)
        else:
            ids = [*self._drafts, *(key for key in self._image.topics_by_id if key not in self._deleted)]
        for topic_id in ids:
            current = self._drafts.get(topic_id) or self._image.topics_by_id[topic_id]
            for index, partition in enumerate(current.partitions):
                if partition.elr or partition.last_known_elr:
                    draft = self._topic(topic_id)
                    draft.partitions[index] = partition._replace(
                        elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
                    )
                    draft.touched.add(index)

    def build(self) -> BuiltTopics:
        """The delta must not be used afterwards."""
        by_name, by_id = self._image.topics_by_name, self._image.topics_by_id
        created: list[TopicImage] = []
        changed: list[ChangedPartition] = []
        if self._drafts or self._deleted:
            names, ids = by_name.mutate(), by_id.mutate()
            for topic in self._deleted.values():
                del names[topic.name]
                del ids[topic.id]
            for draft in self._drafts.values():
                topic = draft.build()
                names[draft.name] = topic
                ids[draft.id] = topic
                if draft.before is None:
                    created.append(topic)
                else:
                    changed.extend(changed_partitions(topic, draft.before, sorted(draft.touched)))
            by_name, by_id = names.finish(), ids.finish()
        return BuiltTopics(by_name, by_id, tuple(created), tuple(self._deleted.values()), tuple(changed))


def _unchanged(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def changed_partition(
    old: PartitionImage,
    record: PartitionChangeRecord,
    share: Callable[[tuple[Any, ...]], tuple[Any, ...]] = _unchanged,
) -> PartitionImage:
    """C9: setting a leader, even the same one, starts a new leader epoch; the partition epoch always increases."""
    leads = record.leader != _NO_LEADER_CHANGE
    return PartitionImage(
        share(record.replicas) if record.replicas is not None else old.replicas,
        share(record.isr) if record.isr is not None else old.isr,
        record.leader if leads else old.leader,
        old.leader_epoch + 1 if leads else old.leader_epoch,
        old.partition_epoch + 1,
        old.leader_recovery_state
        if record.leader_recovery_state == _NO_RECOVERY_CHANGE
        else recovery_state(record.leader_recovery_state),
        share(record.directories) if record.directories is not None else old.directories,
        share(record.eligible_leader_replicas) if record.eligible_leader_replicas is not None else old.elr,
        share(record.last_known_elr) if record.last_known_elr is not None else old.last_known_elr,
        share(record.adding_replicas) if record.adding_replicas is not None else old.adding,
        share(record.removing_replicas) if record.removing_replicas is not None else old.removing,
    )
