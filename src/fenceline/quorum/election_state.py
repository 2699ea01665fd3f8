"""Durable election state: the `quorum-state` file.

Owns the content of that file. The driver writes it safely (temporary file, fsync, rename).

Rules: raft.md Q11, Q12; since_4_0.md K10 (leader and vote may be set together; data_version 1 with kraft.version 1);
gaps.md G41 (the cluster id is written if the version has a field for it, and compared).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from fenceline.errors import InternalError, OperatorError
from fenceline.ids import ZERO_UUID, decode_uuid, encode_uuid

FILE_NAME: Final = "quorum-state"
NO_NODE: Final = -1


@dataclass(frozen=True, slots=True)
class ElectionState:
    """`leader_id` and `voted_id` are -1 where there is none."""

    epoch: int = 0
    leader_id: int = NO_NODE
    voted_id: int = NO_NODE
    voted_directory_id: UUID = ZERO_UUID

    def check_follows(self, before: ElectionState) -> None:
        """Raises InternalError if this state must not replace `before` on the disk."""
        if self.epoch < before.epoch:
            raise InternalError(f"Q50: the epoch cannot decrease: {before} to {self}")
        if self.epoch > before.epoch:
            return
        if NO_NODE not in (self.voted_id, before.voted_id) and self.voted_id != before.voted_id:
            raise InternalError(f"Q17: one vote an epoch: {before} to {self}")
        if NO_NODE not in (self.leader_id, before.leader_id) and self.leader_id != before.leader_id:
            raise InternalError(f"Q51: one leader an epoch: {before} to {self}")

    def with_epoch_at_least(self, epoch: int) -> ElectionState:
        """Q10: a log in a higher epoch than the file wins; the leader of that epoch is unknown."""
        return self if self.epoch >= epoch else ElectionState(epoch)


def encode_election(
    state: ElectionState, kraft_version: int, voter_ids: tuple[int, ...] = (), cluster_id: str = ""
) -> bytes:
    """The file's content in the version that the kraft.version requires."""
    if kraft_version >= 1:
        fields: dict[str, object] = {
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": state.voted_id,
            "votedDirectoryId": encode_uuid(state.voted_directory_id),
            "data_version": 1,
        }
    else:
        fields = {
            "clusterId": cluster_id,
            "leaderId": state.leader_id,
            "leaderEpoch": state.epoch,
            "votedId": state.voted_id,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": voter} for voter in voter_ids],
            "data_version": 0,
        }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_election(content: bytes, path: str, cluster_id: str = "") -> ElectionState:
    """Inverse of `encode_election`, for both versions. Raises OperatorError for any other content (Q12), and if the
    file names another cluster (G41; an empty id, as Kafka writes it, is not compared)."""
    try:
        fields = json.loads(content)
        version = int(fields["data_version"])
        if version not in (0, 1):
            raise OperatorError(
                f"{path} has data_version {version}; this release supports 0 and 1.",
                "The directory was written by a newer release. Start the node with that release.",
            )
        written_id = str(fields.get("clusterId") or "")
        if cluster_id and written_id not in ("", cluster_id):
            raise OperatorError(
                f"{path} belongs to cluster {written_id}, but this node belongs to cluster {cluster_id}.",
                "A directory or a file was copied between clusters. Restore this node's own directory, or"
                " format a new one.",
            )
        epoch, leader_id, voted_id = (int(fields[name]) for name in ("leaderEpoch", "leaderId", "votedId"))
        if epoch < 0 or leader_id < NO_NODE or voted_id < NO_NODE:
            raise ValueError(f"invalid epoch {epoch}, leader {leader_id} or vote {voted_id}")
        return ElectionState(
            epoch,
            leader_id,
            voted_id,
            decode_uuid(fields["votedDirectoryId"]) if version == 1 else ZERO_UUID,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise OperatorError(
            f"Cannot read {path}: {error}",
            "The file holds this node's votes and must not be recreated by hand. Restore it, or reformat this node if"
            " the other voters are running.",
        ) from None
