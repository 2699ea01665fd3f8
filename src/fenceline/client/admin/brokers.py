"""Broker calls of Admin: DescribeCluster, UnregisterBroker and DescribeLogDirs.

Rules: controller.md C19; since_4_0.md K4 (KIP-1073: fenced brokers).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import ConnectionLost, TimedOut, error_code, raise_if
from fenceline.errors import ErrorCode, OperatorError
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey


class RegisteredBroker(NamedTuple):
    """`is_fenced` is None if the broker that answered is too old to return it; it only lists unfenced brokers."""

    node_id: int
    host: str
    port: int
    rack: str | None
    is_fenced: bool | None


class ReplicaOnDisk(NamedTuple):
    """`offset_lag`: how far its log end is behind the high watermark, or a future replica behind the current one."""

    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDirDescription(NamedTuple):
    """One log directory; total_bytes and usable_bytes of its volume are -1 if the broker does not return them."""

    path: str
    error: ErrorCode
    total_bytes: int
    usable_bytes: int
    is_cordoned: bool
    replicas: Mapping[TopicPartition, ReplicaOnDisk]


class BrokersAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def describe_brokers(self, *, timeout_ms: float | None = None) -> list[RegisteredBroker]:
        """All registered brokers by id, including fenced ones, with the endpoints of the listener that is used."""
        if self.config.asks_controllers:
            raise OperatorError("Controllers do not list brokers", "Connect to a broker: --bootstrap HOST:PORT.")
        deadline = self._deadline(timeout_ms)
        await self.cluster.fetch_metadata([], deadline)
        fields = {"include_cluster_authorized_operations": False, "endpoint_type": 1, "include_fenced_brokers": True}
        response = await self._ask(None, ApiKey.DESCRIBE_CLUSTER, fields, deadline)
        raise_if(response, "describing the cluster")
        return sorted(
            RegisteredBroker(
                int(each.broker_id), each.host, int(each.port), each.rack, getattr(each, "is_fenced", None)
            )
            for each in response.brokers
        )

    async def unregister_broker(self, broker_id: int, *, timeout_ms: float | None = None) -> None:
        """Unregister a broker that was removed permanently; its replicas stay assigned to it until they are reassigned.

        Raises PeerError(BROKER_ID_NOT_REGISTERED).
        """
        deadline = self._deadline(timeout_ms)
        response = await self._ask_controller(
            ApiKey.UNREGISTER_BROKER, {"broker_id": broker_id}, deadline, lambda r: (r,)
        )
        raise_if(response, f"unregistering broker {broker_id}")

    async def describe_log_dirs(
        self, broker_ids: Collection[int] | None = None, *, timeout_ms: float | None = None
    ) -> dict[int, tuple[LogDirDescription, ...]]:
        """The log directories of each broker (None: of all unfenced brokers) with their replicas.

        Raises OperatorError for a broker that is unknown or does not answer, PeerError if one returns an error.
        """
        if self.config.asks_controllers:
            raise OperatorError(
                "Controllers do not describe log directories", "Connect to a broker: --bootstrap HOST:PORT."
            )
        deadline = self._deadline(timeout_ms)
        known = (await self.cluster.fetch_metadata([], deadline)).brokers
        described = {}
        for broker_id in sorted(known if broker_ids is None else broker_ids):
            if broker_id not in known:
                raise OperatorError(
                    f"Broker {broker_id} is not in the cluster", "List the registered brokers: fenceline brokers list"
                )
            try:
                response = await self.cluster.call(
                    broker_id, ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, deadline=deadline
                )
            except (ConnectionLost, TimedOut) as error:
                raise OperatorError(
                    f"Broker {broker_id} did not answer: {error}", "Leave it out by naming the other brokers."
                ) from error
            if hasattr(response, "error_code"):
                raise_if(response, f"describing the directories of broker {broker_id}")
            described[broker_id] = tuple(_directory(result) for result in response.results)
        return described


def _directory(result: Any) -> LogDirDescription:
    return LogDirDescription(
        str(result.log_dir),
        error_code(result.error_code),
        int(getattr(result, "total_bytes", -1)),
        int(getattr(result, "usable_bytes", -1)),
        bool(getattr(result, "is_cordoned", False)),
        {
            TopicPartition(str(topic.name), int(each.partition_index)): ReplicaOnDisk(
                int(each.partition_size), int(each.offset_lag), bool(each.is_future_key)
            )
            for topic in result.topics
            for each in topic.partitions
        },
    )
