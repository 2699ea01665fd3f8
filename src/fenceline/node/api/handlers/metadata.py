"""Metadata v0-13 with automatic creation of topics.

Owns the selection of topics in a response, also by the rights of the sender. `metadata_encoding` encodes responses.

A topic that is created by a request is in its response, whereas Kafka returns UNKNOWN_TOPIC_OR_PARTITION and lets the
client retry. If creation fails, the response is Kafka's, error 3.

Rules: KIP-516 (ids from v12; if one topic has an id, names are ignored), KIP-4, KIP-430; since_4_0.md K5, K35.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from fenceline.controller.topic_names import name_fault
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, METADATA_TOPIC, ZERO_UUID
from fenceline.metadata.image import MetadataImage, TopicImage
from fenceline.node.api.handlers.metadata_encoding import (
    CLUSTER_OPERATIONS,
    OPERATIONS_NOT_ASKED,
    TOPIC_OPERATIONS,
    MetadataEncoder,
    TopicError,
    is_internal,
)
from fenceline.node.api.permissions.checks import split
from fenceline.node.api.permissions.cluster import cluster_operations as cluster_operations_of
from fenceline.node.context import Api, NodeView, RequestContext
from fenceline.node.replication.absent_brokers import NO_ABSENT, Absent
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import request_field

if TYPE_CHECKING:
    from fenceline.security.rights import RequestRights
    from fenceline.wire.requests import MetadataRequest, MetadataRequestTopic

_IDS_SINCE: Final = 12
_AUTO_CREATION_FLAG_SINCE: Final = 4
_KEEP_FROM_TOPICS: Final = 64
"""Responses with at least this many topics are cached."""


class _Wanted(NamedTuple):
    """The requested topics, without repetitions; both None means all topics."""

    names: tuple[str, ...] | None
    ids: tuple[UUID, ...] | None


class _Found(NamedTuple):
    topics: Sequence[TopicImage]
    unknown_ids: tuple[UUID, ...] = ()
    failed: tuple[tuple[str, ErrorCode], ...] = ()


class _Denied(NamedTuple):
    """Topics that the sender may not see or create."""

    names: tuple[str, ...] = ()
    ids: tuple[UUID, ...] = ()


class MetadataHandler:
    """Metadata, with the encoded responses that are still valid."""

    def __init__(
        self, node: NodeView, absent: Callable[[], Absent], auto_create: Callable[[Sequence[str]], Awaitable[object]]
    ) -> None:
        """`absent`: brokers for which responses differ from the image."""
        self._node = node
        self._absent = absent
        self._auto_create = auto_create
        self._encoders: dict[tuple[int, str, bool], MetadataEncoder] = {}
        """By version, listener, and whether absent brokers are considered."""

    def handle(self, context: RequestContext, request: MetadataRequest) -> bytes | Awaitable[bytes]:
        """Answer from the image; wait only if topics must be created first."""
        encoder = self._encoder_for(context, request)
        wanted = _wanted(context.api_version, request.topics)
        if isinstance(wanted, tuple) and not isinstance(wanted, _Wanted):
            return encoder.refusal(wanted)
        missing = _to_create(self._node, context.api_version, request, wanted)
        rights = context.rights
        denied = _Denied()
        if rights is not None:
            wanted, missing, denied = _permitted(rights, self._node.image, wanted, missing)
        if not missing:
            return _answer(self._node, encoder, request, wanted, rights, denied)

        async def create_first() -> bytes:
            await self._auto_create(missing)
            return _answer(self._node, self._encoder_for(context, request), request, wanted, rights, denied)

        return create_first()

    def _encoder_for(self, context: RequestContext, request: MetadataRequest) -> MetadataEncoder:
        """The encoder for a request. A request that names topics gets the absent brokers considered; one for all
        topics, or none, gets the cluster as the metadata has it."""
        version, listener = context.api_version, context.listener
        absent = self._absent()
        if absent is NO_ABSENT:
            self._encoders.pop((version, listener, True), None)
        elif not request.topics:
            absent = NO_ABSENT
        key = (version, listener, absent is not NO_ABSENT)
        encoder = self._encoders.get(key)
        if encoder is None:
            encoder = self._encoders[key] = MetadataEncoder(version, listener, self._node.node_id)
        encoder.use_image(self._node.image, absent)
        return encoder


def _wanted(version: int, topics: Sequence[MetadataRequestTopic] | None) -> _Wanted | tuple[TopicError, ...]:
    """The requested topics, or the errors of an invalid request."""
    if topics is None or (version == 0 and not topics):
        return _Wanted(None, None)
    ids = [request_field(topic, "topic_id", None) for topic in topics]
    known_ids = tuple(dict.fromkeys(each for each in ids if each is not None))
    wrong: ErrorCode | None = None
    if version < _IDS_SINCE and known_ids:
        wrong = ErrorCode.INVALID_REQUEST
    elif any(topic.name is None and each is None for topic, each in zip(topics, ids, strict=True)):
        wrong = ErrorCode.UNKNOWN_SERVER_ERROR
    if wrong is not None:
        return tuple(
            TopicError(wrong, topic.name or "", each or ZERO_UUID) for topic, each in zip(topics, ids, strict=True)
        )
    if known_ids:
        return _Wanted(None, known_ids)
    return _Wanted(tuple(dict.fromkeys(topic.name for topic in topics if topic.name is not None)), None)


def _to_create(node: NodeView, version: int, request: MetadataRequest, wanted: _Wanted) -> tuple[str, ...]:
    if wanted.names is None:
        return ()
    known = node.image.topics_by_name
    missing = tuple(name for name in wanted.names if name not in known)
    if not missing or not node.config.get_bool("auto.create.topics.enable"):
        return ()
    if version >= _AUTO_CREATION_FLAG_SINCE and not request.allow_auto_topic_creation:
        return ()
    return tuple(name for name in missing if _may_be_created(name))


def _may_be_created(name: str) -> bool:
    if name == METADATA_TOPIC or name_fault(name) is not None:
        return False
        # Internal topics have their own settings, and are created by their coordinator.
    return name == CONSUMER_OFFSETS_TOPIC or not is_internal(name)


def _permitted(
    rights: RequestRights, image: MetadataImage, wanted: _Wanted, missing: tuple[str, ...]
) -> tuple[_Wanted, tuple[str, ...], _Denied]:
    """What is left of the topics to show and of those to create, and the answers to the others (`security.md A55`)."""

    def describes(name: str) -> bool:
        return rights.on_topic(AclOperation.DESCRIBE, name)

    if wanted.ids is not None:
        ids, hidden = split(
            wanted.ids, lambda each: each not in image.topics_by_id or describes(image.topics_by_id[each].name)
        )
        return wanted._replace(ids=ids), (), _Denied(ids=tuple(hidden))
    if wanted.names is None:
        return wanted, (), _Denied()
    names, undescribed = split(wanted.names, describes)
    to_create = [name for name in missing if name in names]
    if to_create and not rights.on_cluster(AclOperation.CREATE, quiet=True):
        allowed, uncreated = split(to_create, lambda name: rights.on_topic(AclOperation.CREATE, name))
        names = tuple(name for name in names if name not in uncreated)
        return wanted._replace(names=names), allowed, _Denied((*uncreated, *undescribed))
    return wanted._replace(names=names), tuple(to_create), _Denied(tuple(undescribed))


def _answer(
    node: NodeView,
    encoder: MetadataEncoder,
    request: MetadataRequest,
    wanted: _Wanted,
    rights: RequestRights | None,
    denied: _Denied,
) -> bytes:
    topic_operations = request_field(request, "include_topic_authorized_operations", False)
    cluster_operations = request_field(request, "include_cluster_authorized_operations", False)
    shape = (wanted, topic_operations, cluster_operations)
    if rights is None and (cached := encoder.cached(shape)) is not None:
        return cached
    found = _find(node.image, wanted)
    topics = found.topics
    if rights is not None and wanted.names is None and wanted.ids is None:
        topics = [topic for topic in topics if rights.describes(topic.name)]
    operations = TOPIC_OPERATIONS if topic_operations else OPERATIONS_NOT_ASKED
    operations_of = partial(rights.operations, ResourceType.TOPIC) if rights is not None and topic_operations else None
    on_cluster = CLUSTER_OPERATIONS if cluster_operations else OPERATIONS_NOT_ASKED
    if rights is not None and cluster_operations:
        on_cluster = cluster_operations_of(rights)
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer = encoder.answer(
        topics,
        [TopicError(ErrorCode.UNKNOWN_TOPIC_ID, None, each) for each in found.unknown_ids],
        [
            *(
                TopicError(code, name, operations=operations if operations_of is None else operations_of(name))
                for name, code in found.failed
            ),
            *(TopicError(code, name) for name in denied.names),
            *(TopicError(code, None, each) for each in denied.ids),
        ],
        cluster_id=node.cluster_id,
        topic_operations=operations,
        operations_of=operations_of,
        cluster_operations=on_cluster,
    )
    if rights is None and len(topics) >= _KEEP_FROM_TOPICS:
        encoder.cache(shape, answer)
    return answer


def _find(image: MetadataImage, wanted: _Wanted) -> _Found:
    if wanted.ids is not None:
        by_id = image.topics_by_id
        return _Found(
            [by_id[each] for each in wanted.ids if each in by_id],
            unknown_ids=tuple(each for each in wanted.ids if each not in by_id),
        )
    if wanted.names is None:
        return _Found(list(image.topics_by_name.values()))
    by_name = image.topics_by_name
    failed = [
        (name, ErrorCode.INVALID_TOPIC_EXCEPTION if name_fault(name) else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for name in wanted.names
        if name not in by_name
    ]
    failed.sort(key=lambda one: one[1] is not ErrorCode.INVALID_TOPIC_EXCEPTION)
    return _Found([by_name[name] for name in wanted.names if name in by_name], failed=tuple(failed))


def apis(
    node: NodeView, absent: Callable[[], Absent], auto_create: Callable[[Sequence[str]], Awaitable[object]]
) -> tuple[Api, ...]:
    return (Api(ApiKey.METADATA, 0, 13, MetadataHandler(node, absent, auto_create).handle),)
