"""Losses of a query, as errors and in the query's progress.

Owns the four kinds of loss and their two encodings. Spark keeps only the message of a Python exception (`pyspark.md
S14`), so each message contains a code and a JSON object, which `parse` extracts again. A query that continues after a
loss stores it in its offset, which progress shows (S5); `losses_of` extracts it. Never decides whether something is a
loss.

Form of a message: `sentence. advice LOG_TRUNCATED {"partitions": [...]}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

from fenceline.errors import FencelineError


class LossKind(StrEnum):
    """How records that a query has read, or was about to read, were lost."""

    LOG_TRUNCATED = "LOG_TRUNCATED"
    """The log was truncated below the query's position (KIP-320)."""
    TOPIC_RECREATED = "TOPIC_RECREATED"
    """A topic of the same name has another id: offsets of the old one are invalid."""
    OFFSETS_EXPIRED = "OFFSETS_EXPIRED"
    """Retention or DeleteRecords removed records that the query had not read yet."""
    PARTITIONS_GONE = "PARTITIONS_GONE"
    """The topic or partition no longer exists, or no longer matches the subscription."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One partition's loss.

    `offset` is the query's position: the next offset to read; `leader_epoch` the epoch of the record before it (-1:
    unknown). `divergent_offset`: first offset whose record is not the one read before (None: unknown, at or before
    `offset - 1`). `log_epoch`: the log's epoch at that offset. `log_start_offset`, `log_end_offset`: the log's bounds
    now. `resume_offset`: where the query continues if its options allow it, never above the first record of the log
    that it has not read (-1: nowhere). `cluster_id`: the cluster of the position, None if the checkpoint does not have
    it; `found_cluster_id`: the current cluster, if it is another one. `current_leader_epoch`: the leader's epoch when
    the loss was found, which makes the offsets of two losses at one position differ (S4). `maybe_read_to`: the loss
    happened while a batch was being read, which may have read records from `offset` up to here, exclusive (-1: none).
    """

    kind: LossKind
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    divergent_offset: int | None = None
    log_epoch: int = -1
    log_start_offset: int = -1
    log_end_offset: int = -1
    topic_id: str | None = None
    found_topic_id: str | None = None
    resume_offset: int = -1
    cluster_id: str | None = None
    found_cluster_id: str | None = None
    current_leader_epoch: int = -1
    maybe_read_to: int = -1

    def sentence(self) -> str:
        """A description of the loss for the user."""
        doubt = (
            f"; it happened while a batch was being read, which may already have read those below {self.maybe_read_to}"
        )
        return self._sentence() + (doubt if self.maybe_read_to > self.offset else "")

    def _sentence(self) -> str:
        name = f"{self.topic}-{self.partition}"
        match self.kind:
            case LossKind.LOG_TRUNCATED:
                read_in = f"leader epoch {self.leader_epoch}" if self.leader_epoch >= 0 else "an unknown leader epoch"
                if self.divergent_offset is None:
                    where = f"the logs diverge at or before offset {self.offset - 1}"
                else:
                    last = self.offset - 1
                    where = f"the records read at offsets {self.divergent_offset} to {last} are no longer in the log"
                return (
                    f"{name} was truncated below position {self.offset}, which was read in {read_in}: {where} "
                    f"(the log now has epoch {self.log_epoch} there and ends at {self.log_end_offset})"
                )
            case LossKind.TOPIC_RECREATED if self.found_cluster_id is not None:
                return (
                    f"topic {self.topic} is on another cluster: the checkpoint is of cluster {self.cluster_id}, "
                    f"kafka.bootstrap.servers leads to cluster {self.found_cluster_id}; position {self.offset} of "
                    f"{name} is invalid there"
                )
            case LossKind.TOPIC_RECREATED:
                return (
                    f"topic {self.topic} was deleted and recreated: the checkpoint has topic id {self.topic_id}, "
                    f"the cluster has {self.found_topic_id}; position {self.offset} of {name} is invalid there"
                )
            case LossKind.OFFSETS_EXPIRED:
                return (
                    f"{name}: offsets {self.offset} to {self.log_start_offset - 1} were deleted "
                    f"(retention or DeleteRecords); the log starts at {self.log_start_offset}"
                )
            case LossKind.PARTITIONS_GONE:
                return (
                    f"{name} no longer exists or no longer matches the subscription; it had been read up to offset "
                    f"{self.offset}"
                    + (
                        f" in cluster {self.cluster_id}; kafka.bootstrap.servers leads to cluster "
                        f"{self.found_cluster_id}"
                        if self.found_cluster_id is not None
                        else ""
                    )
                )


_ADVICE: Final[Mapping[LossKind, str]] = {
    LossKind.LOG_TRUNCATED: (
        'Rows of the lost range are still in the sink. Set the option onTruncation to "rewind" (or failOnDataLoss to '
        '"false"), and statefulQuery to "false" if the query keeps no state, to read the log again from the point of '
        "divergence; a sink that uses leader epochs, such as fenceline_delta, then removes the stale rows. A stateful "
        "query needs includeRetractions from its start. Or remove the rows and start with a new checkpoint."
    ),
    LossKind.TOPIC_RECREATED: (
        'Use a new checkpointLocation for the new topic, or set the option onRecreated to "restart" (or failOnDataLoss '
        'to "false") to read it from its start.'
    ),
    LossKind.OFFSETS_EXPIRED: (
        'Raise the topic\'s retention, or set the option onExpired to "continue" (or failOnDataLoss to "false") to '
        "continue at the log's start."
    ),
    LossKind.PARTITIONS_GONE: (
        "A query that reads other topics needs its own checkpointLocation. To continue without these partitions, set "
        'the option failOnDataLoss to "false".'
    ),
}
_SEVERITY: Final = (
    LossKind.TOPIC_RECREATED,
    LossKind.LOG_TRUNCATED,
    LossKind.OFFSETS_EXPIRED,
    LossKind.PARTITIONS_GONE,
)


class DataLossError(FencelineError):
    """The log no longer holds what the query read or was to read. `losses` is never empty; the most serious kind is
    first. `advice`: None for the default advice of that kind.
    """

    def __init__(self, losses: Sequence[Loss], advice: str | None = None) -> None:
        assert losses, "a loss error without a loss"
        self.losses = tuple(sorted(losses, key=lambda loss: (_SEVERITY.index(loss.kind), loss.topic, loss.partition)))
        self.kind = self.losses[0].kind
        self.advice = advice
        super().__init__(describe(self.losses, advice))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.losses, self.advice)


def describe(losses: Sequence[Loss], advice: str | None = None) -> str:
    """The message of a `DataLossError`: a sentence for each of the first partitions, advice, code and JSON."""
    kind = losses[0].kind
    facts = json.dumps({"partitions": [asdict(loss) for loss in losses]}, sort_keys=True)
    sentences = "; ".join(loss.sentence() for loss in losses[:3])
    more = f"; and {len(losses) - 3} more" if len(losses) > 3 else ""
    return f"{sentences}{more}. {advice or _ADVICE[kind]} {kind} {facts}"


# In the progress of a query ------------------------------------------------------------------------------------------

_NAMES: Final[Mapping[LossKind, str]] = {
    LossKind.LOG_TRUNCATED: "truncations",
    LossKind.TOPIC_RECREATED: "recreated",
    LossKind.OFFSETS_EXPIRED: "expired",
    LossKind.PARTITIONS_GONE: "gone",
}


def losses_by_name(losses: Sequence[Loss]) -> dict[str, list[dict[str, Any]]]:
    """The form in an offset: each kind under its own name, without unknown fields."""
    named: dict[str, list[dict[str, Any]]] = {}
    for loss in losses:
        facts = {key: value for key, value in sorted(asdict(loss).items()) if key != "kind" and value not in (-1, None)}
        named.setdefault(_NAMES[loss.kind], []).append(facts)
    return named


def losses_named(encoded: Mapping[str, Any]) -> tuple[Loss, ...]:
    """Inverse of `losses_by_name`, for the object that contains them. Raises TypeError for anything else."""
    return tuple(Loss(kind=kind, **facts) for kind, name in _NAMES.items() for facts in encoded.get(name, ()))


def losses_of(progress: Any) -> tuple[Loss, ...]:
    """The losses that a query continued after, from a progress report (`query.lastProgress`, or that of a listener's
    event). Empty without losses, and for other kinds of sources."""
    sources = progress["sources"] if isinstance(progress, Mapping) else progress.sources
    found: list[Loss] = []
    for source in sources:
        end = source["endOffset"] if isinstance(source, Mapping) else source.endOffset
        try:
            encoded = json.loads(end) if isinstance(end, str) else end
            found += losses_named(encoded) if isinstance(encoded, Mapping) else ()
        except (ValueError, TypeError):
            continue
    return tuple(found)


# In the message of an exception ---------------------------------------------------------------------------------------

_MARK: Final = re.compile(r"\b(" + "|".join(LossKind) + r") (?=\{)")


def parse(error: object) -> tuple[Loss, ...] | None:
    """The losses in an exception or its text, or None for any other error.

    Accepts a `DataLossError`, Spark's `StreamingQueryException` or any other exception with its causes, or text.
    """
    if isinstance(error, DataLossError):
        return error.losses
    seen: set[int] = set()
    current: object | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        found = _parse_text(current if isinstance(current, str) else str(current))
        if found is not None:
            return found
        current = getattr(current, "__cause__", None)
    return None


def _parse_text(text: str) -> tuple[Loss, ...] | None:
    decoder = json.JSONDecoder()
    for mark in _MARK.finditer(text):
        try:
            facts, _ = decoder.raw_decode(text, mark.end())
            return tuple(Loss(**{**one, "kind": LossKind(one["kind"])}) for one in facts["partitions"])
        except (ValueError, KeyError, TypeError):
            continue
    return None
