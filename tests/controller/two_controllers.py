"""One script for two controllers, this one and a running Apache Kafka one, fed by brokers that do not exist.

Both sides get the same requests, return their responses in one form, and show the records that they wrote. Necessary
differences are removed: topic ids become names, broker epochs the broker's number, records without an effect are
dropped, and consecutive changes are sorted by topic.
"""

from __future__ import annotations

import dataclasses
import socket
import struct
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from fenceline.controller.partition_requests import (
    AlterPartition,
    AlterPartitionReassignments,
    AssignReplicasToDirs,
    ElectLeaders,
    ListPartitionReassignments,
)
from fenceline.controller.requests import (
    AllocateProducerIds,
    BrokerHeartbeat,
    CreateTopics,
    FenceStaleBroker,
    IncrementalAlterConfigs,
    RegisterBroker,
    UnregisterBroker,
    UpdateFeatures,
)
from fenceline.errors import PeerError
from fenceline.metadata.node_records import RegisterBrokerRecord, RegisterControllerRecord
from fenceline.metadata.records import (
    BeginTransactionRecord,
    EndTransactionRecord,
    NoOpRecord,
    PartitionChangeRecord,
    TopicRecord,
    decode_record,
)
from fenceline.testing.apache_kafka import ApacheKafka, free_port
from fenceline.wire import entities, frame
from fenceline.wire.apis import ApiKey
from tests.controller.helpers import Cluster
from tests.metadata.helpers import batches_in

_SILENT: Final = (NoOpRecord, RegisterControllerRecord, BeginTransactionRecord, EndTransactionRecord)
Step = Callable[["Side"], Any]


class Side:
    """The common part of both controllers: epochs as they assigned them, topic ids as they chose them."""

    def __init__(self) -> None:
        self.epochs: dict[int, int] = {}
        self.past: dict[int, set[int]] = {}
        self.names: dict[UUID, str] = {}

    def epoch(self, broker: int) -> int:
        return self.epochs[broker]

    def topic(self, name: str) -> UUID:
        return next((topic for topic, known in self.names.items() if known == name), UUID(int=404))

    @property
    def end(self) -> int:
        """An offset behind all records."""
        return 1 << 40

    def send(self, request: Any) -> Any:
        raise NotImplementedError

    def new_records(self) -> list[Any]:
        raise NotImplementedError

    def ask(self, request: Any) -> Any:
        answer = self.send(request)
        if isinstance(request, RegisterBroker) and answer[0] == 0:
            self.epochs[request.broker_id] = answer[1]
            self.past.setdefault(request.broker_id, set()).add(answer[1])
            return (0,)
        return answer

    def records(self) -> list[Any]:
        """The records since the last call, in the form that both sides share."""
        reported = [self._plain(record) for record in self.new_records() if not isinstance(record, _SILENT)]
        return [
            record
            for _, group in groupby(reported, key=lambda each: each["record"])
            for record in sorted(group, key=lambda each: (repr(each.get("topic_id")), each.get("partition_id", 0)))
        ]

    def _plain(self, record: Any) -> Any:
        if isinstance(record, TopicRecord):
            self.names[record.topic_id] = record.name
        fields: dict[str, Any] = {"record": type(record).__name__}
        for field in dataclasses.fields(record):
            value = getattr(record, field.name)
            if field.name == "topic_id":
                value = self.names.get(value, value)
            elif field.name == "broker_epoch":
                known = self.past.get(record.broker_id, set())
                value = f"an epoch of {record.broker_id}" if value in known or not known else value
            elif field.name in ("features", "end_points"):
                value = sorted(map(repr, value))
            elif isinstance(record, PartitionChangeRecord) and field.name == "eligible_leader_replicas" and value:
                value = tuple(sorted(value))
            fields[field.name] = value
        if isinstance(record, RegisterBrokerRecord):
            fields["broker_epoch"] = "an epoch"
        return fields


class Here(Side):
    """The controller of this project."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self._written: list[Any] = []

    def send(self, request: Any) -> Any:
        self.cluster.records = []
        try:
            answer = self.cluster.ask(request)
        except PeerError as error:
            return (int(error.code),)
        finally:
            self._written += self.cluster.records
        return _OF_ANSWERS[type(request)](self, answer)

    def new_records(self) -> list[Any]:
        written, self._written = self._written, []
        return written


class There(Side):
    """A controller-only Apache Kafka node in its own process. Use as a context manager."""

    def __init__(self, *, session_timeout_ms: int = 3_600_000) -> None:
        super().__init__()
        port = free_port()
        self._process = ApacheKafka(
            heap="384m",
            port=port,
            overrides={
                "process.roles": "controller",
                "node.id": "100",
                "controller.quorum.bootstrap.servers": f"127.0.0.1:{port}",
                "listeners": f"CONTROLLER://127.0.0.1:{port}",
                "advertised.listeners": f"CONTROLLER://127.0.0.1:{port}",
                "broker.session.timeout.ms": str(session_timeout_ms),
                "auto.leader.rebalance.enable": "false",
            },
        )
        self._seen = 0

    @property
    def port(self) -> int:
        return self._process.port

    def __enter__(self) -> There:
        self._process.start()
        deadline = time.monotonic() + 60
        while True:
            self._socket = socket.create_connection(("127.0.0.1", self._process.port), timeout=60)
            try:
                if any(isinstance(record, RegisterControllerRecord) for record in self._log()):
                    break
            except OSError:
                pass
            assert time.monotonic() < deadline, "Apache Kafka's controller does not become active"
            self._socket.close()
            time.sleep(0.1)
        self.records()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.close()

    def send(self, request: Any) -> Any:
        key, version, fields = _TO_WIRE[type(request)](request)
        body = entities.write_request(key, version, fields)
        self._socket.sendall(b"".join(frame.encode_request_frame(key, version, 1, "test", body)))
        (size,) = struct.unpack(">i", self._take(4))
        content = memoryview(self._take(size))
        _, position = frame.parse_response_header(key, version, content)
        answer = entities.read_response(key, version, content[position:])
        code = int(getattr(answer, "error_code", 0))
        return (code,) if code and key is not ApiKey.UPDATE_FEATURES else _OF_WIRE[type(request)](self, answer)

    def new_records(self) -> list[Any]:
        log = self._log()
        new, self._seen = log[self._seen :], len(log)
        return new

    def _log(self) -> list[Any]:
        directory = Path(self._process.log_dir) / "__cluster_metadata-0"
        return [
            decode_record(bytes(record.value))
            for header, records in batches_in(directory)
            if not header.is_control
            for record in records
        ]

    def _take(self, size: int) -> bytes:
        taken = b""
        while len(taken) < size:
            chunk = self._socket.recv(size - len(taken))
            assert chunk, "Apache Kafka closed the connection"
            taken += chunk
        return taken


# -- requests on the wire ----------------------------------------------------------------------------------------------


def _register(request: RegisterBroker) -> tuple[ApiKey, int, dict[str, Any]]:
    return (
        ApiKey.BROKER_REGISTRATION,
        4,
        {
            "broker_id": request.broker_id,
            "cluster_id": request.cluster_id,
            "incarnation_id": request.incarnation_id,
            "listeners": [
                {"name": e.name, "host": e.host, "port": e.port, "security_protocol": e.security_protocol}
                for e in request.endpoints
            ],
            "features": [
                {"name": name, "min_supported_version": levels.minimum, "max_supported_version": levels.maximum}
                for name, levels in request.features.items()
            ],
            "rack": request.rack,
            "log_dirs": request.log_dirs,
            "previous_broker_epoch": request.previous_broker_epoch,
        },
    )


def _heartbeat(request: BrokerHeartbeat) -> tuple[ApiKey, int, dict[str, Any]]:
    fields = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    return ApiKey.BROKER_HEARTBEAT, 2, fields


def _create(request: CreateTopics) -> tuple[ApiKey, int, dict[str, Any]]:
    topics = [
        {
            "name": topic.name,
            "num_partitions": topic.num_partitions,
            "replication_factor": topic.replication_factor,
            "assignments": [{"partition_index": i, "broker_ids": b} for i, b in topic.assignments],
            "configs": [{"name": name, "value": value} for name, value in topic.configs],
        }
        for topic in request.topics
    ]
    return ApiKey.CREATE_TOPICS, 7, {"topics": topics, "timeout": 30_000, "validate_only": False}


def _alter_partition(request: AlterPartition) -> tuple[ApiKey, int, dict[str, Any]]:
    topics = [
        {
            "topic_id": topic,
            "partitions": [
                {
                    "partition_index": each.index,
                    "leader_epoch": each.leader_epoch,
                    "new_isr_with_epochs": [
                        {"broker_id": member.broker_id, "broker_epoch": member.broker_epoch} for member in each.new_isr
                    ],
                    "leader_recovery_state": each.leader_recovery_state,
                    "partition_epoch": each.partition_epoch,
                }
                for each in changes
            ],
        }
        for topic, changes in request.topics
    ]
    fields = {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch, "topics": topics}
    return ApiKey.ALTER_PARTITION, 3, fields


def _reassign(request: AlterPartitionReassignments) -> tuple[ApiKey, int, dict[str, Any]]:
    topics = [
        {"name": name, "partitions": [{"partition_index": e.index, "replicas": e.replicas} for e in wanted]}
        for name, wanted in request.topics
    ]
    allowed = request.allow_replication_factor_change
    return (
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        1,
        {"timeout": 30_000, "allow_replication_factor_change": allowed, "topics": topics},
    )


def _list(request: ListPartitionReassignments) -> tuple[ApiKey, int, dict[str, Any]]:
    topics = (
        None
        if request.topics is None
        else [{"name": name, "partition_indexes": indexes} for name, indexes in request.topics]
    )
    return ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 30_000, "topics": topics}


def _assign(request: AssignReplicasToDirs) -> tuple[ApiKey, int, dict[str, Any]]:
    wanted = [
        {
            "id_": directory,
            "topics": [
                {"topic_id": topic, "partitions": [{"partition_index": index} for index in indexes]}
                for topic, indexes in topics
            ],
        }
        for directory, topics in request.directories
    ]
    fields = {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch, "directories": wanted}
    return ApiKey.ASSIGN_REPLICAS_TO_DIRS, 0, fields


def _elect(request: ElectLeaders) -> tuple[ApiKey, int, dict[str, Any]]:
    named = request.topic_partitions
    topics = None if named is None else [{"topic": name, "partitions": indexes} for name, indexes in named]
    return (
        ApiKey.ELECT_LEADERS,
        2,
        {"election_type": request.election_type, "topic_partitions": topics, "timeout": 30_000},
    )


def _configure(request: IncrementalAlterConfigs) -> tuple[ApiKey, int, dict[str, Any]]:
    resources = [
        {
            "resource_type": resource.type,
            "resource_name": resource.name,
            "configs": [
                {"name": change.name, "config_operation": change.operation, "value": change.value} for change in changes
            ],
        }
        for resource, changes in request.resources
    ]
    return ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, {"resources": resources, "validate_only": False}


def _unregister(request: UnregisterBroker) -> tuple[ApiKey, int, dict[str, Any]]:
    return ApiKey.UNREGISTER_BROKER, 0, {"broker_id": request.broker_id}


def _allocate(request: AllocateProducerIds) -> tuple[ApiKey, int, dict[str, Any]]:
    return (
        ApiKey.ALLOCATE_PRODUCER_IDS,
        0,
        {"broker_id": request.broker_id, "broker_epoch": request.broker_epoch},
    )


def _features(request: UpdateFeatures) -> tuple[ApiKey, int, dict[str, Any]]:
    updates = [
        {"feature": name, "max_version_level": level, "upgrade_type": int(kind)}
        for name, level, kind in request.updates
    ]
    return (
        ApiKey.UPDATE_FEATURES,
        1,
        {"timeout": 30_000, "feature_updates": updates, "validate_only": request.validate_only},
    )


_TO_WIRE: Final[dict[type[Any], Callable[[Any], tuple[ApiKey, int, dict[str, Any]]]]] = {
    RegisterBroker: _register,
    BrokerHeartbeat: _heartbeat,
    CreateTopics: _create,
    AlterPartition: _alter_partition,
    AlterPartitionReassignments: _reassign,
    ListPartitionReassignments: _list,
    AssignReplicasToDirs: _assign,
    ElectLeaders: _elect,
    IncrementalAlterConfigs: _configure,
    UnregisterBroker: _unregister,
    AllocateProducerIds: _allocate,
    UpdateFeatures: _features,
}

# -- responses: error code first, then the content --------------------------------------------------------------------

_OF_ANSWERS: Final[dict[type[Any], Callable[[Side, Any], Any]]] = {
    RegisterBroker: lambda side, a: (0, a.broker_epoch),
    BrokerHeartbeat: lambda side, a: (0, a.is_caught_up, a.is_fenced, a.should_shut_down),
    FenceStaleBroker: lambda side, a: (0,),
    CreateTopics: lambda side, a: (0, [(t.name, int(t.outcome.code), t.outcome.message) for t in a.topics]),
    AlterPartition: lambda side, a: (
        0,
        [
            [
                (
                    p.index,
                    int(p.code),
                    *(
                        (p.leader, p.leader_epoch, p.isr, int(p.leader_recovery_state), p.partition_epoch)
                        if not p.code
                        else ()
                    ),
                )
                for p in parts
            ]
            for _, parts in a.topics
        ],
    ),
    AlterPartitionReassignments: lambda side, a: (
        0,
        [(n, [(p.index, int(p.outcome.code), p.outcome.message) for p in parts]) for n, parts in a.topics],
    ),
    ListPartitionReassignments: lambda side, a: (
        0,
        sorted((n, [(p.index, p.replicas, p.adding, p.removing) for p in parts]) for n, parts in a.topics),
    ),
    AssignReplicasToDirs: lambda side, a: (
        0,
        [[[(p.index, int(p.code)) for p in parts] for _, parts in topics] for _, topics in a.directories],
    ),
    ElectLeaders: lambda side, a: (
        0,
        sorted((n, sorted((p.index, int(p.outcome.code), p.outcome.message) for p in parts)) for n, parts in a.topics),
    ),
    IncrementalAlterConfigs: lambda side, a: (0, [(int(r.outcome.code), r.outcome.message) for r in a.resources]),
    UnregisterBroker: lambda side, a: (0,),
    AllocateProducerIds: lambda side, a: (0, a.first, a.size),
    UpdateFeatures: lambda side, a: (int(a.outcome.code), a.outcome.message),
}
_OF_WIRE: Final[dict[type[Any], Callable[[Side, Any], Any]]] = {
    RegisterBroker: lambda side, a: (0, a.broker_epoch),
    BrokerHeartbeat: lambda side, a: (0, a.is_caught_up, a.is_fenced, a.should_shut_down),
    CreateTopics: lambda side, a: (0, [(t.name, int(t.error_code), t.error_message) for t in a.topics]),
    AlterPartition: lambda side, a: (
        0,
        [
            [
                (
                    p.partition_index,
                    int(p.error_code),
                    *(
                        (p.leader_id, p.leader_epoch, tuple(p.isr), p.leader_recovery_state, p.partition_epoch)
                        if not p.error_code
                        else ()
                    ),
                )
                for p in topic.partitions
            ]
            for topic in a.topics
        ],
    ),
    AlterPartitionReassignments: lambda side, a: (
        0,
        [
            (t.name, [(p.partition_index, int(p.error_code), p.error_message) for p in t.partitions])
            for t in a.responses
        ],
    ),
    ListPartitionReassignments: lambda side, a: (
        0,
        sorted(
            (
                t.name,
                [
                    (p.partition_index, tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas))
                    for p in t.partitions
                ],
            )
            for t in a.topics
        ),
    ),
    AssignReplicasToDirs: lambda side, a: (
        0,
        [[[(p.partition_index, int(p.error_code)) for p in t.partitions] for t in d.topics] for d in a.directories],
    ),
    ElectLeaders: lambda side, a: (
        0,
        sorted(
            (t.topic, sorted((p.partition_id, int(p.error_code), p.error_message) for p in t.partition_result))
            for t in a.replica_election_results
        ),
    ),
    IncrementalAlterConfigs: lambda side, a: (0, [(int(r.error_code), r.error_message) for r in a.responses]),
    UnregisterBroker: lambda side, a: (0,),
    AllocateProducerIds: lambda side, a: (0, a.producer_id_start, a.producer_id_len),
    UpdateFeatures: lambda side, a: (int(a.error_code), a.error_message),
}
