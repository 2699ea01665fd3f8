"""The rights that each API asks about: the only place that says so. A handler without a row does not start.

`PERMISSIONS` is for brokers, and for controllers except the rows of `CONTROLLER_PERMISSIONS`. The order of the rows is
that of the keys. `docs/security.md` has the table for readers, generated from this one (`tests/node/api/permissions`).

Rules: security.md A53 to A55.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fenceline.node.api.permissions import cluster, configs, groups, topics, transactions
from fenceline.node.api.permissions.checks import Row
from fenceline.node.api.permissions.cluster import needs_on_cluster
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey

READ_TOPIC: Final = (AclOperation.READ, ResourceType.TOPIC)
WRITE_TOPIC: Final = (AclOperation.WRITE, ResourceType.TOPIC)
CREATE_TOPIC: Final = (AclOperation.CREATE, ResourceType.TOPIC)
DELETE_TOPIC: Final = (AclOperation.DELETE, ResourceType.TOPIC)
ALTER_TOPIC: Final = (AclOperation.ALTER, ResourceType.TOPIC)
DESCRIBE_TOPIC: Final = (AclOperation.DESCRIBE, ResourceType.TOPIC)
READ_GROUP: Final = (AclOperation.READ, ResourceType.GROUP)
DELETE_GROUP: Final = (AclOperation.DELETE, ResourceType.GROUP)
DESCRIBE_GROUP: Final = (AclOperation.DESCRIBE, ResourceType.GROUP)
WRITE_TRANSACTION: Final = (AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)
DESCRIBE_TRANSACTION: Final = (AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID)
TWO_PHASE_COMMIT: Final = (AclOperation.TWO_PHASE_COMMIT, ResourceType.TRANSACTIONAL_ID)
CREATE_ON_CLUSTER: Final = (AclOperation.CREATE, ResourceType.CLUSTER)
DELETE_ON_CLUSTER: Final = (AclOperation.DELETE, ResourceType.CLUSTER)
ALTER_ON_CLUSTER: Final = (AclOperation.ALTER, ResourceType.CLUSTER)
DESCRIBE_ON_CLUSTER: Final = (AclOperation.DESCRIBE, ResourceType.CLUSTER)
CLUSTER_ACTION: Final = (AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)
IDEMPOTENT_WRITE: Final = (AclOperation.IDEMPOTENT_WRITE, ResourceType.CLUSTER)
DESCRIBE_CONFIGS: Final = tuple(
    (AclOperation.DESCRIBE_CONFIGS, each) for each in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
)
ALTER_CONFIGS: Final = tuple(
    (AclOperation.ALTER_CONFIGS, each) for each in (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
)
EVERYBODY: Final = Row(())

PERMISSIONS: Final[Mapping[ApiKey, Row]] = {
    ApiKey.PRODUCE: Row((WRITE_TOPIC, WRITE_TRANSACTION)),
    ApiKey.FETCH: Row((READ_TOPIC, CLUSTER_ACTION)),
    ApiKey.LIST_OFFSETS: Row((DESCRIBE_TOPIC,), topics.list_offsets),
    ApiKey.METADATA: Row((DESCRIBE_TOPIC, CREATE_ON_CLUSTER, CREATE_TOPIC)),
    ApiKey.OFFSET_COMMIT: Row((READ_GROUP, READ_TOPIC), groups.offset_commit),
    ApiKey.OFFSET_FETCH: Row((DESCRIBE_GROUP, DESCRIBE_TOPIC), groups.offset_fetch),
    ApiKey.FIND_COORDINATOR: Row((DESCRIBE_GROUP, DESCRIBE_TRANSACTION), groups.find_coordinator),
    ApiKey.JOIN_GROUP: Row((READ_GROUP,), groups.join_group),
    ApiKey.HEARTBEAT: Row((READ_GROUP,), groups.HEARTBEAT),
    ApiKey.LEAVE_GROUP: Row((READ_GROUP,), groups.LEAVE_GROUP),
    ApiKey.SYNC_GROUP: Row((READ_GROUP,), groups.sync_group),
    ApiKey.DESCRIBE_GROUPS: Row((DESCRIBE_GROUP,), groups.describe_groups),
    ApiKey.LIST_GROUPS: Row((DESCRIBE_ON_CLUSTER, DESCRIBE_GROUP), groups.list_groups),
    ApiKey.SASL_HANDSHAKE: EVERYBODY,
    ApiKey.API_VERSIONS: EVERYBODY,
    ApiKey.CREATE_TOPICS: Row(
        (CREATE_ON_CLUSTER, CREATE_TOPIC, (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC)), topics.create_topics
    ),
    ApiKey.DELETE_TOPICS: Row((DELETE_ON_CLUSTER, DELETE_TOPIC, DESCRIBE_TOPIC), topics.delete_topics),
    ApiKey.DELETE_RECORDS: Row((DELETE_TOPIC,), topics.delete_records),
    ApiKey.INIT_PRODUCER_ID: Row(
        (WRITE_TRANSACTION, TWO_PHASE_COMMIT, IDEMPOTENT_WRITE, WRITE_TOPIC), transactions.init_producer_id
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Row((CLUSTER_ACTION, DESCRIBE_TOPIC), topics.offset_for_leader_epoch),
    ApiKey.ADD_PARTITIONS_TO_TXN: Row(
        (CLUSTER_ACTION, WRITE_TRANSACTION, WRITE_TOPIC), transactions.add_partitions_to_txn
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Row((WRITE_TRANSACTION, READ_GROUP), transactions.add_offsets_to_txn),
    ApiKey.END_TXN: Row((WRITE_TRANSACTION,), transactions.end_txn),
    ApiKey.WRITE_TXN_MARKERS: Row((ALTER_ON_CLUSTER, CLUSTER_ACTION), transactions.write_txn_markers),
    ApiKey.TXN_OFFSET_COMMIT: Row((WRITE_TRANSACTION, READ_GROUP, READ_TOPIC), groups.txn_offset_commit),
    ApiKey.DESCRIBE_ACLS: needs_on_cluster(ApiKey.DESCRIBE_ACLS, AclOperation.DESCRIBE),
    ApiKey.CREATE_ACLS: needs_on_cluster(ApiKey.CREATE_ACLS, AclOperation.ALTER),
    ApiKey.DELETE_ACLS: needs_on_cluster(ApiKey.DELETE_ACLS, AclOperation.ALTER),
    ApiKey.DESCRIBE_CONFIGS: Row(DESCRIBE_CONFIGS, configs.describe_configs),
    ApiKey.ALTER_CONFIGS: Row(ALTER_CONFIGS, configs.alter_configs),
    ApiKey.ALTER_REPLICA_LOG_DIRS: needs_on_cluster(ApiKey.ALTER_REPLICA_LOG_DIRS, AclOperation.ALTER),
    ApiKey.DESCRIBE_LOG_DIRS: needs_on_cluster(ApiKey.DESCRIBE_LOG_DIRS, AclOperation.DESCRIBE),
    ApiKey.SASL_AUTHENTICATE: EVERYBODY,
    ApiKey.CREATE_PARTITIONS: Row((ALTER_TOPIC,), topics.create_partitions),
    ApiKey.CREATE_DELEGATION_TOKEN: Row(((AclOperation.CREATE_TOKENS, ResourceType.USER),)),
    ApiKey.RENEW_DELEGATION_TOKEN: EVERYBODY,
    ApiKey.EXPIRE_DELEGATION_TOKEN: EVERYBODY,
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Row(
        (
            (AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
            (AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
        )
    ),
    ApiKey.DELETE_GROUPS: Row((DELETE_GROUP,), groups.delete_groups),
    ApiKey.ELECT_LEADERS: needs_on_cluster(ApiKey.ELECT_LEADERS, AclOperation.ALTER),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row(ALTER_CONFIGS, configs.alter_configs),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: needs_on_cluster(ApiKey.ALTER_PARTITION_REASSIGNMENTS, AclOperation.ALTER),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: needs_on_cluster(ApiKey.LIST_PARTITION_REASSIGNMENTS, AclOperation.DESCRIBE),
    ApiKey.OFFSET_DELETE: Row((DELETE_GROUP, READ_TOPIC), groups.offset_delete),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: needs_on_cluster(ApiKey.DESCRIBE_CLIENT_QUOTAS, AclOperation.DESCRIBE_CONFIGS),
    ApiKey.ALTER_CLIENT_QUOTAS: needs_on_cluster(ApiKey.ALTER_CLIENT_QUOTAS, AclOperation.ALTER_CONFIGS),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: needs_on_cluster(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, AclOperation.DESCRIBE
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: needs_on_cluster(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AclOperation.ALTER),
    ApiKey.VOTE: needs_on_cluster(ApiKey.VOTE, AclOperation.CLUSTER_ACTION),
    ApiKey.BEGIN_QUORUM_EPOCH: needs_on_cluster(ApiKey.BEGIN_QUORUM_EPOCH, AclOperation.CLUSTER_ACTION),
    ApiKey.END_QUORUM_EPOCH: needs_on_cluster(ApiKey.END_QUORUM_EPOCH, AclOperation.CLUSTER_ACTION),
    ApiKey.DESCRIBE_QUORUM: needs_on_cluster(ApiKey.DESCRIBE_QUORUM, AclOperation.DESCRIBE),
    ApiKey.ALTER_PARTITION: needs_on_cluster(ApiKey.ALTER_PARTITION, AclOperation.CLUSTER_ACTION),
    ApiKey.UPDATE_FEATURES: needs_on_cluster(ApiKey.UPDATE_FEATURES, AclOperation.ALTER),
    ApiKey.ENVELOPE: needs_on_cluster(ApiKey.ENVELOPE, AclOperation.CLUSTER_ACTION),
    ApiKey.FETCH_SNAPSHOT: needs_on_cluster(ApiKey.FETCH_SNAPSHOT, AclOperation.CLUSTER_ACTION),
    ApiKey.DESCRIBE_CLUSTER: Row((DESCRIBE_ON_CLUSTER,), cluster.describe_cluster),
    ApiKey.DESCRIBE_PRODUCERS: Row((READ_TOPIC,), topics.describe_producers),
    ApiKey.BROKER_REGISTRATION: needs_on_cluster(ApiKey.BROKER_REGISTRATION, AclOperation.CLUSTER_ACTION),
    ApiKey.BROKER_HEARTBEAT: needs_on_cluster(ApiKey.BROKER_HEARTBEAT, AclOperation.CLUSTER_ACTION),
    ApiKey.UNREGISTER_BROKER: needs_on_cluster(ApiKey.UNREGISTER_BROKER, AclOperation.ALTER),
    ApiKey.DESCRIBE_TRANSACTIONS: Row((DESCRIBE_TRANSACTION, DESCRIBE_TOPIC), transactions.describe_transactions),
    ApiKey.LIST_TRANSACTIONS: Row((DESCRIBE_TRANSACTION,), transactions.list_transactions),
    ApiKey.ALLOCATE_PRODUCER_IDS: needs_on_cluster(ApiKey.ALLOCATE_PRODUCER_IDS, AclOperation.CLUSTER_ACTION),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: Row((READ_GROUP, DESCRIBE_TOPIC), groups.consumer_group_heartbeat),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Row((DESCRIBE_GROUP, DESCRIBE_TOPIC), groups.consumer_group_describe),
    ApiKey.CONTROLLER_REGISTRATION: needs_on_cluster(ApiKey.CONTROLLER_REGISTRATION, AclOperation.CLUSTER_ACTION),
    ApiKey.ASSIGN_REPLICAS_TO_DIRS: needs_on_cluster(ApiKey.ASSIGN_REPLICAS_TO_DIRS, AclOperation.CLUSTER_ACTION),
    ApiKey.LIST_CONFIG_RESOURCES: needs_on_cluster(ApiKey.LIST_CONFIG_RESOURCES, AclOperation.DESCRIBE_CONFIGS),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Row((DESCRIBE_TOPIC,)),
    ApiKey.ADD_RAFT_VOTER: needs_on_cluster(ApiKey.ADD_RAFT_VOTER, AclOperation.ALTER),
    ApiKey.REMOVE_RAFT_VOTER: needs_on_cluster(ApiKey.REMOVE_RAFT_VOTER, AclOperation.ALTER),
    ApiKey.UPDATE_RAFT_VOTER: needs_on_cluster(ApiKey.UPDATE_RAFT_VOTER, AclOperation.CLUSTER_ACTION),
}

CONTROLLER_PERMISSIONS: Final[Mapping[ApiKey, Row]] = {
    ApiKey.FETCH: needs_on_cluster(ApiKey.FETCH, AclOperation.CLUSTER_ACTION),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Row((*ALTER_CONFIGS, CLUSTER_ACTION), configs.controller_alter_configs),
    ApiKey.DESCRIBE_CLUSTER: Row((ALTER_ON_CLUSTER, DESCRIBE_ON_CLUSTER), cluster.describe_controllers),
}
"""Rows of the controllers' listener that differ."""
