"""The controller's state: the image with all records decided so far, and soft state.

Owns `ControllerState`: the newest image (it may be ahead of the committed one, C1), the offset of the next record,
sessions, and indexes derived from the image. Changed only by `replay`, `reset` and the session calls of requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from fenceline.config.broker import BROKER_CONFIGS
from fenceline.config.definitions import ConfigValue
from fenceline.controller.partition_visits import PartitionVisits
from fenceline.controller.placement import PlaceableBrokers
from fenceline.controller.replica_index import ReplicaIndex
from fenceline.controller.sessions import Sessions
from fenceline.controller.silence import SilenceReports
from fenceline.controller.token_index import TokenIndex
from fenceline.controller.topic_names import NameIndex
from fenceline.errors import ErrorCode, InternalError, PeerError
from fenceline.metadata.acl_index import AclIndex
from fenceline.metadata.changes import Delta
from fenceline.metadata.delta import apply
from fenceline.metadata.features import KRAFT_VERSION
from fenceline.metadata.image import (
    EMPTY_IMAGE,
    LOST_DIRECTORY,
    MIGRATING_DIRECTORY,
    UNASSIGNED_DIRECTORY,
    BrokerImage,
    ConfigResource,
    ConfigResourceType,
    MetadataImage,
    PartitionImage,
)
from fenceline.metadata.records import MetadataRecord

MAX_RECORDS: Final = 10_000
"""Limit of records in one atomic decision (C3)."""
MAX_VISITS: Final = 500
"""Partitions that one step of a decision about a broker visits: some milliseconds, here and at the brokers that apply
it."""
_LONG_STEP: Final = 10
"""Times as many, if the broker is the only one: nothing else is decided while it starts or stops."""
_MAX_BATCH_BYTES: Final = 8 << 20
"""Of one atomic decision: it is one batch of the metadata log, and this is Kafka's limit for one."""

UNCLEAN_ELECTION: Final = "unclean.leader.election.enable"

_ALL_BROKERS: Final = ConfigResource(ConfigResourceType.BROKER, "")
_NO_CONFIG: Final[Mapping[str, str]] = {}


def _default_of(name: str) -> ConfigValue:
    return BROKER_CONFIGS[name].default_value


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Static settings of this controller. `static_configs` are the values of server.properties that topics inherit."""

    cluster_id: str
    default_partition_count: int = 1
    default_replication_factor: int = 1
    session_timeout_ms: int = 9000
    knows_connections: bool = False
    """`Sessions` gets the brokers' connections, so a broker without one may be considered ended before its session
    expires."""
    delete_topics_enabled: bool = True
    leader_imbalance_percentage: int = 0
    """Above this percentage of partitions not led by their preferred leader, a broker gets them back (G45)."""
    static_configs: Mapping[str, str] = field(default_factory=dict)
    node_id: int = 1
    """Node id of this controller; some messages contain it."""
    broker_value: Callable[[str], ConfigValue] = _default_of
    """This node's value of a broker config: limits of group configs."""
    max_visits: int = MAX_VISITS
    token_secret: bytes = field(default=b"", repr=False)
    """`delegation.token.secret.key`; empty: no delegation tokens (security.md A32)."""
    distinct_racks: bool = False
    """Whether the replicas of a new partition must be in different racks."""
    token_max_lifetime_ms: int = 604_800_000
    token_expiry_ms: int = 86_400_000


class Decision(NamedTuple):
    """Records to append, and the response to send once they are committed.

    The records of an atomic decision must be in one batch (C3).
    """

    records: Sequence[MetadataRecord]
    answer: Any
    atomic: bool = True
    kraft_version: int | None = None
    """The quorum must finalize this level of kraft.version before the response is sent (K15); if it refuses, the
    request fails with its error."""
    more: bool = False
    """This was one step: once its records are applied the same request must be decided again. The answer of the last
    step counts."""


def refuse_large_batch(record_count: int, size_bytes: int) -> None:
    """Raises PeerError(POLICY_VIOLATION) for an atomic decision that is too large (C3)."""
    if record_count > MAX_RECORDS or size_bytes > _MAX_BATCH_BYTES:
        raise PeerError(ErrorCode.POLICY_VIOLATION, "Unable to perform excessively large batch operation.")


class ControllerState:
    """See the module."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.image: MetadataImage = EMPTY_IMAGE
        self.next_offset = 0
        """Offset of the next record in the log."""
        self.kraft_version = 0
        """The level in the quorum: it is not in the image (K1)."""
        self.voter_ids: frozenset[int] = frozenset()
        """Voters of the quorum. A feature is upgraded only when all of them have registered (K27); empty: unknown."""
        self.can_finalize_kraft_version = False
        """Whether the driver executes `Decision.kraft_version`."""
        self.sessions = Sessions(settings.session_timeout_ms)
        self.silence = SilenceReports(settings.session_timeout_ms)
        self.visits = PartitionVisits()
        self.fencing: dict[int, int] = {}
        """Brokers that this controller fences in steps, and their epochs: what has begun is completed, even if the
        broker is heard of again."""
        self._own_resource = ConfigResource(ConfigResourceType.BROKER, str(settings.node_id))
        self._index: ReplicaIndex | None = None
        self._incomplete_index: ReplicaIndex | None = None
        self._names: NameIndex | None = None
        self._acls: AclIndex | None = None
        self._tokens: TokenIndex | None = None
        self._placeable: tuple[Mapping[int, BrokerImage], PlaceableBrokers] | None = None
        """The brokers of an image, and what of them counts for placements."""

    @property
    def placeable_brokers(self) -> PlaceableBrokers:
        brokers = self.image.brokers
        if self._placeable is None or self._placeable[0] is not brokers:
            self._placeable = brokers, PlaceableBrokers(brokers.values())
        return self._placeable[1]

    @property
    def index(self) -> ReplicaIndex:
        if self._index is None:
            self.prepare()
        assert self._index is not None, "it was built"
        return self._index

    def prepare(self, partitions: float = math.inf) -> bool:
        """Build the index, or a part of it for some `partitions`, so that the first decision need not do it in one
        turn of the event loop. Returns whether it is complete."""
        if self._index is not None:
            return True
        index = self._incomplete_index or ReplicaIndex(self.image)
        is_complete = index.build(partitions)
        self._index, self._incomplete_index = (index, None) if is_complete else (None, index)
        return is_complete

    @property
    def names(self) -> NameIndex:
        if self._names is None:
            self._names = NameIndex(self.image.topics_by_name)
        return self._names

    @property
    def acls(self) -> AclIndex:
        if self._acls is None:
            self._acls = AclIndex(self.image)
        return self._acls

    @property
    def tokens(self) -> TokenIndex:
        if self._tokens is None:
            self._tokens = TokenIndex(self.settings.token_secret, self.image.delegation_tokens)
        return self._tokens

    def reset(self, image: MetadataImage, next_offset: int) -> None:
        """Set `image` as the state, after a failover (C2) or at start. The caller resets the sessions."""
        if image.offset >= next_offset:
            raise InternalError(f"C2: the image ends at {image.offset}, the next record is to have {next_offset}")
        self.image = image
        self.next_offset = next_offset
        self._index = self._incomplete_index = self._names = self._acls = self._tokens = None
        self.visits.clear()
        self.fencing.clear()

    def replay(self, records: Sequence[MetadataRecord], last_offset: int, epoch: int) -> tuple[MetadataImage, Delta]:
        """Apply decided records before they are committed (C1)."""
        if last_offset != self.next_offset + len(records) - 1 or epoch < self.image.epoch:
            raise InternalError(
                f"C1: {len(records)} records of epoch {epoch} end at {last_offset}; the next offset is"
                f" {self.next_offset}, in epoch {self.image.epoch} or later"
            )
        self.image, delta = apply(self.image, records, last_offset, epoch)
        self.next_offset = last_offset + 1
        self._incomplete_index = None
        if self._index is not None:
            self._index.update(delta)
        if self._acls is not None:
            self._acls.update(self.image, delta)
        if self._names is not None:
            for topic in delta.deleted_topics:
                self._names.remove(topic.name)
            for topic in delta.created_topics:
                self._names.add(topic.name)
        if self._tokens is not None:
            self._tokens.update(delta.changed_delegation_tokens, self.image.delegation_tokens)
        return self.image, delta

    def with_records(self, records: Sequence[MetadataRecord]) -> ControllerState:
        """The state after `records` of the decision in progress, for queries only. It shares this state's index, which
        does not include the records."""
        after = copy(self)
        after.image, _ = apply(self.image, records, self.image.offset, self.image.epoch)
        return after

    @property
    def visits_in_a_step(self) -> int:
        limit = self.settings.max_visits
        return limit * _LONG_STEP if len(self.image.brokers) <= 1 else limit

    # -- queries -------------------------------------------------------------------------------------------------------

    def broker(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        """The registration; raises PeerError(STALE_BROKER_EPOCH) for another epoch or an unknown broker (C13)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            raise PeerError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"No broker registration found for broker id {broker_id}",
            )
        if broker.epoch != broker_epoch:
            raise PeerError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Expected broker epoch {broker_epoch}, but got broker epoch {broker.epoch}",
            )
        return broker

    def finalized(self, feature: str) -> int:
        """The finalized level, 0 if there is none."""
        return self.kraft_version if feature == KRAFT_VERSION else self.image.features.get(feature, 0)

    def default_directory(self, broker_id: int) -> UUID:
        """The directory of a new replica: the broker's only one, or unassigned if it has several (K25, C20)."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return UNASSIGNED_DIRECTORY
        if not broker.log_dirs:
            return MIGRATING_DIRECTORY
        return broker.log_dirs[0] if len(broker.log_dirs) == 1 else UNASSIGNED_DIRECTORY

    def replica_is_online(
        self, broker_id: int, partition: PartitionImage, failed: Collection[UUID] = frozenset()
    ) -> bool:
        """Whether the broker has the directory of its replica online; `failed` ones have failed since the image."""
        broker = self.image.brokers.get(broker_id)
        if broker is None:
            return False
        directory = partition.directory_of(broker_id)
        return directory is None or directory_is_online(broker, directory, failed)

    def topic_config(self, topic: str, name: str) -> str | None:
        """C37: topic override, this node's dynamic config, the cluster's, static value; None if only the default
        remains."""
        configs = self.image.configs
        for resource in (ConfigResource(ConfigResourceType.TOPIC, topic), self._own_resource, _ALL_BROKERS):
            value = configs.get(resource, _NO_CONFIG).get(name)
            if value is not None:
                return value
        return self.settings.static_configs.get(name)

    def min_isr(self, topic: str) -> int:
        """The configured min.insync.replicas; the effective value of a partition is capped at its replicas (C37,
        G43)."""
        return int(self.topic_config(topic, "min.insync.replicas") or 1)

    def unclean_election(self, topic: str) -> bool:
        return is_true(self.topic_config(topic, UNCLEAN_ELECTION))


def directory_is_online(broker: BrokerImage, directory: UUID, failed: Collection[UUID] = frozenset()) -> bool:
    """Whether a replica in `directory` of the broker is online (C20); an unassigned replica is."""
    if directory in (UNASSIGNED_DIRECTORY, MIGRATING_DIRECTORY):
        return True
    if directory == LOST_DIRECTORY or directory in failed:
        return False
    return not broker.log_dirs or directory in broker.log_dirs


def is_true(value: str | None) -> bool:
    """Parse a boolean config as Kafka does."""
    return value is not None and value.strip().lower() == "true"
