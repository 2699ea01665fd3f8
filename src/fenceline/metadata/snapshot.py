"""Conversion of an image to records and back: the content of a snapshot of the metadata log.

Owns the order and completeness of those records. `node.metadata.batches` owns the file: batches, header and footer.

Rules: snapshots.md N10: a complete state, no deletes, no deltas, metadata.version first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fenceline.metadata.delta import MetadataDelta
from fenceline.metadata.features import METADATA_VERSION, Levels
from fenceline.metadata.image import EMPTY_IMAGE, BrokerImage, ControllerImage, MetadataImage
from fenceline.metadata.node_records import (
    BrokerEndpoint,
    BrokerFeature,
    ControllerEndpoint,
    ControllerFeature,
    RegisterBrokerRecord,
    RegisterControllerRecord,
)
from fenceline.metadata.partition_values import PartitionEncoder, partition_record
from fenceline.metadata.records import (
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    ProducerIdsRecord,
    TopicRecord,
    encode_record,
)
from fenceline.metadata.security_records import ClientQuotaRecord, QuotaEntityPart

RECORDS_PER_BATCH: Final = 1024
"""N6."""


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Records that build `image` from the empty image, in Kafka's order of types; within a type sorted by key."""
    yield from _before_topics(image)
    for topic in sorted(image.topics_by_id.values(), key=lambda one: one.name):
        yield TopicRecord(topic.name, topic.id)
        for index, partition in enumerate(topic.partitions):
            yield partition_record(topic.id, index, partition)
    yield from _after_topics(image)


def image_values(image: MetadataImage) -> Iterator[bytes]:
    """The same records encoded at the image's metadata.version, generated lazily.

    Topics come in the order of the map: sorting many of them would block the event loop.
    """
    version = image.metadata_version
    for record in _before_topics(image):
        yield encode_record(record, version)
    encode = PartitionEncoder(version).encode
    for topic in image.topics_by_id.values():
        yield encode_record(TopicRecord(topic.name, topic.id), version)
        topic_id, id_bytes = topic.id, topic.id.bytes
        for index, partition in enumerate(topic.partitions):
            yield encode(topic_id, id_bytes, index, partition)
    for record in _after_topics(image):
        yield encode_record(record, version)


def image_of(records: Iterable[MetadataRecord], offset: int, epoch: int) -> MetadataImage:
    """Inverse of `image_records`. Raises InternalError for inconsistent records."""
    delta = MetadataDelta(EMPTY_IMAGE)
    for record in records:
        delta.replay(record)
    image, _ = delta.build(offset, epoch)
    return image


def _before_topics(image: MetadataImage) -> Iterator[MetadataRecord]:
    yield from _features(image)
    for broker_id in sorted(image.brokers):
        yield _broker(image.brokers[broker_id])
    for controller_id in sorted(image.controllers):
        yield _controller(image.controllers[controller_id])


def _after_topics(image: MetadataImage) -> Iterator[MetadataRecord]:
    for resource in sorted(image.configs):
        for name, value in sorted(image.configs[resource].items()):
            yield ConfigRecord(resource.type, resource.name, name, value)
    for entity, quotas in image.client_quotas.items():
        for key, quota in quotas.items():
            yield ClientQuotaRecord(tuple(QuotaEntityPart(kind, name) for kind, name in entity), key, quota, False)
    if image.next_producer_id:
        yield ProducerIdsRecord(-1, -1, image.next_producer_id)
    yield from image.acls.values()
    yield from image.scram.values()
    yield from image.delegation_tokens.values()


def _features(image: MetadataImage) -> Iterator[MetadataRecord]:
    if METADATA_VERSION in image.features:
        yield FeatureLevelRecord(METADATA_VERSION, image.features[METADATA_VERSION])
    for name in sorted(image.features):
        if name != METADATA_VERSION:
            yield FeatureLevelRecord(name, image.features[name])


def _broker(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        end_points=tuple(BrokerEndpoint(*endpoint) for endpoint in broker.endpoints),
        features=tuple(BrokerFeature(name, *levels) for name, levels in _sorted(broker.features.items())),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
        cordoned_log_dirs=broker.cordoned_log_dirs,
    )


def _controller(controller: ControllerImage) -> RegisterControllerRecord:
    return RegisterControllerRecord(
        controller_id=controller.id,
        incarnation_id=controller.incarnation_id,
        zk_migration_ready=controller.zk_migration_ready,
        end_points=tuple(ControllerEndpoint(*endpoint) for endpoint in controller.endpoints),
        features=tuple(ControllerFeature(name, *levels) for name, levels in _sorted(controller.features.items())),
    )


def _sorted(features: Iterable[tuple[str, Levels]]) -> list[tuple[str, Levels]]:
    return sorted(features)
