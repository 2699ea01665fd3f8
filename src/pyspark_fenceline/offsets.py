"""Positions in topics as Spark's checkpoint keeps them.

Owns the JSON forms: the source's own offsets (one JSON object a batch, compared by Spark as text, `pyspark.md S4`)
and the offsets that Spark's Kafka source writes, which are read too so that a query can change its format word and
keep its checkpoint. Never talks to a broker.

Form: `{"topics": {topic: {"id": id, "partitions": {index: {"leader_epoch": e, "offset": o}}}}, "version": 1}`.
`offset` is the next one to read, `leader_epoch` the epoch of the record before it (-1: none or unknown), `id` the
topic's id or null. The first offset of a query carries its resolved start as `"from"`, because Spark stores only the
end of batch 0 and asks for the start again when it replays that batch (S9).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

VERSION: Final = 1
UNKNOWN_EPOCH: Final = -1


class Position(NamedTuple):
    """Where a reader of one partition stands: next offset, and the epoch of the record before it (-1: none or
    unknown).
    """

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Positions of a query in all its partitions. `topic_ids` has every topic of `positions` (None: broker has no
    ids).
    """

    positions: Mapping[TopicPartition, Position]
    topic_ids: Mapping[str, str | None]
    started_at: SourceOffset | None = field(default=None)

    def encode(self) -> dict[str, Any]:
        """The JSON object, keys in a fixed order (topics by name, partitions by number)."""
        encoded: dict[str, Any] = {}
        if self.started_at is not None:
            encoded["from"] = self.started_at._encode_topics()
        encoded["topics"] = self._encode_topics()
        encoded["version"] = VERSION
        return encoded

    def _encode_topics(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for tp in sorted(self.positions):
            position = self.positions[tp]
            topic = topics.setdefault(tp.topic, {"id": self.topic_ids.get(tp.topic), "partitions": {}})
            topic["partitions"][str(tp.partition)] = {"leader_epoch": position.leader_epoch, "offset": position.offset}
        return topics


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The start of a query before its first batch: still to be looked up as its options say."""

    def encode(self) -> dict[str, Any]:
        return {"unresolved": True, "version": VERSION}


def decode(encoded: Any) -> SourceOffset | Unresolved:
    """Read an offset from the checkpoint. Raises `OperatorError` on anything that neither this source nor Spark's Kafka
    source wrote."""
    if not isinstance(encoded, Mapping):
        raise _unreadable(encoded)
    if "version" not in encoded:
        return _decode_kafka(encoded)
    version = encoded["version"]
    if version != VERSION:
        raise OperatorError(
            f"The checkpoint's source offset has version {version!r}; this release reads version {VERSION}",
            "Run the query with the release that wrote the checkpoint, or with a newer one.",
        )
    if "unresolved" in encoded:
        return Unresolved()
    try:
        start = encoded.get("from")
        return _decode_topics(encoded["topics"], None if start is None else _decode_topics(start, None))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(encoded) from error


def _decode_topics(topics: Mapping[str, Any], started_at: SourceOffset | None) -> SourceOffset:
    positions: dict[TopicPartition, Position] = {}
    ids: dict[str, str | None] = {}
    for topic, content in topics.items():
        ids[topic] = content["id"]
        for index, position in content["partitions"].items():
            positions[TopicPartition(topic, int(index))] = Position(
                int(position["offset"]), int(position["leader_epoch"])
            )
    return SourceOffset(positions, ids, started_at)


def _decode_kafka(encoded: Mapping[str, Any]) -> SourceOffset:
    """`{topic: {partition: offset}}`: no ids, no epochs, so the first batch from it can not be checked for
    truncation.
    """
    positions: dict[TopicPartition, Position] = {}
    try:
        for topic, partitions in encoded.items():
            for index, offset in partitions.items():
                positions[TopicPartition(topic, int(index))] = Position(_whole(offset))
    except (TypeError, ValueError, AttributeError) as error:
        raise _unreadable(encoded) from error
    return SourceOffset(positions, dict.fromkeys(encoded))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an offset")
    return value


def _unreadable(encoded: object) -> OperatorError:
    return OperatorError(
        f"The checkpoint holds an offset that this source can not read: {str(encoded)[:200]}",
        "The checkpointLocation belongs to another kind of source; use a new one.",
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers of each topic, sorted."""
    grouped: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        grouped.setdefault(tp.topic, []).append(tp.partition)
    return grouped
