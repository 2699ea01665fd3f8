"""Source offsets in Spark's checkpoint.

Owns the JSON forms: the source's own offsets (one JSON object per batch, compared by Spark as text, `pyspark.md S4`)
and the offsets of Spark's Kafka source, which are read too so that a query can change its format name and keep its
checkpoint. Never talks to a broker.

Form: `{"cluster": id, "topics": {topic: {"id": id, "partitions": {index: {"epochs": [[e, o], ...], "leader_epoch": e,
"offset": o}}}}, "version": 1}`. `offset` is the next one to read, `leader_epoch` the epoch of the record before it (-1:
none or unknown), `id` the topic id or null. `epochs` are the newest epochs of the log that was read, oldest first, each
with its first offset, so that the point of divergence from another log can be found over several elections (`gaps.md
G6`). The first offset of a query has its resolved start as `"from"`, because Spark stores only the end of batch 0 and
requests the start again when it replays that batch (S9). A batch after a loss contains it, under `"truncations"`,
`"recreated"`, `"expired"` or `"gone"`. `"added"` (`{topic: {index: offset}}`) has the start offset of partitions that
the query reads for the first time, unless it is 0; `"unproven"`, of the same form, has positions of Spark's own source
that the query's options accept without proof. `"query"` is an id that a query chooses with its first batch, to
distinguish two queries at the same position. With `includeRetractions`, `"retractions"` identifies the rows that the
batch retracts, and `"since"` has for each partition the first offset that was delivered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from fenceline.client.core.epoch_history import EpochStart
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.common.lost_ranges import Retraction, decode_retractions, encode_retractions
from pyspark_fenceline.common.query_state import QUERY
from pyspark_fenceline.errors import Loss, losses_by_name, losses_named

VERSION: Final = 1
UNKNOWN_EPOCH: Final = -1
EPOCHS_KEPT: Final = 8
"""Per partition. After a truncation over more elections the query goes back to the log's start."""


class PartitionPosition(NamedTuple):
    """The position of a reader of one partition: next offset, and the epoch of the record before it (-1: none or
    unknown).

    `epochs`: the newest ones below the offset, oldest first, each with its first offset in the log that was read. Empty
    if only the last one is known, as in checkpoints of older releases.
    """

    offset: int
    leader_epoch: int = UNKNOWN_EPOCH
    epochs: tuple[EpochStart, ...] = ()

    @property
    def read_epochs(self) -> tuple[EpochStart, ...]:
        """`epochs`, or the last one alone with its start unknown."""
        if self.epochs or self.leader_epoch < 0:
            return self.epochs
        return (EpochStart(self.leader_epoch, -1),)

    def at(self, offset: int) -> PartitionPosition:
        """The position at an offset before this one, in the same log."""
        below = tuple(start for start in self.epochs if start.offset < offset)
        if offset == self.offset:
            return self
        return PartitionPosition(offset, below[-1].epoch if below else UNKNOWN_EPOCH, below)


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Positions of a query in all its partitions. `topic_ids` has every topic of `positions` (None: broker has no
    ids). `losses` were found when the batch that ends here was planned: it begins at their `resume_offset`. `query`:
    the query's id (None: of an older release, or Spark's own). `retractions`: rows that the batch that ends here
    retracts. `since`: the offset from which on the query has delivered all records up to its position, for each
    partition; None if it cannot retract rows. `added`: start offsets of partitions that are read for the first time,
    unless 0. `unproven`: positions that were accepted without proof. `is_of_connector`: Spark's own source wrote it.
    """

    positions: Mapping[TopicPartition, PartitionPosition]
    topic_ids: Mapping[str, str | None]
    started_at: SourceOffset | None = field(default=None)
    cluster_id: str | None = None
    losses: tuple[Loss, ...] = ()
    added: Mapping[TopicPartition, int] = field(default_factory=dict)
    unproven: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_of_connector: bool = False
    query: str | None = None
    retractions: tuple[Retraction, ...] = ()
    since: Mapping[TopicPartition, int] | None = None

    def encode(self) -> dict[str, Any]:
        """The JSON object, keys in a fixed order (topics by name, partitions by number)."""
        encoded: dict[str, Any] = {"topics": self._encode_topics(), "version": VERSION, **losses_by_name(self.losses)}
        if self.started_at is not None:
            encoded["from"] = self.started_at._encode_topics()
        for name, offsets in (("added", self.added), ("unproven", self.unproven)):
            for tp, offset in sorted(offsets.items()):
                encoded.setdefault(name, {}).setdefault(tp.topic, {})[str(tp.partition)] = offset
        if self.cluster_id is not None:
            encoded["cluster"] = self.cluster_id
        if self.query is not None:
            encoded[QUERY] = self.query
        if self.retractions:
            encoded["retractions"] = encode_retractions(self.retractions)
        if self.since is not None:
            encoded["since"] = {
                topic: {str(index): self.since[TopicPartition(topic, index)] for index in indexes}
                for topic, indexes in by_topic(self.since).items()
            }
        return dict(sorted(encoded.items()))

    def _encode_topics(self) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for tp in sorted(self.positions):
            position = self.positions[tp]
            topic = topics.setdefault(tp.topic, {"id": self.topic_ids.get(tp.topic), "partitions": {}})
            place: dict[str, Any] = {"leader_epoch": position.leader_epoch, "offset": position.offset}
            if position.epochs:
                place = {"epochs": [list(start) for start in position.epochs], **place}
            topic["partitions"][str(tp.partition)] = place
        return topics


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The start of a query before its first batch, not yet resolved from its options."""

    def encode(self) -> dict[str, Any]:
        return {"unresolved": True, "version": VERSION}


def decode(encoded: Any) -> SourceOffset | Unresolved:
    """Parse an offset of the checkpoint. Raises `OperatorError` for anything that neither this source nor Spark's Kafka
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
        start, cluster_id = encoded.get("from"), encoded.get("cluster")
        found = _decode_topics(encoded["topics"], cluster_id)
        started_at = None if start is None else _decode_topics(start, cluster_id)
        return replace(
            found,
            started_at=started_at,
            losses=losses_named(encoded),
            added=_decode_numbers(encoded.get("added", {})),
            unproven=_decode_numbers(encoded.get("unproven", {})),
            query=_query_of(encoded),
            retractions=decode_retractions(encoded.get("retractions", ())),
            since=_since_of(encoded.get("since")),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _unreadable(encoded) from error


def _query_of(encoded: Mapping[str, Any]) -> str | None:
    found = encoded.get(QUERY)
    if found is not None and not isinstance(found, str):
        raise TypeError(f"{found!r} is no query id")
    return found


def _since_of(encoded: Mapping[str, Any] | None) -> dict[TopicPartition, int] | None:
    if encoded is None:
        return None
    return {
        TopicPartition(topic, int(index)): _whole(offset)
        for topic, partitions in encoded.items()
        for index, offset in partitions.items()
    }


def _decode_topics(topics: Mapping[str, Any], cluster_id: str | None) -> SourceOffset:
    positions: dict[TopicPartition, PartitionPosition] = {}
    ids: dict[str, str | None] = {}
    for topic, content in topics.items():
        ids[topic] = content["id"]
        for index, position in content["partitions"].items():
            epochs = position.get("epochs")
            positions[TopicPartition(topic, int(index))] = PartitionPosition(
                int(position["offset"]),
                int(position["leader_epoch"]),
                tuple([EpochStart(int(epoch), int(offset)) for epoch, offset in epochs]) if epochs else (),
            )
    return SourceOffset(positions, ids, cluster_id=cluster_id)


class OffsetDecoder:
    """`decode` for a planner, to which Spark passes each offset several times: as the end of a batch, as its start, and
    as the start of the next plan."""

    _KEPT: Final = 2

    def __init__(self) -> None:
        self._kept: deque[tuple[Any, SourceOffset | Unresolved]] = deque(maxlen=self._KEPT)

    def __call__(self, encoded: Any) -> SourceOffset | Unresolved:
        for known, decoded in self._kept:
            if known == encoded:
                return decoded
        decoded = decode(encoded)
        self._kept.append((encoded, decoded))
        return decoded


def _decode_kafka(encoded: Mapping[str, Any]) -> SourceOffset:
    """`{topic: {partition: offset}}`: no ids and no epochs, so its positions must be proven (`adoption`)."""
    try:
        positions = {tp: PartitionPosition(offset) for tp, offset in _decode_numbers(encoded).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise _unreadable(encoded) from error
    return SourceOffset(positions, dict.fromkeys(encoded), is_of_connector=True)


def _decode_numbers(encoded: Mapping[str, Any]) -> dict[TopicPartition, int]:
    """`{topic: {partition: offset}}`."""
    return {
        TopicPartition(topic, int(index)): _whole(offset)
        for topic, partitions in encoded.items()
        for index, offset in partitions.items()
    }


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not an offset")
    return value


def _unreadable(encoded: object) -> OperatorError:
    return OperatorError(
        f"The checkpoint contains an offset that this source cannot read: {str(encoded)[:200]}",
        "The checkpointLocation belongs to another kind of source; use a new one.",
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Partition numbers of each topic, sorted."""
    grouped: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        grouped.setdefault(tp.topic, []).append(tp.partition)
    return grouped
