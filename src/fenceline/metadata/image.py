"""The metadata image: the state of the cluster up to one offset of the metadata log.

Owns the shape of the state and look-ups in it. Immutable (each object is frozen, maps are persistent and share
structure between versions). A new image comes only from `metadata.delta`.

`PartitionImage` is a named tuple rather than a dataclass: there can be a million of them, and creating one takes a
quarter of the time. The delta shares equal short tuples (replicas, ISR, directories) between partitions.

Rules: controller.md C9, C26; docs/how-it-works.md "Cost" (under 1.5 KB for each partition).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias
from uuid import UUID

from immutables import Map

from fenceline.ids import NO_LEADER, ZERO_UUID
from fenceline.metadata.features import ELR_VERSION, METADATA_VERSION, Levels

if TYPE_CHECKING:
    from fenceline.metadata.security_records import (
        AccessControlEntryRecord,
        DelegationTokenRecord,
        UserScramCredentialRecord,
    )


class ConfigResourceType(IntEnum):
    """Types of resources that have configs (C36)."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    """`name` is "" for the default of all brokers."""

    type: ConfigResourceType
    name: str


class LeaderRecoveryState(IntEnum):
    """Whether the leader may have lost records (KIP-704)."""

    RECOVERED = 0
    RECOVERING = 1


MIGRATING_DIRECTORY: Final = ZERO_UUID
"""The broker manages its directories otherwise, or did not report them: counts as online."""
UNASSIGNED_DIRECTORY: Final = UUID(int=1)
"""The broker will report the directory of the replica: counts as online."""
LOST_DIRECTORY: Final = UUID(int=2)
"""The directory of the replica has failed."""


class Endpoint(NamedTuple):
    """A listener as a node registered it. `security_protocol`: 0 PLAINTEXT, 1 SSL, 2 SASL_PLAINTEXT, 3 SASL_SSL."""

    name: str
    host: str
    port: int
    security_protocol: int


class PartitionImage(NamedTuple):
    """One partition. `leader` is -1 without a leader; `replicas[0]` is the preferred leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    leader_recovery_state: LeaderRecoveryState = LeaderRecoveryState.RECOVERED
    directories: tuple[UUID, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def preferred_leader(self) -> int:
        return self.replicas[0] if self.replicas else NO_LEADER

    def directory_of(self, broker_id: int) -> UUID | None:
        """The log directory of the replica on `broker_id`, or None if the record has no directories."""
        if broker_id not in self.replicas:
            return None
        place = self.replicas.index(broker_id)
        return self.directories[place] if place < len(self.directories) else None


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic; `partitions[i]` is partition i."""

    id: UUID
    name: str
    partitions: tuple[PartitionImage, ...]


@dataclass(frozen=True, slots=True)
class BrokerImage:
    """A broker's registration. `log_dirs` are directory ids, `cordoned_log_dirs` those that take no new replicas."""

    id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, Levels]
    rack: str | None
    fenced: bool
    in_controlled_shutdown: bool
    log_dirs: tuple[UUID, ...]
    cordoned_log_dirs: tuple[UUID, ...] | None = None

    @property
    def is_active(self) -> bool:
        """C26: registered, not fenced, not in controlled shutdown."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> Endpoint | None:
        """The broker's endpoint for a listener, or None if it does not have that listener."""
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener), None)

    @property
    def takes_new_replicas(self) -> bool:
        """K25: false if all its directories are cordoned."""
        return not (self.cordoned_log_dirs and self.log_dirs and set(self.log_dirs) <= set(self.cordoned_log_dirs))


@dataclass(frozen=True, slots=True)
class ControllerImage:
    """A controller's registration."""

    id: int
    incarnation_id: UUID
    zk_migration_ready: bool
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, Levels]


QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(type, name or None for the default) pairs sorted by type."""


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """State of the cluster after the record at `offset` (-1: no record yet), written in `epoch`."""

    offset: int
    epoch: int
    features: Map[str, int]
    topics_by_name: Map[str, TopicImage]
    topics_by_id: Map[UUID, TopicImage]
    brokers: Map[int, BrokerImage]
    controllers: Map[int, ControllerImage]
    configs: Map[ConfigResource, Map[str, str]]
    next_producer_id: int
    client_quotas: Map[QuotaEntity, Map[str, float]]
    acls: Map[UUID, AccessControlEntryRecord]
    scram: Map[tuple[str, int], UserScramCredentialRecord]
    delegation_tokens: Map[str, DelegationTokenRecord]

    @property
    def metadata_version(self) -> int:
        """The finalized level, or 0 if the log has none (K2)."""
        return self.features.get(METADATA_VERSION, 0)

    @property
    def elr_enabled(self) -> bool:
        """K21: whether eligible leader replicas are enabled."""
        return self.features.get(ELR_VERSION, 0) >= 1

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics_by_name.get(topic)
        return found.partitions[index] if found is not None and 0 <= index < len(found.partitions) else None

    def is_active(self, broker_id: int) -> bool:
        """C26."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.is_active

    def alive_brokers(self) -> Iterator[BrokerImage]:
        """Brokers listed in Metadata responses: registered and not fenced (C19)."""
        return (broker for broker in self.brokers.values() if not broker.fenced)

    def config(self, resource_type: ConfigResourceType, name: str) -> Map[str, str]:
        """The overrides of one resource; empty if there are none."""
        return self.configs.get(ConfigResource(resource_type, name), _NO_CONFIG)


_NO_CONFIG: Final[Map[str, str]] = Map()

EMPTY_IMAGE: Final = MetadataImage(
    offset=-1,
    epoch=-1,
    features=Map(),
    topics_by_name=Map(),
    topics_by_id=Map(),
    brokers=Map(),
    controllers=Map(),
    configs=Map(),
    next_producer_id=0,
    client_quotas=Map(),
    acls=Map(),
    scram=Map(),
    delegation_tokens=Map(),
)
"""The image before the first record."""
