"""Requests to the controller, and their responses. Frozen data, no behaviour.

A response for many items has one `RequestOutcome` for each item. Requests that fail only as a whole raise
`errors.PeerError` from `Controller.decide` instead, and write no records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple, Protocol, TypeAlias
from uuid import UUID

from fenceline.controller.outcome import SUCCESS as SUCCESS
from fenceline.controller.outcome import RequestOutcome as RequestOutcome
from fenceline.controller.partition_requests import PartitionRequest
from fenceline.ids import ZERO_UUID
from fenceline.metadata.acl_index import AclFilter, AclRule
from fenceline.metadata.features import Levels
from fenceline.metadata.image import ConfigResource, Endpoint, QuotaEntity
from fenceline.metadata.security_records import DelegationTokenRecord, UserScramCredentialRecord

# -- topics (C21-C25, K27) -------------------------------------------------------------------------------------------


class PartitionMutations(Protocol):
    """How many partitions a request may create or delete (KIP-599)."""

    def takes(self, partitions: int) -> bool:
        """Whether so many partitions may be created or deleted; if so they are counted. Called once for each topic,
        after all other checks."""


@dataclass(frozen=True, slots=True)
class TopicToCreate:
    """-1 means the default. `assignments`: (partition index, broker ids). A config's value None is an error."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, tuple[int, ...]], ...] = ()
    configs: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class CreateTopics:
    """Each topic succeeds or fails separately. `mutations`: None without a limit."""

    topics: tuple[TopicToCreate, ...]
    validate_only: bool = False
    mutations: PartitionMutations | None = None


class CreateTopicResult(NamedTuple):
    """`configs` are the topic's overrides; `topic_id` is zero after a failure."""

    name: str
    outcome: RequestOutcome
    topic_id: UUID = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class CreateTopicsAnswer:
    """One entry for each topic, in the order of the request."""

    topics: tuple[CreateTopicResult, ...]


class TopicReference(NamedTuple):
    """A topic by name or by id, not both."""

    name: str | None = None
    id: UUID = ZERO_UUID


@dataclass(frozen=True, slots=True)
class DeleteTopics:
    """Each topic succeeds or fails separately. `mutations`: None without a limit."""

    topics: tuple[TopicReference, ...]
    mutations: PartitionMutations | None = None


class DeletedTopic(NamedTuple):
    name: str | None
    id: UUID
    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class DeleteTopicsAnswer:
    """One entry for each reference, in the order of the request."""

    topics: tuple[DeletedTopic, ...]


@dataclass(frozen=True, slots=True)
class NewPartitions:
    """`count` is the new total; `assignments` are the broker ids of each additional partition, None = automatic."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True)
class CreatePartitions:
    """Each topic succeeds or fails separately. `mutations`: None without a limit."""

    topics: tuple[NewPartitions, ...]
    validate_only: bool = False
    mutations: PartitionMutations | None = None


class NamedOutcome(NamedTuple):
    name: str
    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class CreatePartitionsAnswer:
    """One outcome for each topic."""

    topics: tuple[NamedOutcome, ...]


# -- configs (C36, K26) ----------------------------------------------------------------------------------------------


class ConfigOperation(IntEnum):
    """The operations of IncrementalAlterConfigs. The last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigChange(NamedTuple):
    name: str
    operation: ConfigOperation
    value: str | None = None


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigs:
    """Each resource succeeds or fails separately, with all of its changes."""

    resources: tuple[tuple[ConfigResource, tuple[ConfigChange, ...]], ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """The legacy request: replaces all overrides of a resource."""

    resources: tuple[tuple[ConfigResource, tuple[tuple[str, str | None], ...]], ...]
    validate_only: bool = False


class AlteredResource(NamedTuple):
    resource: ConfigResource
    outcome: RequestOutcome


@dataclass(frozen=True, slots=True)
class AlterConfigsAnswer:
    """One outcome for each resource."""

    resources: tuple[AlteredResource, ...]


# -- brokers and controllers (C11-C20, K22-K25) ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisterBroker:
    """`previous_broker_epoch`: the one before the last clean shutdown, -1 if there was none or it is unknown (K23)."""

    broker_id: int
    cluster_id: str
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, Levels]
    rack: str | None = None
    log_dirs: tuple[UUID, ...] = ()
    previous_broker_epoch: int = -1
    is_migrating_zk_broker: bool = False


@dataclass(frozen=True, slots=True)
class RegisterBrokerAnswer:
    """The broker epoch, which all later requests of this broker carry."""

    broker_epoch: int


class SilentBroker(NamedTuple):
    """A leader that does not answer the fetches of the broker that reports it."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class BrokerHeartbeat:
    """`current_metadata_offset`: the highest offset the broker has applied. `cordoned_log_dirs` None = not sent.
    `silent_brokers`: an extension (`wire.extensions`)."""

    broker_id: int
    broker_epoch: int
    current_metadata_offset: int
    want_fence: bool = False
    want_shut_down: bool = False
    offline_log_dirs: tuple[UUID, ...] = ()
    cordoned_log_dirs: tuple[UUID, ...] | None = None
    silent_brokers: tuple[SilentBroker, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerHeartbeatAnswer:
    """The broker's state at the controller, and whether it should shut down."""

    is_caught_up: bool
    is_fenced: bool
    should_shut_down: bool


@dataclass(frozen=True, slots=True)
class UnregisterBroker:
    """Remove a broker's registration permanently."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class RegisterController:
    """A controller reports its endpoints and supported features."""

    controller_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    features: Mapping[str, Levels]
    zk_migration_ready: bool = False


@dataclass(frozen=True, slots=True)
class EmptyAnswer:
    """A response without content."""


# -- ids, features ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AllocateProducerIds:
    """A broker requests its next block of producer ids."""

    broker_id: int
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """`size` consecutive ids, starting at `first`."""

    first: int
    size: int


class UpgradeType(IntEnum):
    UNKNOWN = 0
    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """`upgrade_type` UNKNOWN represents every number that Kafka does not define."""

    name: str
    level: int
    upgrade_type: UpgradeType


@dataclass(frozen=True, slots=True)
class UpdateFeatures:
    """Change feature levels: all or nothing."""

    updates: tuple[FeatureUpdate, ...]
    validate_only: bool = False


@dataclass(frozen=True, slots=True)
class UpdateFeaturesAnswer:
    """The first failure fails the whole request (UpdateFeatures v2)."""

    outcome: RequestOutcome
    features: tuple[NamedOutcome, ...] = ()


# -- timers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FenceStaleBroker:
    """Timer: fence at most one broker whose session expired (C17)."""


@dataclass(frozen=True, slots=True)
class FenceEndedBroker:
    """A probe found that this incarnation has no connection to this controller and its address has refused connections
    since `since_ms` (monotonic). Its process has ended: fence it."""

    broker_id: int
    broker_epoch: int
    since_ms: int


@dataclass(frozen=True, slots=True)
class FenceSilentBroker:
    """This controller has had no answer from this incarnation since `since_ms` (monotonic), and followers report the
    same: fence it."""

    broker_id: int
    broker_epoch: int
    since_ms: int


# -- credentials (security.md A37) -----------------------------------------------------------------------------------


class ScramDeletion(NamedTuple):
    name: str
    mechanism: int


class ScramUpsertion(NamedTuple):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes


@dataclass(frozen=True, slots=True)
class AlterUserScram:
    """Each user succeeds or fails separately."""

    deletions: tuple[ScramDeletion, ...]
    upsertions: tuple[ScramUpsertion, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterUserScramAnswer:
    """One outcome for each user."""

    users: tuple[NamedOutcome, ...]


# -- quotas of clients (C44) -----------------------------------------------------------------------------------------


class QuotaAlteration(NamedTuple):
    """New values of one entity's quotas by their keys; None removes one."""

    entity: QuotaEntity
    values: tuple[tuple[str, float | None], ...]


@dataclass(frozen=True, slots=True)
class AlterClientQuotas:
    """Each entity succeeds or fails separately."""

    alterations: tuple[QuotaAlteration, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class AlterClientQuotasAnswer:
    """The outcome of each entity."""

    entities: tuple[tuple[QuotaEntity, RequestOutcome], ...]


# -- ACLs (C42) ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateAcls:
    """Each ACL succeeds or fails separately."""

    acls: tuple[AclRule, ...]


@dataclass(frozen=True, slots=True)
class CreateAclsAnswer:
    """One outcome for each ACL, in the order of the request."""

    outcomes: tuple[RequestOutcome, ...]


@dataclass(frozen=True, slots=True)
class DeleteAcls:
    """Deletes the ACLs that at least one of the filters matches."""

    filters: tuple[AclFilter, ...]


class MatchingAcls(NamedTuple):
    """The ACLs that one filter matched; none after a failure."""

    outcome: RequestOutcome
    acls: tuple[AclRule, ...] = ()


@dataclass(frozen=True, slots=True)
class DeleteAclsAnswer:
    """One entry for each filter, in the order of the request. An ACL is in the entries of all that match it."""

    filters: tuple[MatchingAcls, ...]


# -- delegation tokens (security.md A32-A36) --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CreateDelegationToken:
    """Principals are written `User:name`. `max_lifetime_ms`: 0 or less is as configured. `now_ms`, here and below:
    since the epoch, by the clock of the active controller."""

    requester: str
    owner: str
    renewers: tuple[str, ...]
    max_lifetime_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class CreatedDelegationToken:
    token: DelegationTokenRecord
    hmac: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class RenewDelegationToken:
    """`period_ms`: 0 or less is as configured."""

    requester: str
    hmac: bytes = field(repr=False)
    period_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class ExpireDelegationToken:
    """`period_ms`: negative removes the token."""

    requester: str
    hmac: bytes = field(repr=False)
    period_ms: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class DelegationTokenExpiry:
    """When the token will expire, or when it was removed, in milliseconds since the epoch."""

    expiry_ms: int


@dataclass(frozen=True, slots=True)
class RemoveExpiredTokens:
    """Timer: remove tokens that have expired."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class RemoveExpiredTokensAnswer:
    """`more` are left and need another pass at once."""

    more: bool


@dataclass(frozen=True, slots=True)
class WriteNoOp:
    """Timer: keep the log moving (C7)."""


@dataclass(frozen=True, slots=True)
class WriteBootstrapRecords:
    """First start of a cluster: the records of `bootstrap.checkpoint` in a metadata transaction (C6, K20)."""

    features: tuple[tuple[str, int], ...]
    scram: tuple[UserScramCredentialRecord, ...] = field(default=(), repr=False)


Request: TypeAlias = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | IncrementalAlterConfigs
    | AlterConfigs
    | RegisterBroker
    | BrokerHeartbeat
    | UnregisterBroker
    | RegisterController
    | AllocateProducerIds
    | UpdateFeatures
    | AlterUserScram
    | AlterClientQuotas
    | CreateAcls
    | DeleteAcls
    | CreateDelegationToken
    | RenewDelegationToken
    | ExpireDelegationToken
    | RemoveExpiredTokens
    | FenceStaleBroker
    | FenceEndedBroker
    | FenceSilentBroker
    | WriteNoOp
    | WriteBootstrapRecords
    | PartitionRequest
)
