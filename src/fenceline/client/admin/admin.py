"""Admin: the blocking API of `AsyncAdmin`."""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from fenceline.client.admin.async_admin import (
    AsyncAdmin,
    ClusterDescription,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    NewTopic,
    ProducerDescription,
)
from fenceline.client.admin.brokers import LogDirDescription, RegisteredBroker
from fenceline.client.admin.groups import GroupDescription, GroupListing
from fenceline.client.admin.quorum import Change, Endpoint, NodeFeatures, QuorumDescription
from fenceline.client.admin.replicas import ReplicaStates
from fenceline.client.core.client_base import BlockingClient
from fenceline.client.core.metadata import ClusterMetadata
from fenceline.client.core.offsets import CommittedOffset, EpochEnd, OffsetAndEpoch, OffsetSpec
from fenceline.ids import TopicPartition

T = TypeVar("T")


class Admin(BlockingClient[AsyncAdmin]):
    """The calls of `AsyncAdmin`, blocking, from any thread. Close it, or use it as a context manager."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__("fenceline-admin", lambda: AsyncAdmin(bootstrap, **config))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop_thread.run(work)

    def metadata(self, topics: Collection[str] | None = None, *, timeout_ms: float | None = None) -> ClusterMetadata:
        """See `AsyncAdmin.metadata`."""
        return self._run(self._async.metadata(topics, timeout_ms=timeout_ms))

    def describe_cluster(self, *, timeout_ms: float | None = None) -> ClusterDescription:
        return self._run(self._async.describe_cluster(timeout_ms=timeout_ms))

    def create_topics(
        self, topics: Sequence[NewTopic | str], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[str, CreatedTopic]:
        """See `AsyncAdmin.create_topics`."""
        return self._run(self._async.create_topics(topics, validate_only=validate_only, timeout_ms=timeout_ms))

    def delete_topics(self, topics: Sequence[str], *, timeout_ms: float | None = None) -> None:
        """See `AsyncAdmin.delete_topics`."""
        self._run(self._async.delete_topics(topics, timeout_ms=timeout_ms))

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> None:
        """See `AsyncAdmin.create_partitions`."""
        self._run(self._async.create_partitions(counts, validate_only=validate_only, timeout_ms=timeout_ms))

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """See `AsyncAdmin.list_offsets`."""
        return self._run(self._async.list_offsets(wanted, isolation_level=isolation_level, timeout_ms=timeout_ms))

    def offsets_for_leader_epoch(
        self, wanted: Mapping[TopicPartition, tuple[int, int] | int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """See `AsyncAdmin.offsets_for_leader_epoch`."""
        return self._run(self._async.offsets_for_leader_epoch(wanted, timeout_ms=timeout_ms))

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """See `AsyncAdmin.delete_records`."""
        return self._run(self._async.delete_records(before, timeout_ms=timeout_ms))

    def describe_producers(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        return self._run(self._async.describe_producers(partitions, timeout_ms=timeout_ms))

    def describe_configs(
        self, resources: Sequence[ConfigResource], *, include_synonyms: bool = False, timeout_ms: float | None = None
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """See `AsyncAdmin.describe_configs`."""
        return self._run(
            self._async.describe_configs(resources, include_synonyms=include_synonyms, timeout_ms=timeout_ms)
        )

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | tuple[str, str | None] | None]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """See `AsyncAdmin.alter_configs`."""
        self._run(self._async.alter_configs(changes, validate_only=validate_only, timeout_ms=timeout_ms))

    def list_groups(self, *, states: Sequence[str] = (), timeout_ms: float | None = None) -> list[GroupListing]:
        """See `AsyncAdmin.list_groups`."""
        return self._run(self._async.list_groups(states=states, timeout_ms=timeout_ms))

    def describe_groups(
        self, group_ids: Sequence[str], *, timeout_ms: float | None = None
    ) -> dict[str, GroupDescription]:
        """See `AsyncAdmin.describe_groups`."""
        return self._run(self._async.describe_groups(group_ids, timeout_ms=timeout_ms))

    def delete_groups(self, group_ids: Sequence[str], *, timeout_ms: float | None = None) -> None:
        """See `AsyncAdmin.delete_groups`."""
        self._run(self._async.delete_groups(group_ids, timeout_ms=timeout_ms))

    def list_group_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition] | None = None,
        *,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """See `AsyncAdmin.list_group_offsets`."""
        return self._run(self._async.list_group_offsets(group_id, partitions, timeout_ms=timeout_ms))

    def alter_group_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset | int],
        *,
        timeout_ms: float | None = None,
    ) -> None:
        """See `AsyncAdmin.alter_group_offsets`."""
        self._run(self._async.alter_group_offsets(group_id, offsets, timeout_ms=timeout_ms))

    def delete_group_offsets(
        self, group_id: str, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> None:
        """See `AsyncAdmin.delete_group_offsets`."""
        self._run(self._async.delete_group_offsets(group_id, partitions, timeout_ms=timeout_ms))

    def describe_quorum(self, *, timeout_ms: float | None = None) -> QuorumDescription:
        """See `AsyncAdmin.describe_quorum`."""
        return self._run(self._async.describe_quorum(timeout_ms=timeout_ms))

    def add_raft_voter(
        self,
        voter_id: int,
        directory_id: UUID,
        endpoints: Sequence[Endpoint],
        *,
        cluster_id: str | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """See `AsyncAdmin.add_raft_voter`."""
        self._run(
            self._async.add_raft_voter(voter_id, directory_id, endpoints, cluster_id=cluster_id, timeout_ms=timeout_ms)
        )

    def remove_raft_voter(
        self, voter_id: int, directory_id: UUID, *, cluster_id: str | None = None, timeout_ms: float | None = None
    ) -> None:
        """See `AsyncAdmin.remove_raft_voter`."""
        self._run(self._async.remove_raft_voter(voter_id, directory_id, cluster_id=cluster_id, timeout_ms=timeout_ms))

    def directory_of_voter(self, voter_id: int, *, timeout_ms: float | None = None) -> UUID:
        """See `AsyncAdmin.directory_of_voter`."""
        return self._run(self._async.directory_of_voter(voter_id, timeout_ms=timeout_ms))

    def describe_features(self, *, timeout_ms: float | None = None) -> dict[int, NodeFeatures]:
        """See `AsyncAdmin.describe_features`."""
        return self._run(self._async.describe_features(timeout_ms=timeout_ms))

    def update_features(
        self,
        levels: Mapping[str, int],
        *,
        change: Change = "upgrade",
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """See `AsyncAdmin.update_features`."""
        self._run(
            self._async.update_features(levels, change=change, validate_only=validate_only, timeout_ms=timeout_ms)
        )

    def describe_brokers(self, *, timeout_ms: float | None = None) -> list[RegisteredBroker]:
        """See `AsyncAdmin.describe_brokers`."""
        return self._run(self._async.describe_brokers(timeout_ms=timeout_ms))

    def unregister_broker(self, broker_id: int, *, timeout_ms: float | None = None) -> None:
        """See `AsyncAdmin.unregister_broker`."""
        self._run(self._async.unregister_broker(broker_id, timeout_ms=timeout_ms))

    def describe_log_dirs(
        self, broker_ids: Collection[int] | None = None, *, timeout_ms: float | None = None
    ) -> dict[int, tuple[LogDirDescription, ...]]:
        """See `AsyncAdmin.describe_log_dirs`."""
        return self._run(self._async.describe_log_dirs(broker_ids, timeout_ms=timeout_ms))

    def describe_replicas(
        self, topics: Collection[str], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, ReplicaStates]:
        """See `AsyncAdmin.describe_replicas`."""
        return self._run(self._async.describe_replicas(topics, timeout_ms=timeout_ms))


__all__ = ["Admin", "AsyncAdmin", "ConfigEntry", "NewTopic"]
