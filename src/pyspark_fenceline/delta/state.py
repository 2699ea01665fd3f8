"""The state of a table's comparison with the log, stored in the table.

Owns a small object in the commit metadata: for each partition the leader epoch under which all rows were last found in
the log, and an offset above all rows. It saves reading the file list with every batch. It is valid only while its
commit is the table's newest one: after a commit of another writer it is rebuilt from the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from deltalake import DeltaTable

KEY: Final = "fenceline"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    """`leader_epoch`: all rows of the table were compared with the log of this leader (-1: never). `end_offset`: no row
    is at or above it.
    """

    leader_epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class TableState:
    partitions: Mapping[TopicPartition, PartitionProgress] = field(default_factory=dict)
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)

    def encode(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for tp, state in sorted(self.partitions.items()):
            topic = topics.setdefault(tp.topic, {"id": self.topic_ids.get(tp.topic), "partitions": {}})
            topic["partitions"][str(tp.partition)] = [state.leader_epoch, state.end_offset]
        return {"version": _VERSION, "topics": topics}


def read_state(table: DeltaTable) -> TableState | None:
    """The state in the table's newest commit, None if that has none."""
    history = table.history(1)
    newest = history[0] if history else {}
    return decode_state(newest.get(KEY)) if newest.get("version") == table.version() else None


def decode_state(encoded: object) -> TableState | None:
    """The state in a commit's metadata; None if there is none, or its format is unknown."""
    if not isinstance(encoded, Mapping):
        return None
    state = encoded.get("state")
    if not isinstance(state, Mapping) or state.get("version") != _VERSION:
        return None
    partitions: dict[TopicPartition, PartitionProgress] = {}
    ids: dict[str, str | None] = {}
    for topic, content in state["topics"].items():
        ids[topic] = content["id"]
        for index, (leader_epoch, end_offset) in content["partitions"].items():
            partitions[TopicPartition(topic, int(index))] = PartitionProgress(leader_epoch, end_offset)
    return TableState(partitions, ids)


def last_topic_ids(table: DeltaTable, limit: int = 100) -> dict[str, str | None]:
    """Topic ids from the newest of the last `limit` commits that has a state."""
    for entry in table.history(limit):
        encoded = entry.get(KEY)
        if isinstance(encoded, Mapping) and isinstance(encoded.get("state"), Mapping):
            return {topic: content["id"] for topic, content in encoded["state"]["topics"].items()}
    return {}
