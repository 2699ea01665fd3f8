"""From one image to the next: records are replayed into a delta, which builds the new image and the list of changes.

Owns the meaning of each metadata record (for topics and partitions: `topics_delta`). Never decides whether a record
should have been written: a record that does not fit the image (an unknown topic, another broker epoch) is our bug and
stops the node (`controller.md C10`).

How it works: nothing is copied until it changes; the cost of a delta is the cost of its records.

Rules: controller.md C5, C10; since_4_0.md K1 (kraft.version is not kept here).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any, Final
from uuid import UUID

from immutables import Map

from fenceline.errors import InternalError
from fenceline.metadata.changes import Delta
from fenceline.metadata.drafts import MapDraft
from fenceline.metadata.features import KRAFT_VERSION, Levels, check_known
from fenceline.metadata.image import (
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    ControllerImage,
    Endpoint,
    MetadataImage,
    QuotaEntity,
)
from fenceline.metadata.node_records import (
    BrokerRegistrationChangeRecord,
    FenceBrokerRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from fenceline.metadata.partition_values import CHANGE_PREFIX, PARTITION_PREFIX
from fenceline.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    ClearElrRecord,
    ConfigRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnreadableRecord,
    ZkMigrationStateRecord,
    decode_record,
)
from fenceline.metadata.security_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    UserScramCredentialRecord,
)
from fenceline.metadata.topics_delta import TopicsDelta
from fenceline.wire.errors import MalformedRequest


class MetadataDelta:
    """Records replayed on top of an image. Used once: `replay`, then `build`."""

    __slots__ = (
        "_acls",
        "_brokers",
        "_configs",
        "_controllers",
        "_features",
        "_image",
        "_next_producer_id",
        "_quotas",
        "_scram",
        "_tokens",
        "_topics",
    )

    def __init__(self, image: MetadataImage) -> None:
        self._image = image
        self._features: MapDraft[str, int] = MapDraft(image.features)
        self._brokers: MapDraft[int, BrokerImage] = MapDraft(image.brokers)
        self._controllers: MapDraft[int, ControllerImage] = MapDraft(image.controllers)
        self._configs: MapDraft[ConfigResource, Map[str, str]] = MapDraft(image.configs)
        self._quotas: MapDraft[QuotaEntity, Map[str, float]] = MapDraft(image.client_quotas)
        self._acls: MapDraft[UUID, AccessControlEntryRecord] = MapDraft(image.acls)
        self._scram: MapDraft[tuple[str, int], UserScramCredentialRecord] = MapDraft(image.scram)
        self._tokens: MapDraft[str, DelegationTokenRecord] = MapDraft(image.delegation_tokens)
        self._next_producer_id = image.next_producer_id
        self._topics = TopicsDelta(image)

    # -- replay ------------------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record. Raises InternalError if it does not fit the image (C10)."""
        of_topics = _TOPIC_REPLAY.get(type(record))
        if of_topics is not None:
            of_topics(self._topics, record)
        else:
            _REPLAY[type(record)](self, record)

    def replay_value(self, value: bytes) -> None:
        """Apply an encoded record (`formats.md F6`) on a running node: raises OperatorError for a record that only a
        newer release knows."""
        try:
            prefix = value[:2]
            if prefix == PARTITION_PREFIX:
                self._topics.set_partition_value(value)
                return
            if prefix == CHANGE_PREFIX:
                self._topics.change_partition_value(value)
                return
            record = decode_record(value)
        except (MalformedRequest, struct.error, LookupError) as error:
            raise UnreadableRecord(value, str(error)) from error
        if type(record) is FeatureLevelRecord:
            check_known(record.name, record.feature_level)
        self.replay(record)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        """Also removes its configs (C25)."""
        resource = ConfigResource(ConfigResourceType.TOPIC, self._topics.remove(record.topic_id))
        if self._configs.current(resource) is not None:
            self._configs[resource] = None

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
                f"the next producer id decreases from {self._next_producer_id} to {record.next_producer_id}"
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
            raise InternalError(f"a metadata record removes the unknown ACL {record.id}")
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
        """A record without effect on the image (the reader handles transactions, C8)."""

    # -- result ------------------------------------------------------------------------------------------------------

    def build(self, offset: int, epoch: int) -> tuple[MetadataImage, Delta]:
        """The image after the record at `offset`, and the changes. The delta must not be used afterwards."""
        topics = self._topics.build()
        after = MetadataImage(
            offset=offset,
            epoch=epoch,
            features=self._features.build(),
            topics_by_name=topics.by_name,
            topics_by_id=topics.by_id,
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
            topics.created,
            topics.deleted,
            topics.changed,
            self._configs.changed(),
            self._brokers.changed(),
            self._controllers.changed(),
            self._features.changed(),
            self._next_producer_id != self._image.next_producer_id,
            self._acls.changed(),
            self._quotas.changed(),
            self._scram.changed(),
            self._tokens.changed(),
        )
        return after, delta


def apply(
    image: MetadataImage, records: Iterable[MetadataRecord], end_offset: int, epoch: int
) -> tuple[MetadataImage, Delta]:
    """Replay `records` on top of `image`; the last one has the offset `end_offset`."""
    delta = MetadataDelta(image)
    for record in records:
        delta.replay(record)
    return delta.build(end_offset, epoch)


_BROKER_FIELDS: Final = tuple(field.name for field in fields(BrokerImage))


def _with(broker: BrokerImage, **changes: Any) -> BrokerImage:
    return BrokerImage(*(changes.get(name, getattr(broker, name)) for name in _BROKER_FIELDS))


_REPLAY: Final[Mapping[type[MetadataRecord], Callable[[MetadataDelta, Any], None]]] = {
    RegisterBrokerRecord: MetadataDelta._register_broker,
    UnregisterBrokerRecord: MetadataDelta._unregister_broker,
    ConfigRecord: MetadataDelta._config,
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
}

_TOPIC_REPLAY: Final[Mapping[type[MetadataRecord], Callable[[TopicsDelta, Any], None]]] = {
    TopicRecord: TopicsDelta.create,
    PartitionRecord: TopicsDelta.set_partition,
    PartitionChangeRecord: TopicsDelta.change_partition,
    ClearElrRecord: TopicsDelta.clear_elr,
}
