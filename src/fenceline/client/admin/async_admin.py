"""AsyncAdmin: topics, configurations, offsets, groups and the cluster.

A call for several resources sends one request if the protocol allows it, and raises the first error, with the name of
its resource. Groups are in `admin.groups`, the quorum and features in `admin.quorum`, brokers and their directories in
`admin.brokers`, replicas of partitions in `admin.replicas`, ACLs in `admin.acls`, quotas in `admin.client_quotas`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from fenceline.client.admin.acls import AclsAdmin
from fenceline.client.admin.brokers import BrokersAdmin
from fenceline.client.admin.client_quotas import ClientQuotasAdmin
from fenceline.client.admin.delegation_tokens import DelegationTokensAdmin
from fenceline.client.admin.groups import GroupsAdmin
from fenceline.client.admin.leadership import LeadershipAdmin
from fenceline.client.admin.quorum import QuorumAdmin
from fenceline.client.admin.replicas import ReplicasAdmin
from fenceline.client.admin.transactions import TransactionsAdmin
from fenceline.client.core.config import ClientConfig
from fenceline.client.core.errors import raise_if
from fenceline.client.core.metadata import BrokerAddress, ClusterMetadata
from fenceline.client.core.offset_lookups import list_offsets, offsets_for_leader_epoch
from fenceline.client.core.offsets import EpochEnd, OffsetAndEpoch, OffsetSpec
from fenceline.ids import ZERO_UUID, TopicPartition
from fenceline.wire.apis import ApiKey

T = TypeVar("T")

RESOURCE_TYPES: Final[Mapping[str, int]] = {
    "topic": 2,
    "broker": 4,
    "broker_logger": 8,
    "client_metrics": 16,
    "group": 32,
}
_CONFIG_SOURCES: Final[Mapping[int, str]] = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
    6: "DYNAMIC_BROKER_LOGGER_CONFIG",
    7: "CLIENT_METRICS_CONFIG",
    8: "GROUP_CONFIG",
}
_OPERATIONS: Final[Mapping[str, int]] = {"set": 0, "delete": 1, "append": 2, "subtract": 3}

ConfigResource = tuple[str, str]
"""("topic" | "broker" | "group" | ..., name)."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """-1 means the broker's default. `assignments`: partition -> broker ids, instead of the two counts."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = field(default_factory=dict)
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)


class CreatedTopic(NamedTuple):
    """num_partitions and replication_factor are -1 if the broker is too old to return them."""

    name: str
    id: UUID
    num_partitions: int
    replication_factor: int


class ConfigEntry(NamedTuple):
    """value is None for a sensitive entry."""

    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool
    synonyms: tuple[tuple[str, str | None, str], ...] = ()


class ClusterDescription(NamedTuple):
    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerAddress, ...]


class ProducerDescription(NamedTuple):
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int = -1
    transaction_start_offset: int = -1
    """-1 if no transaction is open in the partition."""


class AsyncAdmin(
    GroupsAdmin,
    TransactionsAdmin,
    QuorumAdmin,
    BrokersAdmin,
    ReplicasAdmin,
    AclsAdmin,
    DelegationTokensAdmin,
    ClientQuotasAdmin,
    LeadershipAdmin,
):
    """Create it inside a running loop; close it with `await close()` or use it as an async context manager."""

    def __init__(self, bootstrap: str | Sequence[str] | Mapping[str, Any] | None = None, **config: Any) -> None:
        super().__init__(ClientConfig.parse("admin", bootstrap, config))

    # -- cluster and topics

    async def metadata(
        self, topics: Collection[str] | None = None, *, timeout_ms: float | None = None
    ) -> ClusterMetadata:
        """Brokers and topics (None: all topics). A topic that does not exist is in the result with its `error`; it is
        not created.
        """
        names = None if topics is None else list(dict.fromkeys(topics))
        return await self.cluster.fetch_metadata(names, self._deadline(timeout_ms))

    async def describe_cluster(self, *, timeout_ms: float | None = None) -> ClusterDescription:
        answer = await self.cluster.fetch_metadata([], self._deadline(timeout_ms))
        return ClusterDescription(answer.cluster_id or "", answer.controller_id, tuple(answer.brokers.values()))

    async def create_topics(
        self,
        topics: Sequence[NewTopic | str],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, CreatedTopic]:
        """Create topics; a name alone means the broker's defaults. Raises PeerError (TOPIC_ALREADY_EXISTS, ...)."""
        wanted = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        deadline = self._deadline(timeout_ms)
        fields = {
            "topics": [
                {
                    "name": topic.name,
                    "num_partitions": -1 if topic.assignments else topic.num_partitions,
                    "replication_factor": -1 if topic.assignments else topic.replication_factor,
                    "assignments": [
                        {"partition_index": index, "broker_ids": list(brokers)}
                        for index, brokers in sorted(topic.assignments.items())
                    ],
                    "configs": [{"name": name, "value": str(value)} for name, value in topic.configs.items()],
                }
                for topic in wanted
            ],
            "timeout": self._broker_timeout_ms(deadline),
            "validate_only": validate_only,
        }
        response = await self._ask_controller(ApiKey.CREATE_TOPICS, fields, deadline, lambda r: r.topics)
        created = {}
        for result in response.topics:
            name = str(result.name)
            raise_if(result, f"creating topic {name}")
            created[name] = CreatedTopic(
                name,
                getattr(result, "topic_id", None) or ZERO_UUID,
                int(getattr(result, "num_partitions", -1)),
                int(getattr(result, "replication_factor", -1)),
            )
        return created

    async def delete_topics(self, topics: Sequence[str], *, timeout_ms: float | None = None) -> None:
        """Delete topics by name. Raises PeerError(UNKNOWN_TOPIC_OR_PARTITION, ...)."""
        deadline = self._deadline(timeout_ms)
        fields = {
            "topics": [{"name": name, "topic_id": None} for name in topics],
            "topic_names": list(topics),
            "timeout": self._broker_timeout_ms(deadline),
        }
        response = await self._ask_controller(ApiKey.DELETE_TOPICS, fields, deadline, lambda r: r.responses)
        for result in response.responses:
            raise_if(result, f"deleting topic {result.name}")

    async def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> None:
        """Increase the partition count of each topic to `counts[topic]`."""
        deadline = self._deadline(timeout_ms)
        fields = {
            "topics": [{"name": name, "count": count, "assignments": None} for name, count in counts.items()],
            "timeout": self._broker_timeout_ms(deadline),
            "validate_only": validate_only,
        }
        response = await self._ask_controller(ApiKey.CREATE_PARTITIONS, fields, deadline, lambda r: r.results)
        for result in response.results:
            raise_if(result, f"creating partitions of topic {result.name}")

    # -- offsets

    async def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Offsets by spec: "earliest", "latest", "max_timestamp" or a time in ms. offset -1: not found."""
        return await list_offsets(
            self.cluster,
            _pairs(wanted),
            deadline=self._deadline(timeout_ms),
            isolation_level=int(isolation_level == "read_committed"),
        )

    async def offset_bounds(
        self,
        partitions: Collection[TopicPartition],
        *,
        isolation_level: str = "read_uncommitted",
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, tuple[OffsetAndEpoch, OffsetAndEpoch]]:
        """Start and readable end of each log, in one round trip to each leader. No start lies above its end."""

        async def look(spec: OffsetSpec) -> dict[TopicPartition, OffsetAndEpoch]:
            return await self.list_offsets(
                dict.fromkeys(partitions, spec), isolation_level=isolation_level, timeout_ms=timeout_ms
            )

        # A leader answers in order, the end last.
        starts, ends = await asyncio.gather(look("earliest"), look("latest"))
        if any(ends[tp].offset < start.offset for tp, start in starts.items()):
            # The start was asked again, or logs have been deleted meanwhile.
            ends = await look("latest")
        return {tp: (start, ends[tp]) for tp, start in starts.items()}

    async def offsets_for_leader_epoch(
        self, wanted: Mapping[TopicPartition, tuple[int, int] | int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, EpochEnd]:
        """Where an epoch ends: partition -> epoch, or (epoch, current leader epoch). (-1, -1) if the leader does not
        know the epoch.

        Raises PeerError(FENCED_LEADER_EPOCH) if a given current epoch is outdated.
        """
        asked = {
            tp: (epochs, -1) if isinstance(epochs, int) else (epochs[0], epochs[1])
            for tp, epochs in _pairs(wanted).items()
        }
        return await offsets_for_leader_epoch(self.cluster, asked, deadline=self._deadline(timeout_ms))

    async def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete records below an offset (-1: below the high watermark). Returns the new log start offsets."""
        deadline = self._deadline(timeout_ms)
        wanted, found = _pairs(before), {}

        async def attempt() -> dict[TopicPartition, int]:
            grouped = await self.cluster.by_leader([tp for tp in wanted if tp not in found], deadline)
            for node_id, partitions in grouped.items():
                by_topic: dict[str, list[dict[str, int]]] = {}
                for tp, _ in partitions:
                    by_topic.setdefault(tp.topic, []).append({"partition_index": tp.partition, "offset": wanted[tp]})
                fields = {
                    "topics": [{"name": name, "partitions": listed} for name, listed in by_topic.items()],
                    "timeout": self._broker_timeout_ms(deadline),
                }
                response = await self.cluster.call(node_id, ApiKey.DELETE_RECORDS, fields, deadline=deadline)
                for topic in response.topics:
                    for result in topic.partitions:
                        tp = TopicPartition(str(topic.name), int(result.partition_index))
                        raise_if(result, f"deleting records of {tp}")
                        found[tp] = int(result.low_watermark)
            return found

        return await self.cluster.retrying(deadline, attempt)

    async def describe_producers(
        self, partitions: Collection[TopicPartition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, tuple[ProducerDescription, ...]]:
        """The active producers of each partition."""
        deadline = self._deadline(timeout_ms)
        found: dict[TopicPartition, tuple[ProducerDescription, ...]] = {}
        for node_id, led in (await self.cluster.by_leader(partitions, deadline)).items():
            by_topic: dict[str, list[int]] = {}
            for tp, _ in led:
                by_topic.setdefault(tp.topic, []).append(tp.partition)
            fields = {"topics": [{"name": name, "partition_indexes": found} for name, found in by_topic.items()]}
            response = await self.cluster.call(node_id, ApiKey.DESCRIBE_PRODUCERS, fields, deadline=deadline)
            for topic in response.topics:
                for result in topic.partitions:
                    tp = TopicPartition(str(topic.name), int(result.partition_index))
                    raise_if(result, f"describing producers of {tp}")
                    found[tp] = tuple(
                        ProducerDescription(
                            int(p.producer_id),
                            int(p.producer_epoch),
                            int(p.last_sequence),
                            int(p.last_timestamp),
                            int(p.coordinator_epoch),
                            int(p.current_txn_start_offset),
                        )
                        for p in result.active_producers
                    )
        return found

    # -- configurations

    async def describe_configs(
        self,
        resources: Sequence[ConfigResource],
        *,
        include_synonyms: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """All entries of each resource: ("topic", name) or ("broker", id as a string)."""
        deadline = self._deadline(timeout_ms)
        described: dict[ConfigResource, dict[str, ConfigEntry]] = {}
        for node_id, batch in self._by_config_node(resources).items():
            fields = {
                "resources": [
                    {"resource_type": RESOURCE_TYPES[kind], "resource_name": name, "configuration_keys": None}
                    for kind, name in batch
                ],
                "include_synonyms": include_synonyms,
                "include_documentation": False,
            }
            if node_id is not None and node_id not in self.cluster.metadata.brokers:
                await self.cluster.fetch_metadata([], deadline)
            response = await self._ask(node_id, ApiKey.DESCRIBE_CONFIGS, fields, deadline)
            for result in response.results:
                resource = (_kind(result.resource_type), str(result.resource_name))
                raise_if(result, f"describing {resource[0]} {resource[1]}")
                described[resource] = {entry.name: _entry(entry) for entry in result.configs}
        return described

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Mapping[str, str | tuple[str, str | None] | None]],
        *,
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Change single entries: a string sets, None deletes, ("append" | "subtract", string) edits a list."""
        deadline = self._deadline(timeout_ms)
        for node_id, batch in self._by_config_node(list(changes)).items():
            fields = {
                "resources": [
                    {
                        "resource_type": RESOURCE_TYPES[resource[0]],
                        "resource_name": resource[1],
                        "configs": [_alteration(name, change) for name, change in changes[resource].items()],
                    }
                    for resource in batch
                ],
                "validate_only": validate_only,
            }
            if node_id is not None and node_id not in self.cluster.metadata.brokers:
                await self.cluster.fetch_metadata([], deadline)
            response = await self._ask(node_id, ApiKey.INCREMENTAL_ALTER_CONFIGS, fields, deadline)
            for result in response.responses:
                raise_if(result, f"configuring {_kind(result.resource_type)} {result.resource_name}")

    # -- inside

    @staticmethod
    def _by_config_node(resources: Sequence[ConfigResource]) -> dict[int | None, list[ConfigResource]]:
        """The configuration of a broker must be requested from that broker, all other from any broker."""
        grouped: dict[int | None, list[ConfigResource]] = {}
        for resource in resources:
            own = resource[0] in ("broker", "broker_logger") and resource[1] != ""
            grouped.setdefault(int(resource[1]) if own else None, []).append(resource)
        return grouped


def _pairs(mapping: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
    """Accept plain (topic, partition) tuples as TopicPartition."""
    return {tp if type(tp) is TopicPartition else TopicPartition(*tp): value for tp, value in mapping.items()}


def _kind(number: int) -> str:
    return next((name for name, value in RESOURCE_TYPES.items() if value == int(number)), str(number))


def _source(number: int) -> str:
    return _CONFIG_SOURCES.get(int(number), "UNKNOWN")


def _entry(entry: Any) -> ConfigEntry:
    synonyms = tuple((s.name, s.value, _source(s.source)) for s in getattr(entry, "synonyms", ()))
    return ConfigEntry(
        entry.value, _source(entry.config_source), bool(entry.read_only), bool(entry.is_sensitive), synonyms
    )


def _alteration(name: str, change: str | tuple[str, str | None] | None) -> dict[str, Any]:
    match change:
        case None:
            return {"name": name, "config_operation": _OPERATIONS["delete"], "value": None}
        case (operation, value):
            return {"name": name, "config_operation": _OPERATIONS[str(operation)], "value": value}
        case _:
            return {"name": name, "config_operation": _OPERATIONS["set"], "value": str(change)}
