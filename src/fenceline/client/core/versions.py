"""The API versions that the client supports, and their negotiation with a broker.

Owns the table. The lowest versions are those of Kafka 2.1; the highest are the newest that the client implements
(OffsetCommit 10 and OffsetFetch 10 name topics by id only, and some brokers have no topic ids; AddPartitionsToTxn 4 and
newer are for brokers).
"""

from __future__ import annotations

from functools import cache
from typing import Final

from fenceline.client.core.errors import broker_error
from fenceline.errors import ErrorCode
from fenceline.wire.apis import ApiKey

SUPPORTED: Final[dict[ApiKey, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 18),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (4, 13),
    ApiKey.OFFSET_COMMIT: (2, 9),
    ApiKey.OFFSET_FETCH: (1, 9),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (2, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (0, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (1, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
}


def negotiate(api_key: ApiKey, offered: tuple[int, int] | None, peer: str) -> int:
    """The newest version that both sides support. Raises PeerError(UNSUPPORTED_VERSION) if there is none."""
    ours = SUPPORTED[api_key]
    if offered is not None:
        version = min(ours[1], offered[1])
        if version >= max(ours[0], offered[0]):
            return version
    theirs = "does not support" if offered is None else f"supports versions {offered[0]} to {offered[1]} of"
    raise broker_error(
        ErrorCode.UNSUPPORTED_VERSION,
        f"{peer} {theirs} {api_key.name}; this client supports versions {ours[0]} to {ours[1]}",
    )


@cache
def client_software() -> tuple[str, str]:
    """Software name and version as sent in ApiVersions."""
    from fenceline import __version__

    return "fenceline", __version__
