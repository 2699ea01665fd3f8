"""Quorum calls of Admin: describe the quorum, change voters, feature levels.

Owns requests that the active controller handles. Brokers forward them; with `bootstrap.controllers` they go directly to
the active controller.

Rules: raft.md Q13, Q37; controller.md C38; since_4_0.md K1, K37.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from fenceline.client.admin.admin_requests import AdminRequests
from fenceline.client.core.errors import ConnectionLost, TimedOut, broker_error, error_code, raise_if
from fenceline.client.core.versions import client_software
from fenceline.errors import ErrorCode, OperatorError
from fenceline.ids import METADATA_TOPIC, ZERO_UUID
from fenceline.wire.apis import ApiKey

Change = Literal["upgrade", "safe_downgrade", "unsafe_downgrade"]
_CHANGES: Final[Mapping[Change, int]] = {"upgrade": 1, "safe_downgrade": 2, "unsafe_downgrade": 3}


class ControllerAddress(NamedTuple):
    """The address of a controller's listener."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.name}://{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ControllerAddress:
        """The inverse of `str`. Raises OperatorError."""
        name, separator, address = text.partition("://")
        host, colon, port = address.rpartition(":")
        if not (separator and name and colon and host) or not port.isdigit() or not 0 < int(port) <= 65_535:
            raise OperatorError(f"{text!r} is not an endpoint", "Write it as CONTROLLER://HOST:PORT.")
        return cls(name, host.removeprefix("[").removesuffix("]"), int(port))


class ReplicaStatus(NamedTuple):
    """A voter or observer as seen by the leader; lag in offsets of the metadata log, times in ms since 1970.

    None if unknown: the directory id of a replica without one, times before its first fetch.
    """

    replica_id: int
    directory_id: UUID | None
    log_end_offset: int
    lag: int
    last_fetch_ms: int | None
    last_caught_up_ms: int | None
    endpoints: tuple[ControllerAddress, ...]


class QuorumDescription(NamedTuple):
    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[ReplicaStatus, ...]
    observers: tuple[ReplicaStatus, ...]


class NodeFeatures(NamedTuple):
    """`supported`: inclusive ranges of levels that the node supports. `finalized`: finalized levels known to the node,
    at the metadata offset `finalized_epoch` (-1: unknown). `trouble`: the error if a node did not answer, else "".
    """

    node_id: int
    supported: Mapping[str, tuple[int, int]]
    finalized: Mapping[str, int]
    finalized_epoch: int
    trouble: str = ""


class QuorumAdmin(AdminRequests):
    """Part of `AsyncAdmin`."""

    async def describe_quorum(self, *, timeout_ms: float | None = None) -> QuorumDescription:
        """Leader, epoch, high watermark, and the progress of each voter and observer."""
        deadline = self._deadline(timeout_ms)
        fields = {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]}
        response = await self._ask_controller(
            ApiKey.DESCRIBE_QUORUM, fields, deadline, lambda r: (r, *(p for t in r.topics for p in t.partitions))
        )
        raise_if(response, "describing the quorum")
        partition = response.topics[0].partitions[0]
        raise_if(partition, "describing the quorum")
        endpoints = {
            int(node.node_id): tuple(ControllerAddress(each.name, each.host, int(each.port)) for each in node.listeners)
            for node in getattr(response, "nodes", ())
        }
        leader_id = int(partition.leader_id)
        end = next((int(v.log_end_offset) for v in partition.current_voters if int(v.replica_id) == leader_id), -1)

        def status(replica: Any) -> ReplicaStatus:
            offset = int(replica.log_end_offset)
            return ReplicaStatus(
                int(replica.replica_id),
                getattr(replica, "replica_directory_id", None),
                offset,
                max(0, end - offset) if offset >= 0 else end,
                _time(getattr(replica, "last_fetch_timestamp", -1)),
                _time(getattr(replica, "last_caught_up_timestamp", -1)),
                endpoints.get(int(replica.replica_id), ()),
            )

        return QuorumDescription(
            leader_id,
            int(partition.leader_epoch),
            int(partition.high_watermark),
            tuple(sorted(map(status, partition.current_voters))),
            tuple(sorted(map(status, partition.observers))),
        )

    async def add_raft_voter(
        self,
        voter_id: int,
        directory_id: UUID,
        endpoints: Sequence[ControllerAddress],
        *,
        cluster_id: str | None = None,
        timeout_ms: float | None = None,
    ) -> None:
        """Add a controller that is an observer as a voter; returns when the change is committed.

        Raises PeerError: DUPLICATE_VOTER, REQUEST_TIMED_OUT if it does not catch up, INCONSISTENT_CLUSTER_ID if
        `cluster_id` is another cluster's, UNSUPPORTED_VERSION if voters are static (kraft.version 0).
        """
        deadline = self._deadline(timeout_ms)
        fields = {
            "cluster_id": cluster_id,
            "timeout": self._broker_timeout_ms(deadline),
            "voter_id": voter_id,
            "voter_directory_id": directory_id,
            "listeners": [each._asdict() for each in endpoints],
            "ack_when_committed": True,
        }
        response = await self._ask_controller(ApiKey.ADD_RAFT_VOTER, fields, deadline, lambda r: (r,))
        raise_if(response, f"adding voter {voter_id}")

    async def remove_raft_voter(
        self, voter_id: int, directory_id: UUID, *, cluster_id: str | None = None, timeout_ms: float | None = None
    ) -> None:
        """Remove a voter, also one that is down. Raises PeerError (VOTER_NOT_FOUND, ...)."""
        deadline = self._deadline(timeout_ms)
        fields = {"cluster_id": cluster_id, "voter_id": voter_id, "voter_directory_id": directory_id}
        response = await self._ask_controller(ApiKey.REMOVE_RAFT_VOTER, fields, deadline, lambda r: (r,))
        raise_if(response, f"removing voter {voter_id}")

    async def directory_of_voter(self, voter_id: int, *, timeout_ms: float | None = None) -> UUID:
        """The directory id of the voter with that id. Raises OperatorError if there is none."""
        for voter in (await self.describe_quorum(timeout_ms=timeout_ms)).voters:
            if voter.replica_id == voter_id:
                return voter.directory_id or ZERO_UUID
        raise OperatorError(f"Node {voter_id} is not a voter", "List the voters: fenceline quorum describe")

    async def describe_features(self, *, timeout_ms: float | None = None) -> dict[int, NodeFeatures]:
        """Supported and finalized feature levels of each broker, or of each controller with `bootstrap.controllers`."""
        deadline = self._deadline(timeout_ms)
        await self.cluster.fetch_metadata([], deadline)
        name, version = client_software()
        fields = {"client_software_name": name, "client_software_version": version}
        found = {}
        for node_id in sorted(self.cluster.metadata.brokers):
            try:
                answer = await self.cluster.call(node_id, ApiKey.API_VERSIONS, fields, deadline=deadline, min_version=3)
            except (ConnectionLost, TimedOut) as error:
                found[node_id] = NodeFeatures(node_id, {}, {}, -1, str(error))
                continue
            raise_if(answer, f"describing the features of node {node_id}")
            found[node_id] = NodeFeatures(
                node_id,
                {str(f.name): (int(f.min_version), int(f.max_version)) for f in answer.supported_features},
                {str(f.name): int(f.max_version_level) for f in answer.finalized_features},
                int(answer.finalized_features_epoch),
            )
        return found

    async def update_features(
        self,
        levels: Mapping[str, int],
        *,
        change: Change = "upgrade",
        validate_only: bool = False,
        timeout_ms: float | None = None,
    ) -> None:
        """Finalize feature levels, all or none; level 0 with a downgrade disables a feature.

        Raises PeerError (INVALID_UPDATE_VERSION, FEATURE_UPDATE_FAILED) with the reason of the first error.
        """
        deadline = self._deadline(timeout_ms)
        fields = {
            "timeout": self._broker_timeout_ms(deadline),
            "feature_updates": [
                {"feature": name, "max_version_level": level, "upgrade_type": _CHANGES[change]}
                for name, level in levels.items()
            ],
            "validate_only": validate_only,
        }
        response = await self._ask_controller(ApiKey.UPDATE_FEATURES, fields, deadline, lambda r: (r,))
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            raise broker_error(code, "updating features", response.error_message)
        for result in getattr(response, "results", ()):
            raise_if(result, f"updating {result.feature}")


def _time(value: int) -> int | None:
    return int(value) if int(value) >= 0 else None
