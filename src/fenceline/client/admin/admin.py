"""Admin: the blocking API of `AsyncAdmin`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fenceline.client.admin.async_admin import AsyncAdmin, ConfigEntry, NewTopic
from fenceline.client.core.client_base import BlockingClient, blocking


class Admin(BlockingClient[AsyncAdmin]):
    """The calls of `AsyncAdmin`, blocking, from any thread. Close it, or use it as a context manager."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__("fenceline-admin", lambda: AsyncAdmin(bootstrap, **config))

    metadata = blocking(AsyncAdmin.metadata)
    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    create_topics = blocking(AsyncAdmin.create_topics)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)
    list_offsets = blocking(AsyncAdmin.list_offsets)
    offset_bounds = blocking(AsyncAdmin.offset_bounds)
    offsets_for_leader_epoch = blocking(AsyncAdmin.offsets_for_leader_epoch)
    delete_records = blocking(AsyncAdmin.delete_records)
    describe_producers = blocking(AsyncAdmin.describe_producers)
    describe_configs = blocking(AsyncAdmin.describe_configs)
    alter_configs = blocking(AsyncAdmin.alter_configs)
    list_groups = blocking(AsyncAdmin.list_groups)
    describe_groups = blocking(AsyncAdmin.describe_groups)
    delete_groups = blocking(AsyncAdmin.delete_groups)
    list_group_offsets = blocking(AsyncAdmin.list_group_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)
    list_transactions = blocking(AsyncAdmin.list_transactions)
    describe_transactions = blocking(AsyncAdmin.describe_transactions)
    fence_producer = blocking(AsyncAdmin.fence_producer)
    abort_in_partition = blocking(AsyncAdmin.abort_in_partition)
    describe_quorum = blocking(AsyncAdmin.describe_quorum)
    add_raft_voter = blocking(AsyncAdmin.add_raft_voter)
    remove_raft_voter = blocking(AsyncAdmin.remove_raft_voter)
    directory_of_voter = blocking(AsyncAdmin.directory_of_voter)
    describe_features = blocking(AsyncAdmin.describe_features)
    update_features = blocking(AsyncAdmin.update_features)
    describe_brokers = blocking(AsyncAdmin.describe_brokers)
    unregister_broker = blocking(AsyncAdmin.unregister_broker)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)
    describe_replicas = blocking(AsyncAdmin.describe_replicas)
    describe_acls = blocking(AsyncAdmin.describe_acls)
    create_acls = blocking(AsyncAdmin.create_acls)
    delete_acls = blocking(AsyncAdmin.delete_acls)
    create_delegation_token = blocking(AsyncAdmin.create_delegation_token)
    renew_delegation_token = blocking(AsyncAdmin.renew_delegation_token)
    expire_delegation_token = blocking(AsyncAdmin.expire_delegation_token)
    describe_delegation_tokens = blocking(AsyncAdmin.describe_delegation_tokens)
    describe_client_quotas = blocking(AsyncAdmin.describe_client_quotas)
    alter_client_quotas = blocking(AsyncAdmin.alter_client_quotas)
    remove_members = blocking(AsyncAdmin.remove_members)
    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    reassign_partitions = blocking(AsyncAdmin.reassign_partitions)
    list_reassignments = blocking(AsyncAdmin.list_reassignments)


__all__ = ["Admin", "AsyncAdmin", "ConfigEntry", "NewTopic"]
