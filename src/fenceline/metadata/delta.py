"""From one image to the next: records are replayed into a delta, the delta builds the image and says what changed.

Owns what each metadata record means. Never decides whether a record should have been written: a record that does not
fit the image (an unknown topic, another broker epoch) is our bug and stops the node (`controller.md C10`).

How it works: nothing is copied until it changes. A topic that a record touches gets a draft (a list of its partitions),
everything else is shared with the image before; the cost of a delta is the cost of its records.

Rules: controller.md C5, C9, C10; since_4_0.md K1 (kraft.version is not kept here), K21, K26 (ClearElrRecord).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar, cast
from uuid import UUID

from immutables import Map

from fenceline.errors import InternalError
from fenceline.metadata.features import KRAFT_VERSION, Levels
from fenceline.metadata.image import (
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    ControllerImage,
    Endpoint,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    QuotaEntity,
    TopicImage,
)
from fenceline.metadata.records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    ZkMigrationStateRecord,
    decode_record,
)

K = TypeVar("K")
V = TypeVar("V")

_RECOVERY_STATES: Final = (LeaderRecoveryState.RECOVERED, LeaderRecoveryState.RECOVERING)
_NO_LEADER_CHANGE: Final = -2
_NO_RECOVERY_CHANGE: Final = -1
_SHARED_LIMIT: Final = 8192
_MISSING: Final = PartitionImage((), (), partition_epoch=-1)


@dataclass(frozen=True, slots=True)
class ChangedPartition:
    """A partition of a topic that existed before. `before` is None for a partition that is new in it."""

    topic: str
    topic_id: UUID
    index: int
    before: PartitionImage | None
    after: PartitionImage


@dataclass(frozen=True, slots=True)
class Delta:
    """What differs between two images. Partitions of created and deleted topics are in the topics only."""

    created_topics: tuple[TopicImage, ...] = ()
    deleted_topics: tuple[TopicImage, ...] = ()
    changed_partitions: tuple[ChangedPartition, ...] = ()
    changed_configs: tuple[ConfigResource, ...] = ()
    changed_brokers: tuple[int, ...] = ()
    """Registered, re-registered, fenced, unfenced, shutting down or gone."""
    changed_controllers: tuple[int, ...] = ()
    changed_features: tuple[str, ...] = ()
    producer_ids_changed: bool = False
    security_changed: bool = False
    """Quotas, ACLs, SCRAM credentials or delegation tokens."""

    @property
    def is_empty(self) -> bool:
        return self == _EMPTY_DELTA


_EMPTY_DELTA: Final = Delta()


class _TopicDraft:
    """A topic in the making; `before` is what the last image held."""

    __slots__ = ("before", "has_gaps", "id", "name", "partitions", "touched")

    def __init__(self, topic_id: UUID, name: str, before: TopicImage | None) -> None:
        self.id = topic_id
        self.name = name
        self.before = before
        self.partitions: list[PartitionImage] = list(before.partitions) if before is not None else []
        self.touched: set[int] = set()
        self.has_gaps = False

    def build(self) -> TopicImage:
        if self.has_gaps and _MISSING in self.partitions:
            raise InternalError(f"the metadata log lacks partition {self.partitions.index(_MISSING)} of {self.name!r}")
        return TopicImage(self.id, self.name, tuple(self.partitions))


class _MapDraft(dict[K, "V | None"]):
    """Changes to a persistent map: a value, or None for gone."""

    __slots__ = ("_before",)

    def __init__(self, before: Map[K, V]) -> None:
        super().__init__()
        self._before = before

    def current(self, key: K) -> V | None:
        return self[key] if key in self else self._before.get(key)

    def build(self) -> Map[K, V]:
        if not self:
            return self._before
        mutation = self._before.mutate()
        for key, value in self.items():
            if value is not None:
                mutation[key] = value
            elif key in mutation:
                del mutation[key]
        return mutation.finish()

    def changed(self) -> tuple[K, ...]:
        return tuple(key for key, value in self.items() if value != self._before.get(key))


class MetadataDelta:
    """Records replayed on top of an image. Used once: replay, then `build`."""

    __slots__ = (
        "_acls",
        "_brokers",
        "_configs",
        "_controllers",
        "_deleted",
        "_features",
        "_image",
        "_last_topic",
        "_names",
        "_next_producer_id",
        "_quotas",
        "_scram",
        "_shared",
        "_tokens",
        "_topics",
    )

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._features: _MapDraft[str, int] = _MapDraft(image.features)
        self._brokers: _MapDraft[int, BrokerImage] = _MapDraft(image.brokers)
        self._controllers: _MapDraft[int, ControllerImage] = _MapDraft(image.controllers)
        self._configs: _MapDraft[ConfigResource, Map[str, str]] = _MapDraft(image.configs)
        self._quotas: _MapDraft[QuotaEntity, Map[str, float]] = _MapDraft(image.client_quotas)
        self._acls: _MapDraft[UUID, AccessControlEntryRecord] = _MapDraft(image.acls)
        self._scram: _MapDraft[tuple[str, int], UserScramCredentialRecord] = _MapDraft(image.scram)
        self._tokens: _MapDraft[str, DelegationTokenRecord] = _MapDraft(image.delegation_tokens)
        self._next_producer_id = image.next_producer_id
        self._topics: dict[UUID, _TopicDraft] = {}
        self._names: dict[str, UUID] = {}
        self._deleted: dict[UUID, TopicImage] = {}
        self._last_topic: _TopicDraft | None = None
        self._shared: dict[Any, Any] = {}

    # -- replay ------------------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record. Raises InternalError when it does not fit what is there (C10)."""
        _REPLAY[type(record)](self, record)

    def replay_value(self, value: bytes) -> None:
        """Apply a record from its encoded form (`formats.md F6`)."""
        record = decode_record(value)
        _REPLAY[type(record)](self, record)

    def _share(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same tuple object for equal short tuples: most partitions have few different ones."""
        shared = self._shared
        if len(shared) > _SHARED_LIMIT:
            shared.clear()
        return cast("tuple[Any, ...]", shared.setdefault(values, values)) if values else ()

    def _topic(self, topic_id: UUID) -> _TopicDraft:
        last = self._last_topic
        if last is not None and last.id == topic_id:
            return last
        draft = self._topics.get(topic_id)
        if draft is None:
            before = None if topic_id in self._deleted else self._image.topics_by_id.get(topic_id)
            if before is None:
                raise InternalError(f"a metadata record names the unknown topic id {topic_id}")
            draft = self._topics[topic_id] = _TopicDraft(topic_id, before.name, before)
        self._last_topic = draft
        return draft

    def _topic_record(self, record: TopicRecord) -> None:
        existing = self._names.get(record.name)
        if existing is None and record.name in self._image.topics_by_name:
            existing = self._image.topics_by_name[record.name].id
            if existing in self._deleted:
                existing = None
        if existing is not None:
            raise InternalError(f"topic {record.name!r} is created twice in the metadata log")
        draft = _TopicDraft(record.topic_id, record.name, None)
        self._topics[record.topic_id] = self._last_topic = draft
        self._names[record.name] = record.topic_id

    def _partition_record(self, record: PartitionRecord) -> None:
        draft = self._topic(record.topic_id)
        share = self._share
        replicas = share(record.replicas)
        image = PartitionImage(
            replicas,
            replicas if record.isr == replicas else share(record.isr),
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            _RECOVERY_STATES[record.leader_recovery_state],
            share(record.directories),
            share(record.eligible_leader_replicas or ()),
            share(record.last_known_elr or ()),
            share(record.adding_replicas),
            share(record.removing_replicas),
        )
        index = record.partition_id
        partitions = draft.partitions
        if index == len(partitions):
            partitions.append(image)
        else:
            if index > len(partitions):
                partitions.extend([_MISSING] * (index + 1 - len(partitions)))
                draft.has_gaps = True
            partitions[index] = image
        draft.touched.add(index)

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        draft = self._topic(record.topic_id)
        index = record.partition_id
        if not 0 <= index < len(draft.partitions):
            raise InternalError(f"a change names partition {index} of topic {draft.name!r}, which has none such")
        draft.partitions[index] = self._changed(draft.partitions[index], record)
        draft.touched.add(index)

    def _changed(self, old: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
        """C9: a given leader, even the same, means a new leader epoch; the partition epoch always grows."""
        share = self._share
        leads = record.leader != _NO_LEADER_CHANGE
        return PartitionImage(
            share(record.replicas) if record.replicas is not None else old.replicas,
            share(record.isr) if record.isr is not None else old.isr,
            record.leader if leads else old.leader,
            old.leader_epoch + 1 if leads else old.leader_epoch,
            old.partition_epoch + 1,
            old.leader_recovery_state
            if record.leader_recovery_state == _NO_RECOVERY_CHANGE
            else _RECOVERY_STATES[record.leader_recovery_state],
            share(record.directories) if record.directories is not None else old.directories,
            share(record.eligible_leader_replicas) if record.eligible_leader_replicas is not None else old.elr,
            share(record.last_known_elr) if record.last_known_elr is not None else old.last_known_elr,
            share(record.adding_replicas) if record.adding_replicas is not None else old.adding,
            share(record.removing_replicas) if record.removing_replicas is not None else old.removing,
        )

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        """Drops the topic, its partitions and its configs (C25)."""
        draft = self._topic(record.topic_id)
        del self._topics[record.topic_id]
        self._last_topic = None
        if draft.before is not None:
            self._deleted[record.topic_id] = draft.before
        if self._names.get(draft.name) == record.topic_id:
            del self._names[draft.name]
        resource = ConfigResource(ConfigResourceType.TOPIC, draft.name)
        if self._configs.current(resource) is not None:
            self._configs[resource] = None

    def _clear_elr(self, record: ClearElrRecord) -> None:
        """K26: "" means all topics. Partitions that keep no eligible leaders stay as they are."""
        if record.topic_name:
            topic_id = self._names.get(record.topic_name)
            if topic_id is None:
                known = self._image.topics_by_name.get(record.topic_name)
                if known is None or known.id in self._deleted:
                    raise InternalError(f"ClearElrRecord names the unknown topic {record.topic_name!r}")
                topic_id = known.id
            ids: Iterable[UUID] = (topic_id,)
        else:
            ids = [*self._topics, *(key for key in self._image.topics_by_id if key not in self._deleted)]
        for topic_id in ids:
            current = self._topics.get(topic_id) or self._image.topics_by_id[topic_id]
            for index, partition in enumerate(current.partitions):
                if partition.elr or partition.last_known_elr:
                    draft = self._topic(topic_id)
                    draft.partitions[index] = partition._replace(
                        elr=(), last_known_elr=(), partition_epoch=partition.partition_epoch + 1
                    )
                    draft.touched.add(index)

    def _config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(ConfigResourceType(record.resource_type), record.resource_name)
        entries = self._configs.current(resource) or Map()
        if record.value is not None:
            entries = entries.set(record.name, record.value)
        elif record.name in entries:
            entries = entries.delete(record.name)
        self._configs[resource] = entries or None

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        self._brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.broker_epoch,
            record.incarnation_id,
            tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            Map({f.name: Levels(f.min_supported_version, f.max_supported_version) for f in record.features}),
            record.rack,
            record.fenced,
            record.in_controlled_shutdown,
            record.log_dirs,
            record.cordoned_log_dirs,
        )

    def _broker(self, broker_id: int, epoch: int) -> BrokerImage:
        broker = self._brokers.current(broker_id)
        if broker is None or broker.epoch != epoch:
            raise InternalError(
                f"a metadata record names broker {broker_id} with epoch {epoch}, which is not registered"
            )
        return broker

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._broker(record.broker_id, record.broker_epoch)
        self._brokers[record.broker_id] = None

    def _fence(self, record: FenceBrokerRecord) -> None:
        self._brokers[record.id] = _with(self._broker(record.id, record.epoch), fenced=True)

    def _unfence(self, record: UnfenceBrokerRecord) -> None:
        self._brokers[record.id] = _with(self._broker(record.id, record.epoch), fenced=False)

    def _registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker(record.broker_id, record.broker_epoch)
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["fenced"] = record.fenced == 1
        if record.in_controlled_shutdown:
            changes["in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = record.log_dirs
        if record.cordoned_log_dirs is not None:
            changes["cordoned_log_dirs"] = record.cordoned_log_dirs
        self._brokers[record.broker_id] = _with(broker, **changes)

    def _register_controller(self, record: RegisterControllerRecord) -> None:
        self._controllers[record.controller_id] = ControllerImage(
            record.controller_id,
            record.incarnation_id,
            record.zk_migration_ready,
            tuple(Endpoint(e.name, e.host, e.port, e.security_protocol) for e in record.end_points),
            Map({f.name: Levels(f.min_supported_version, f.max_supported_version) for f in record.features}),
        )

    def _feature_level(self, record: FeatureLevelRecord) -> None:
        if record.name != KRAFT_VERSION:
            self._features[record.name] = record.feature_level or None

    def _producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id <= self._next_producer_id and self._next_producer_id:
            raise InternalError(
                f"the next producer id goes from {self._next_producer_id} back to {record.next_producer_id}"
            )
        self._next_producer_id = record.next_producer_id

    def _client_quota(self, record: ClientQuotaRecord) -> None:
        entity: QuotaEntity = tuple(sorted((e.entity_type, e.entity_name) for e in record.entity))
        quotas = self._quotas.current(entity) or Map()
        if not record.remove:
            quotas = quotas.set(record.key, record.value)
        elif record.key in quotas:
            quotas = quotas.delete(record.key)
        self._quotas[entity] = quotas or None

    def _acl(self, record: AccessControlEntryRecord) -> None:
        self._acls[record.id] = record

    def _remove_acl(self, record: RemoveAccessControlEntryRecord) -> None:
        if self._acls.current(record.id) is None:
            raise InternalError(f"the unknown ACL {record.id} is removed")
        self._acls[record.id] = None

    def _scram_credential(self, record: UserScramCredentialRecord) -> None:
        self._scram[record.name, record.mechanism] = record

    def _remove_scram(self, record: RemoveUserScramCredentialRecord) -> None:
        self._scram[record.name, record.mechanism] = None

    def _token(self, record: DelegationTokenRecord) -> None:
        self._tokens[record.token_id] = record

    def _remove_token(self, record: RemoveDelegationTokenRecord) -> None:
        self._tokens[record.token_id] = None

    def _nothing(self, record: MetadataRecord) -> None:
        """Says nothing about the state (transactions are the reader's business, C8)."""

    # -- result ------------------------------------------------------------------------------------------------------

    def build(self, offset: int, epoch: int) -> tuple[MetadataImage, Delta]:
        """The image after the record at `offset`, and what changed. The delta must not be used afterwards."""
        image = self._image
        by_name, by_id = image.topics_by_name, image.topics_by_id
        created: list[TopicImage] = []
        changed: list[ChangedPartition] = []
        if self._topics or self._deleted:
            names, ids = by_name.mutate(), by_id.mutate()
            for topic in self._deleted.values():
                del names[topic.name]
                del ids[topic.id]
            for draft in self._topics.values():
                topic = draft.build()
                names[draft.name] = topic
                ids[draft.id] = topic
                if draft.before is None:
                    created.append(topic)
                else:
                    changed.extend(_changed_partitions(topic, draft.before, sorted(draft.touched)))
            by_name, by_id = names.finish(), ids.finish()
        after = MetadataImage(
            offset=offset,
            epoch=epoch,
            features=self._features.build(),
            topics_by_name=by_name,
            topics_by_id=by_id,
            brokers=self._brokers.build(),
            controllers=self._controllers.build(),
            configs=self._configs.build(),
            next_producer_id=self._next_producer_id,
            client_quotas=self._quotas.build(),
            acls=self._acls.build(),
            scram=self._scram.build(),
            delegation_tokens=self._tokens.build(),
        )
        delta = Delta(
            tuple(created),
            tuple(self._deleted.values()),
            tuple(changed),
            self._configs.changed(),
            self._brokers.changed(),
            self._controllers.changed(),
            self._features.changed(),
            self._next_producer_id != image.next_producer_id,
            bool(self._quotas or self._acls or self._scram or self._tokens),
        )
        return after, delta


def apply(
    image: MetadataImage, records: Iterable[MetadataRecord], end_offset: int, epoch: int
) -> tuple[MetadataImage, Delta]:
    """Replay `records`, the last of which lies at `end_offset`, on top of `image`."""
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.build(end_offset, epoch)


def difference(before: MetadataImage, after: MetadataImage) -> Delta:
    """What changed between two images that need not follow each other, as after loading a snapshot (N41)."""
    if before.topics_by_id is after.topics_by_id:
        created: list[TopicImage] = []
        deleted: list[TopicImage] = []
        changed: list[ChangedPartition] = []
    else:
        old, new = before.topics_by_id, after.topics_by_id
        created = [topic for key, topic in new.items() if key not in old]
        deleted = [topic for key, topic in old.items() if key not in new]
        changed = []
        for key, topic in new.items():
            previous = old.get(key)
            if previous is not None and previous is not topic:
                changed.extend(_changed_partitions(topic, previous, range(len(topic.partitions))))
    return Delta(
        tuple(created),
        tuple(deleted),
        tuple(changed),
        _differing(before.configs, after.configs),
        _differing(before.brokers, after.brokers),
        _differing(before.controllers, after.controllers),
        _differing(before.features, after.features),
        before.next_producer_id != after.next_producer_id,
        any(
            getattr(before, name) != getattr(after, name)
            for name in ("client_quotas", "acls", "scram", "delegation_tokens")
        ),
    )


def _changed_partitions(topic: TopicImage, before: TopicImage, indexes: Iterable[int]) -> Iterable[ChangedPartition]:
    known = len(before.partitions)
    for index in indexes:
        old = before.partitions[index] if index < known else None
        new = topic.partitions[index]
        if old != new:
            yield ChangedPartition(topic.name, topic.id, index, old, new)


def _differing(before: Map[K, V], after: Map[K, V]) -> tuple[K, ...]:
    if before is after:
        return ()
    gone = [key for key in before if key not in after]
    return tuple(gone + [key for key, value in after.items() if before.get(key) != value])


_BROKER_FIELDS: Final = tuple(field.name for field in fields(BrokerImage))


def _with(broker: BrokerImage, **changes: Any) -> BrokerImage:
    return BrokerImage(*(changes.get(name, getattr(broker, name)) for name in _BROKER_FIELDS))


_REPLAY: Final[Mapping[type[MetadataRecord], Callable[[MetadataDelta, Any], None]]] = {
    RegisterBrokerRecord: MetadataDelta._register_broker,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    TopicRecord: MetadataDelta._topic_record,
    PartitionRecord: MetadataDelta._partition_record,
    ConfigRecord: MetadataDelta._config,
    PartitionChangeRecord: MetadataDelta._partition_change,
    FenceBrokerRecord: MetadataDelta._fence,
    UnfenceBrokerRecord: MetadataDelta._unfence,
    RemoveTopicRecord: MetadataDelta._remove_topic,
    DelegationTokenRecord: MetadataDelta._token,
    UserScramCredentialRecord: MetadataDelta._scram_credential,
    FeatureLevelRecord: MetadataDelta._feature_level,
    ClientQuotaRecord: MetadataDelta._client_quota,
    ProducerIdsRecord: MetadataDelta._producer_ids,
    BrokerRegistrationChangeRecord: MetadataDelta._registration_change,
    AccessControlEntryRecord: MetadataDelta._acl,
    RemoveAccessControlEntryRecord: MetadataDelta._remove_acl,
    NoOpRecord: MetadataDelta._nothing,
    ZkMigrationStateRecord: MetadataDelta._nothing,
    RemoveUserScramCredentialRecord: MetadataDelta._remove_scram,
    BeginTransactionRecord: MetadataDelta._nothing,
    EndTransactionRecord: MetadataDelta._nothing,
    AbortTransactionRecord: MetadataDelta._nothing,
    RemoveDelegationTokenRecord: MetadataDelta._remove_token,
    RegisterControllerRecord: MetadataDelta._register_controller,
    ClearElrRecord: MetadataDelta._clear_elr,
}
