"""Requests of every API, and users with few rights each: what Apache Kafka 4.3.1 answers to each pair is in
`tests/recorded/security/test_permissions.json`.

Owns the requests, the rights of each user, and the form of an answer without values that differ between two clusters or
two runs. Pure: `permission_session.py` sends them.

Every topic, group and transactional id has one of these names:

| | exists | the users' rights are for it |
|---|---|---|
| `seen` | yes | yes |
| `hidden` | yes | no |
| `absent` | no | yes |
| `nowhere` | no | no |
| `made` | no: Metadata may create it | yes |

The order of `requests`, of `users` and of the rows in an answer does not depend on the cluster.

A request does not change what is there (it only validates, or names what does not exist), except those of
`NamedRequest.changes`: after them everything is put back.

Rules: security.md A42, A44, A53 to A55.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from fenceline.records.build import build_batch
from fenceline.wire.acl_codes import AclOperation, Permission, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import write_request

SEEN, HIDDEN, ABSENT, NOWHERE, MADE = "seen", "hidden", "absent", "nowhere", "made"
ADMIN: Final = "admin"
"""A super user."""
NAMES: Final = {
    ResourceType.TOPIC: (SEEN, ABSENT, MADE),
    ResourceType.GROUP: (SEEN, ABSENT),
    ResourceType.TRANSACTIONAL_ID: (SEEN, ABSENT),
    ResourceType.CLUSTER: ("kafka-cluster",),
    ResourceType.USER: ("User:admin",),
}
"""What the users' rights are for."""
_T = AclOperation
OPERATIONS: Final = {
    ResourceType.TOPIC: (
        *(_T.READ, _T.WRITE, _T.CREATE, _T.DELETE, _T.ALTER, _T.DESCRIBE, _T.DESCRIBE_CONFIGS, _T.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (_T.READ, _T.DELETE, _T.DESCRIBE, _T.DESCRIBE_CONFIGS, _T.ALTER_CONFIGS),
    ResourceType.TRANSACTIONAL_ID: (_T.DESCRIBE, _T.WRITE),
    ResourceType.CLUSTER: (
        *(_T.CREATE, _T.DELETE, _T.ALTER, _T.DESCRIBE, _T.CLUSTER_ACTION, _T.DESCRIBE_CONFIGS, _T.ALTER_CONFIGS),
        _T.IDEMPOTENT_WRITE,
    ),
    ResourceType.USER: (_T.CREATE_TOKENS, _T.DESCRIBE_TOKENS),
}


class Right(NamedTuple):
    """To do `operation` with all of `NAMES` of this type."""

    resource: ResourceType
    operation: AclOperation

    @property
    def label(self) -> str:
        return f"{self.resource.name.lower()}_{self.operation.name.lower()}"


RIGHTS: Final = frozenset(Right(kind, operation) for kind, of in OPERATIONS.items() for operation in of)


def users() -> dict[str, frozenset[Right]]:
    """Their rights, by name: none, all, one, all but one, all of one resource type, all but those."""
    found = {"none": frozenset[Right](), "all": RIGHTS}
    for right in sorted(RIGHTS):
        found[f"only_{right.label}"] = frozenset({right})
        found[f"all_but_{right.label}"] = RIGHTS - {right}
    for kind in OPERATIONS:
        of = frozenset(right for right in RIGHTS if right.resource == kind)
        found[f"only_{kind.name.lower()}"] = of
        found[f"all_but_{kind.name.lower()}"] = RIGHTS - of
    return found


def acls() -> Iterator[dict[str, Any]]:
    """The ACLs of all users, as CreateAcls has them."""
    for user, rights in users().items():
        for right in sorted(rights):
            for name in NAMES[right.resource]:
                yield {
                    "resource_type": right.resource,
                    "resource_name": name,
                    "principal": f"User:{user}",
                    "host": "*",
                    "operation": right.operation,
                    "permission_type": Permission.ALLOW,
                }


@dataclass(frozen=True)
class IdOf:
    """Stands for the id of a topic."""

    topic: str


UNKNOWN_ID: Final = UUID("0b558df6-ad2d-4cdb-8a0f-3e29f648b81e")
BROKER, CONTROLLER = "broker", "controller"


@dataclass(frozen=True)
class NamedRequest:
    """`listener`: that of brokers or that of controllers. `changes`: something may have to be put back."""

    name: str
    api: ApiKey
    version: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    listener: str = BROKER
    changes: bool = False

    def body(self, ids: Mapping[str, UUID]) -> bytes:
        """Encoded; `ids` are those of the topics."""
        return write_request(self.api, self.version, _resolved(self.fields, ids))


def _resolved(value: Any, ids: Mapping[str, UUID]) -> Any:
    if isinstance(value, IdOf):
        return ids[value.topic]
    if isinstance(value, Mapping):
        return {name: _resolved(each, ids) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_resolved(each, ids) for each in value]
    return value


# --- answers ----------------------------------------------------------------------------------------------------------

_KEPT: Final = frozenset(
    {
        *("error_code", "topic_config_error_code", "partition_error_code"),
        *("name", "topic", "topic_name", "topic_id", "partition_index", "partition", "partition_id", "index"),
        *("group_id", "group", "key", "transactional_id", "resource_type", "resource_name", "user", "id_", "feature"),
        *("topic_authorized_operations", "cluster_authorized_operations", "authorized_operations"),
        *("group_state", "transaction_state"),
    }
)
_LEFT_OUT: Final = frozenset(
    {
        *("brokers", "nodes", "node_endpoints", "configs", "records", "current_leader", "diverging_epoch"),
        *("snapshot_id", "observers", "current_voters", "listeners", "supported_features", "finalized_features"),
        *("api_keys", "replica_nodes", "isr_nodes", "offline_replicas", "eligible_leader_replicas", "last_known_elr"),
        *("active_producers", "aborted_transactions", "record_errors", "mechanisms", "unknown_state_filters", "leader"),
    }
)


def comparable(answer: Any, ids: Mapping[str, UUID]) -> Any:
    """Error codes, and the names of what they are about; `answer` as `raw.plain` returns it. Lists are sorted: Kafka
    has no order for most of them."""
    names: dict[str, str | None] = {str(topic_id): f"id of {topic}" for topic, topic_id in ids.items()}
    names |= {"None": None, str(UNKNOWN_ID): str(UNKNOWN_ID)}

    def stripped(value: Any) -> Any:
        if isinstance(value, dict):
            found = {}
            for name, each in value.items():
                if isinstance(each, dict | list):
                    if name not in _LEFT_OUT:
                        found[name] = stripped(each)
                elif name in _KEPT:
                    found[name] = names.get(str(each), "another id") if name == "topic_id" else each
            return found
        if isinstance(value, list):
            return sorted(map(stripped, value), key=repr)
        return value

    return stripped(answer)


# --- requests ---------------------------------------------------------------------------------------------------------

_TOPICS: Final = (SEEN, HIDDEN, ABSENT, NOWHERE)
_IDS: Final = (IdOf(SEEN), IdOf(HIDDEN), UNKNOWN_ID)
_PRODUCER: Final = {"producer_id": 999_999, "producer_epoch": 0}
"""No coordinator has given it to anyone."""
_CLUSTER_OF_OTHERS: Final = "BBBBBBBBQACAAAAAAAAAAA"


def requests() -> list[NamedRequest]:
    """In the order in which each user sends them."""
    return [
        *_data(),
        *_metadata(),
        *_groups(),
        *_transactions(),
        *_topics(),
        *_configs(),
        *_cluster(),
        *_by_both_listeners(),
        *_of_controllers(),
    ]


def _each(names: tuple[Any, ...], key: str, **more: Any) -> list[dict[str, Any]]:
    return [{key: name, **more} for name in names]


def _data() -> Iterator[NamedRequest]:
    row = (1_700_000_000_000, b"k", b"v", ())
    batch = bytes(build_batch([row]))
    idempotent = bytes(build_batch([row], producer_id=999_998, producer_epoch=0, base_sequence=0))
    transactional = bytes(
        build_batch([row], producer_id=999_999, producer_epoch=0, base_sequence=0, transactional=True)
    )

    def produce(name: str, records: bytes, transactional_id: str | None, topics: Any, version: int) -> NamedRequest:
        key = "topic_id" if version >= 13 else "name"
        data = _each(topics, key, partition_data=[{"index": 0, "records": records}])
        fields = {"transactional_id": transactional_id, "acks": -1, "timeout": 10_000, "topic_data": data}
        return NamedRequest(f"Produce {name}", ApiKey.PRODUCE, version, fields)

    yield produce("by id", batch, None, _IDS, 13)
    yield produce("by name", batch, None, _TOPICS, 12)
    yield produce("idempotent", idempotent, None, _TOPICS, 12)
    yield produce("transactional", transactional, SEEN, _TOPICS, 12)
    yield produce("transactional, another id", transactional, HIDDEN, (SEEN,), 12)
    yield produce("transactional, without an id", transactional, None, (SEEN,), 12)
    yield produce("with an id, no transaction", batch, HIDDEN, (SEEN,), 12)

    def fetch(name: str, topics: Any, version: int, **more: Any) -> NamedRequest:
        wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        key = "topic_id" if version >= 13 else "topic"
        fields = {"max_bytes": 1 << 20, "topics": _each(topics, key, partitions=[wanted]), **more}
        return NamedRequest(f"Fetch {name}", ApiKey.FETCH, version, fields)

    yield fetch("by id", _IDS, 18)
    yield fetch("by name", _TOPICS, 12)
    yield fetch("of a replica, by id", _IDS, 18, replica_state={"replica_id": 9, "replica_epoch": 5})
    yield fetch("of a replica, by name", _TOPICS, 12, replica_id=9)

    partitions = [{"partition_index": 0, "timestamp": -1}]
    yield NamedRequest(
        "ListOffsets",
        ApiKey.LIST_OFFSETS,
        11,
        {"replica_id": -1, "topics": _each(_TOPICS, "name", partitions=partitions), "timeout": 1_000},
    )
    for name, replica in (("OffsetForLeaderEpoch", -1), ("OffsetForLeaderEpoch of a replica", 9)):
        asked = _each(_TOPICS, "topic", partitions=[{"partition": 0, "leader_epoch": 0}])
        yield NamedRequest(name, ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, {"replica_id": replica, "topics": asked})
    wanted = [{"partition_index": 0, "offset": 0}]
    yield NamedRequest(
        "DeleteRecords",
        ApiKey.DELETE_RECORDS,
        2,
        {"topics": _each(_TOPICS, "name", partitions=wanted), "timeout": 10_000},
    )
    asked = _each((*_TOPICS, "bad name"), "name", partition_indexes=[0])
    yield NamedRequest("DescribeProducers", ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})


def _metadata() -> Iterator[NamedRequest]:
    def metadata(name: str, topics: Any, version: int = 13, **more: Any) -> NamedRequest:
        fields = {"topics": topics, "allow_auto_topic_creation": False, "include_topic_authorized_operations": True}
        return NamedRequest(f"Metadata {name}", ApiKey.METADATA, version, {**fields, **more}, changes=bool(more))

    yield metadata("of all", None)
    yield metadata("by name", _each(_TOPICS, "name"))
    yield metadata("by id", _each(_IDS, "topic_id", name=None))
    yield metadata("that creates", _each((MADE, NOWHERE), "name"), allow_auto_topic_creation=True)
    yield NamedRequest(
        "Metadata with operations of the cluster",
        ApiKey.METADATA,
        10,
        {"topics": [], "include_cluster_authorized_operations": True},
    )
    yield NamedRequest("DescribeTopicPartitions of all", ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, {"topics": []})
    yield NamedRequest(
        "DescribeTopicPartitions by name",
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        0,
        {"topics": _each(_TOPICS, "name")},
    )


def _groups() -> Iterator[NamedRequest]:
    """Members are unknown, so that nobody joins."""
    member = {"member_id": "nobody"}
    for group in (SEEN, HIDDEN, ABSENT):
        yield NamedRequest(
            f"JoinGroup {group}",
            ApiKey.JOIN_GROUP,
            9,
            {
                "group_id": group,
                "session_timeout": 10_000,
                "rebalance_timeout": 10_000,
                "protocol_type": "consumer",
                "protocols": [{"name": "range", "metadata": b""}],
                **member,
            },
        )
        yield NamedRequest(f"Heartbeat {group}", ApiKey.HEARTBEAT, 4, {"group_id": group, "generation_id": 1, **member})
        yield NamedRequest(f"LeaveGroup {group}", ApiKey.LEAVE_GROUP, 5, {"group_id": group, "members": [member]})
        fields = {"group_id": group, "generation_id": 1, **member}
        names = {"protocol_type": "consumer", "protocol_name": "range"}
        yield NamedRequest(f"SyncGroup {group}", ApiKey.SYNC_GROUP, 5, {**fields, **names})
        yield NamedRequest(f"SyncGroup {group} without protocols", ApiKey.SYNC_GROUP, 5, fields)
        for subscribed in ((SEEN,), (SEEN, HIDDEN), ()):
            yield NamedRequest(
                f"ConsumerGroupHeartbeat {group} {' '.join(subscribed)}",
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                1,
                {"group_id": group, "member_epoch": 5, "subscribed_topic_names": subscribed or None, **member},
            )
        commits = [{"partition_index": 0, "committed_offset": 5}]
        for name, version, topics in (("name", 9, _TOPICS), ("id", 10, _IDS)):
            fields = {
                "group_id": group,
                "topics": _each(topics, "name" if version < 10 else "topic_id", partitions=commits),
            }
            yield NamedRequest(
                f"OffsetCommit {group} by {name}", ApiKey.OFFSET_COMMIT, version, fields, changes=group == ABSENT
            )
        for name, version, topics in (("name", 9, _TOPICS), ("id", 10, _IDS)):
            rows = _each(topics, "name" if version < 10 else "topic_id", partition_indexes=[0])
            asked = [{"group_id": group, "topics": rows}]
            yield NamedRequest(f"OffsetFetch {group} by {name}", ApiKey.OFFSET_FETCH, version, {"groups": asked})
        yield NamedRequest(
            f"OffsetDelete {group}",
            ApiKey.OFFSET_DELETE,
            0,
            {"group_id": group, "topics": _each(_TOPICS, "name", partitions=[{"partition_index": 0}])},
            changes=True,
        )
    everything = _each((SEEN, HIDDEN, ABSENT), "group_id", topics=None)
    yield NamedRequest("OffsetFetch of all topics", ApiKey.OFFSET_FETCH, 9, {"groups": everything})
    named = {"group_id": SEEN, "topics": _each(_TOPICS, "name", partition_indexes=[0])}
    yield NamedRequest("OffsetFetch of one group", ApiKey.OFFSET_FETCH, 7, named)
    groups = [SEEN, HIDDEN, ABSENT, NOWHERE]
    operations = {"include_authorized_operations": True}
    yield NamedRequest("DescribeGroups", ApiKey.DESCRIBE_GROUPS, 6, {"groups": groups, **operations})
    yield NamedRequest("ConsumerGroupDescribe", ApiKey.CONSUMER_GROUP_DESCRIBE, 1, {"group_ids": groups, **operations})
    yield NamedRequest("ListGroups", ApiKey.LIST_GROUPS, 5)
    yield NamedRequest("DeleteGroups", ApiKey.DELETE_GROUPS, 2, {"groups_names": groups}, changes=True)
    keys = [SEEN, HIDDEN, ABSENT]
    for kind, name in enumerate(("groups", "transactions")):
        yield NamedRequest(
            f"FindCoordinator of {name}", ApiKey.FIND_COORDINATOR, 6, {"key_type": kind, "coordinator_keys": keys}
        )
    yield NamedRequest("FindCoordinator of one group", ApiKey.FIND_COORDINATOR, 3, {"key": HIDDEN, "key_type": 0})


def _transactions() -> Iterator[NamedRequest]:
    for name in (SEEN, HIDDEN, ABSENT):
        fields = {"transactional_id": name, "transaction_timeout": 60_000}
        if name != ABSENT:  # it would be there for the next user
            yield NamedRequest(f"InitProducerId {name}", ApiKey.INIT_PRODUCER_ID, 5, fields)
        named = {"transactional_id": name, **_PRODUCER}
        for group in (SEEN, HIDDEN):
            yield NamedRequest(
                f"AddOffsetsToTxn {name} {group}", ApiKey.ADD_OFFSETS_TO_TXN, 4, {**named, "group_id": group}
            )
            commits = [{"partition_index": 0, "committed_offset": 5}]
            yield NamedRequest(
                f"TxnOffsetCommit {name} {group}",
                ApiKey.TXN_OFFSET_COMMIT,
                5,
                {**named, "group_id": group, "topics": _each(_TOPICS, "name", partitions=commits)},
            )
        yield NamedRequest(f"EndTxn {name}", ApiKey.END_TXN, 5, {**named, "committed": True})
        yield NamedRequest(
            f"AddPartitionsToTxn {name}",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            {
                **{f"v3_and_below_{key}": value for key, value in named.items()},
                "v3_and_below_topics": _each(_TOPICS, "name", partitions=[0]),
            },
        )
        only = _each((SEEN,), "name", partitions=[0])
        yield NamedRequest(
            f"AddPartitionsToTxn {name} of one topic",
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            {**{f"v3_and_below_{key}": value for key, value in named.items()}, "v3_and_below_topics": only},
        )
        batch = {**named, "verify_only": True, "topics": _each(_TOPICS, "name", partitions=[0])}
        yield NamedRequest(
            f"AddPartitionsToTxn {name} of a broker", ApiKey.ADD_PARTITIONS_TO_TXN, 5, {"transactions": [batch]}
        )
    internal = _each(("__consumer_offsets", SEEN), "name", partitions=[0])
    yield NamedRequest(
        "AddPartitionsToTxn of an internal topic",
        ApiKey.ADD_PARTITIONS_TO_TXN,
        3,
        {
            **{f"v3_and_below_{key}": value for key, value in {"transactional_id": SEEN, **_PRODUCER}.items()},
            "v3_and_below_topics": internal,
        },
    )
    yield NamedRequest("InitProducerId without an id", ApiKey.INIT_PRODUCER_ID, 5, {"transaction_timeout": 60_000})
    marker = {
        **_PRODUCER,
        "transaction_result": True,
        "topics": _each((ABSENT, NOWHERE), "name", partition_indexes=[0]),
    }
    yield NamedRequest("WriteTxnMarkers", ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
    yield NamedRequest(
        "DescribeTransactions",
        ApiKey.DESCRIBE_TRANSACTIONS,
        0,
        {"transactional_ids": [SEEN, HIDDEN, ABSENT, NOWHERE]},
    )
    yield NamedRequest("ListTransactions", ApiKey.LIST_TRANSACTIONS, 2)


def _topics() -> Iterator[NamedRequest]:
    for name in (SEEN, HIDDEN, ABSENT, NOWHERE):
        wanted = [{"name": name, "topic_id": None}]
        yield NamedRequest(
            f"DeleteTopics {name}", ApiKey.DELETE_TOPICS, 6, {"topics": wanted, "timeout": 10_000}, changes=True
        )
    for name, topic in (("the id of seen", IdOf(SEEN)), ("the id of hidden", IdOf(HIDDEN)), ("no topic", UNKNOWN_ID)):
        wanted_ids = [{"name": None, "topic_id": topic}]
        yield NamedRequest(
            f"DeleteTopics by {name}",
            ApiKey.DELETE_TOPICS,
            6,
            {"topics": wanted_ids, "timeout": 10_000},
            changes=True,
        )
    yield NamedRequest(
        "AlterReplicaLogDirs",
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        2,
        {"dirs": [{"path": "/nowhere", "topics": _each((SEEN, HIDDEN, ABSENT), "name", partitions=[0])}]},
    )
    yield NamedRequest(
        "DescribeLogDirs",
        ApiKey.DESCRIBE_LOG_DIRS,
        5,
        {"topics": _each((SEEN, HIDDEN, ABSENT), "topic", partitions=[0])},
    )


def _configs() -> Iterator[NamedRequest]:
    yield NamedRequest("ListConfigResources", ApiKey.LIST_CONFIG_RESOURCES, 1, {"resource_types": [2, 4, 16, 32]})
    yield NamedRequest("DescribeClientQuotas", ApiKey.DESCRIBE_CLIENT_QUOTAS, 1, {"components": [], "strict": False})
    yield NamedRequest(
        "DescribeUserScramCredentials", ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, {"users": [{"name": "nobody"}]}
    )


def _cluster() -> Iterator[NamedRequest]:
    # A renewer that is no user: no token is created, whoever asks.
    for owner in (None, ADMIN):
        fields = {
            "owner_principal_type": owner and "User",
            "owner_principal_name": owner,
            "renewers": [{"principal_type": "Group", "principal_name": "a"}],
            "max_lifetime": -1,
        }
        yield NamedRequest(f"CreateDelegationToken of {owner}", ApiKey.CREATE_DELEGATION_TOKEN, 3, fields)
    unknown = {"hmac": b"unknown"}
    yield NamedRequest("RenewDelegationToken", ApiKey.RENEW_DELEGATION_TOKEN, 2, {**unknown, "renew_period": -1})
    yield NamedRequest(
        "ExpireDelegationToken", ApiKey.EXPIRE_DELEGATION_TOKEN, 2, {**unknown, "expiry_time_period": -1}
    )
    yield NamedRequest("DescribeDelegationToken", ApiKey.DESCRIBE_DELEGATION_TOKEN, 3, {"owners": None})
    yield NamedRequest("SaslHandshake", ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})


def _by_both_listeners() -> Iterator[NamedRequest]:
    for listener, ending in ((BROKER, ""), (CONTROLLER, " at a controller")):
        for name, api, version, fields in _administration(listener):
            yield NamedRequest(name + ending, api, version, fields, listener)


def _administration(listener: str) -> Iterator[tuple[str, ApiKey, int, dict[str, Any]]]:
    topics = (SEEN, HIDDEN, ABSENT, NOWHERE, "__cluster_metadata", "bad name")
    for name in topics:
        wanted = [{"name": name, "num_partitions": 1, "replication_factor": 1}]
        yield (
            f"CreateTopics {name}",
            ApiKey.CREATE_TOPICS,
            7,
            {"topics": wanted, "timeout": 10_000, "validate_only": True},
        )
    twice = [{"name": ABSENT, "num_partitions": 1, "replication_factor": 1}] * 2
    yield (
        *("CreateTopics twice", ApiKey.CREATE_TOPICS, 7),
        {"topics": twice, "timeout": 10_000, "validate_only": True},
    )
    yield (
        *("CreatePartitions", ApiKey.CREATE_PARTITIONS, 3),
        {"topics": _each(_TOPICS, "name", count=1), "timeout": 10_000, "validate_only": True},
    )
    resources = [
        *((2, name, "retention.ms") for name in _TOPICS),
        *((32, name, "consumer.session.timeout.ms") for name in (SEEN, HIDDEN)),
        *((4, name, "message.max.bytes") for name in ("1", "")),
        (8, "1", "root"),
        (16, "metrics", "interval.ms"),
    ]
    for kind, name, key in resources:
        title = f"{kind} {name}"
        asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": [key]}]
        yield f"DescribeConfigs {title}", ApiKey.DESCRIBE_CONFIGS, 4, {"resources": asked}
        value = "INFO" if kind == 8 else "60000000"
        change = {"name": key, "value": value}
        resource = {"resource_type": kind, "resource_name": name}
        if kind != 8:
            fields = {"resources": [{**resource, "configs": [change]}], "validate_only": True}
            yield f"AlterConfigs {title}", ApiKey.ALTER_CONFIGS, 2, fields
        fields = {"resources": [{**resource, "configs": [{**change, "config_operation": 0}]}], "validate_only": True}
        yield f"IncrementalAlterConfigs {title}", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, fields
    wrong = [{"resource_type": 4, "resource_name": "1", "configs": [{"name": "message.max.bytes", "value": "x"}]}]
    yield "AlterConfigs with an error", ApiKey.ALTER_CONFIGS, 2, {"resources": wrong, "validate_only": True}
    yield (
        *("IncrementalAlterConfigs with an error", ApiKey.INCREMENTAL_ALTER_CONFIGS, 1),
        {"resources": wrong, "validate_only": True},
    )
    partitions = _each((SEEN, HIDDEN, ABSENT), "topic", partitions=[0])
    yield (
        *("ElectLeaders", ApiKey.ELECT_LEADERS, 2),
        {"election_type": 0, "topic_partitions": partitions, "timeout": 10_000},
    )
    moved = _each((SEEN, HIDDEN, ABSENT), "name", partitions=[{"partition_index": 0, "replicas": None}])
    yield (
        *("AlterPartitionReassignments", ApiKey.ALTER_PARTITION_REASSIGNMENTS, 1),
        {"topics": moved, "timeout": 10_000},
    )
    yield "ListPartitionReassignments", ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"topics": None}
    filters = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    nobody = {**filters, "principal_filter": "User:nobody"}
    yield "DescribeAcls", ApiKey.DESCRIBE_ACLS, 3, nobody
    yield "DeleteAcls", ApiKey.DELETE_ACLS, 3, {"filters": [nobody, nobody]}
    bad = {"resource_type": 2, "resource_name": "", "principal": "User:nobody", "operation": 3, "permission_type": 3}
    yield "CreateAcls", ApiKey.CREATE_ACLS, 3, {"creations": [bad, bad]}
    deletion = {"deletions": [{"name": "nobody", "mechanism": 1}]}
    yield "AlterUserScramCredentials", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, deletion
    quotas = {"entity": [{"entity_type": "user", "entity_name": ""}], "ops": []}
    yield "AlterClientQuotas", ApiKey.ALTER_CLIENT_QUOTAS, 1, {"entries": [quotas], "validate_only": True}
    quorum = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    yield "DescribeQuorum", ApiKey.DESCRIBE_QUORUM, 2, {"topics": quorum}
    feature = {"feature": "no.such", "max_version_level": 1}
    yield (
        *("UpdateFeatures", ApiKey.UPDATE_FEATURES, 2),
        {"feature_updates": [feature], "validate_only": True, "timeout": 10_000},
    )
    asked_type = 1 if listener == BROKER else 2
    yield (
        *("DescribeCluster", ApiKey.DESCRIBE_CLUSTER, 2),
        {"include_cluster_authorized_operations": True, "endpoint_type": asked_type},
    )
    yield "UnregisterBroker", ApiKey.UNREGISTER_BROKER, 0, {"broker_id": 999}
    voter = {"cluster_id": _CLUSTER_OF_OTHERS, "voter_id": 999, "voter_directory_id": UNKNOWN_ID}
    endpoint = {"name": "CONTROLLER", "host": "127.0.0.1", "port": 1}
    yield "AddRaftVoter", ApiKey.ADD_RAFT_VOTER, 1, {**voter, "timeout": 1_000, "listeners": [endpoint]}
    yield "RemoveRaftVoter", ApiKey.REMOVE_RAFT_VOTER, 0, voter


def _of_controllers() -> Iterator[NamedRequest]:
    """Of brokers and other controllers: from another cluster, or from a broker that does not exist."""

    def of(name: str, api: ApiKey, version: int, **fields: Any) -> NamedRequest:
        return NamedRequest(f"{name} at a controller", api, version, fields, CONTROLLER)

    foreign = {"cluster_id": _CLUSTER_OF_OTHERS}
    stranger = {"broker_id": 999, "broker_epoch": 5}
    for number, names in enumerate(((SEEN,), (HIDDEN,), (ABSENT,))):
        yield NamedRequest(
            f"DeleteTopics {names[0]} at a controller",
            ApiKey.DELETE_TOPICS,
            6,
            {"topics": _each(names, "name", topic_id=None), "timeout": 10_000},
            CONTROLLER,
            changes=number < 2,
        )
    voted = {"partition_index": 0, "replica_epoch": 1, "replica_id": 999, "last_offset_epoch": 1, "last_offset": 1}
    topic = [{"topic_name": "__cluster_metadata", "partitions": [voted]}]
    yield of("Vote", ApiKey.VOTE, 2, topics=topic, **foreign)
    begun = [{"partition_index": 0, "leader_id": 999, "leader_epoch": 1, "voter_directory_id": UNKNOWN_ID}]
    topic = [{"topic_name": "__cluster_metadata", "partitions": begun}]
    yield of("BeginQuorumEpoch", ApiKey.BEGIN_QUORUM_EPOCH, 1, topics=topic, **foreign)
    ended = [{"partition_index": 0, "leader_id": 999, "leader_epoch": 1}]
    topic = [{"topic_name": "__cluster_metadata", "partitions": ended}]
    yield of("EndQuorumEpoch", ApiKey.END_QUORUM_EPOCH, 1, topics=topic, **foreign)
    fetched = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}]
    metadata_id = UUID(int=1)
    topic = [{"topic_id": metadata_id, "partitions": fetched}]
    yield of("Fetch", ApiKey.FETCH, 17, topics=topic, replica_state={"replica_id": 999}, **foreign)
    part = {"partition": 0, "current_leader_epoch": 1, "snapshot_id": {"end_offset": 1, "epoch": 1}, "position": 0}
    topic = [{"name": "__cluster_metadata", "partitions": [part]}]
    yield of("FetchSnapshot", ApiKey.FETCH_SNAPSHOT, 1, topics=topic, **foreign)
    yield of("UpdateRaftVoter", ApiKey.UPDATE_RAFT_VOTER, 0, voter_id=999, voter_directory_id=UNKNOWN_ID, **foreign)
    yield of(
        "Envelope",
        ApiKey.ENVELOPE,
        0,
        request_data=b"",
        request_principal=None,
        client_host_address=bytes((127, 0, 0, 1)),
    )
    yield of("AlterPartition", ApiKey.ALTER_PARTITION, 3, topics=[], **stranger)
    yield of("BrokerRegistration", ApiKey.BROKER_REGISTRATION, 4, broker_id=999, incarnation_id=UNKNOWN_ID, **foreign)
    yield of("BrokerHeartbeat", ApiKey.BROKER_HEARTBEAT, 2, current_metadata_offset=1, **stranger)
    yield of("AllocateProducerIds", ApiKey.ALLOCATE_PRODUCER_IDS, 0, **stranger)
    yield of("AssignReplicasToDirs", ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, directories=[], **stranger)
    yield of("ControllerRegistration", ApiKey.CONTROLLER_REGISTRATION, 0, controller_id=999, incarnation_id=UNKNOWN_ID)
