"""What the Spark side refuses to go on from, in words that survive the way to the user.

Owns the four ways in which a log can lose what a query still needs, and the forms they travel in: the message of an
exception, and the query's progress. Spark keeps only the message of a Python exception (`pyspark.md S14`), so each
message holds a code and a JSON object; `parse` finds them again in whatever Spark made of it. A query that goes on puts
them into its offset, which progress shows (S5); `losses_of` finds them there. Never decides whether something is a
loss.

Shape of a message: `sentence for a person. advice LOG_TRUNCATED {"partitions": [...]}`.
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
    """How records that a query has read, or was about to read, went away."""

    LOG_TRUNCATED = "LOG_TRUNCATED"
    """The log was cut below the query's position and went on with other records (KIP-320)."""
    TOPIC_RECREATED = "TOPIC_RECREATED"
    """A topic of the same name, but with another id: offsets of the old one mean nothing."""
    OFFSETS_EXPIRED = "OFFSETS_EXPIRED"
    """Retention or DeleteRecords removed records that the query had not read yet."""
    PARTITIONS_GONE = "PARTITIONS_GONE"
    """The topic or partition no longer exists, or no longer matches the subscription."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One partition's loss.

    `offset` is the query's position: the next offset to read; `leader_epoch` the epoch of the record before it (-1:
    unknown). `divergent_offset`: first offset whose record is not the one read before (None: somewhere at or before
    `offset - 1`). `log_epoch`: the log's own epoch at that place. `log_start_offset`, `log_end_offset`: what the log
    holds now. `resume_offset`: where a query that is told to go on does so, never above the first record that it has
    not read as the log holds it (-1: nowhere). `cluster_id`: of the cluster that the position is of, None where the
    checkpoint does not know it; `found_cluster_id`: of the one that was asked, where it is another one.
    `current_leader_epoch`: the leader's own when the loss was found; offsets that tell of two losses at one place
    differ by it (S4). `maybe_read_to`: it happened while a batch was being read, so that records from `offset` up to
    here (exclusive) may have been read before (-1: none of them).
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
        """What happened to this partition, for a person."""
        doubt = (
            f"; it happened while a batch was being read, which may have read those below {self.maybe_read_to} before"
        )
        return self._sentence() + (doubt if self.maybe_read_to > self.offset else "")

    def _sentence(self) -> str:
        name = f"{self.topic}-{self.partition}"
        match self.kind:
            case LossKind.LOG_TRUNCATED:
                read_in = f"leader epoch {self.leader_epoch}" if self.leader_epoch >= 0 else "an unknown leader epoch"
                if self.divergent_offset is None:
                    where = f"the histories part at or before offset {self.offset - 1}"
                else:
                    last = self.offset - 1
                    where = f"offsets {self.divergent_offset} to {last} as read before are no longer in the log"
                return (
                    f"{name} was truncated under the query: position {self.offset} was read in {read_in}, {where} "
                    f"(the log is now in epoch {self.log_epoch} there and ends at {self.log_end_offset})"
                )
            case LossKind.TOPIC_RECREATED if self.found_cluster_id is not None:
                return (
                    f"topic {self.topic} is of another cluster: the checkpoint is of cluster {self.cluster_id}, "
                    f"kafka.bootstrap.servers leads to cluster {self.found_cluster_id}; position {self.offset} of "
                    f"{name} means nothing there"
                )
            case LossKind.TOPIC_RECREATED:
                return (
                    f"topic {self.topic} was deleted and created anew: the checkpoint is of id {self.topic_id}, "
                    f"the cluster has {self.found_topic_id}; position {self.offset} of {name} means nothing there"
                )
            case LossKind.OFFSETS_EXPIRED:
                return (
                    f"{name}: offsets {self.offset} to {self.log_start_offset - 1} are gone "
                    "(retention or DeleteRecords); "
                    f"the log starts at {self.log_start_offset}"
                )
            case LossKind.PARTITIONS_GONE:
                return (
                    f"{name} is gone, or is not what the query subscribes to any more; it had been read up to offset "
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
        '"false"), and statefulQuery to "false" where the query keeps no state, to go back to where the histories part '
        "and read what the log holds from there on; a sink that knows leader epochs then removes the stale rows, as "
        "fenceline_delta does. A query with state needs includeRetractions from its beginning. Or remove the rows and "
        "start from a new checkpoint."
    ),
    LossKind.TOPIC_RECREATED: (
        'Use a new checkpointLocation for the new topic, or set the option onRecreated to "restart" (or failOnDataLoss '
        'to "false") to read it from its start.'
    ),
    LossKind.OFFSETS_EXPIRED: (
        'Raise the topic\'s retention, or set the option onExpired to "continue" (or failOnDataLoss to "false") to go '
        "on from the log's start."
    ),
    LossKind.PARTITIONS_GONE: (
        "A query that reads other topics needs a checkpointLocation of its own; to go on without these partitions, set "
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
    """The log no longer holds what the query read or was to read. `losses` is never empty; its most serious kind
    leads. `advice`: None for what the kind's options offer.
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
    """As an offset shows them: each kind under a name of its own, what is not known left out."""
    named: dict[str, list[dict[str, Any]]] = {}
    for loss in losses:
        facts = {key: value for key, value in sorted(asdict(loss).items()) if key != "kind" and value not in (-1, None)}
        named.setdefault(_NAMES[loss.kind], []).append(facts)
    return named


def losses_named(encoded: Mapping[str, Any]) -> tuple[Loss, ...]:
    """Inverse of `losses_by_name`, for the whole object that they were put into. Raises TypeError for other things."""
    return tuple(Loss(kind=kind, **facts) for kind, name in _NAMES.items() for facts in encoded.get(name, ()))


def losses_of(progress: Any) -> tuple[Loss, ...]:
    """The losses that a query went on from, as one of its progress reports (`query.lastProgress`, or that of a
    listener's event) tells them. Empty where there was none, and for sources of other kinds."""
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
    """The losses that an exception (or its text) tells of, or None when it is about something else.

    Takes a `DataLossError`, Spark's `StreamingQueryException` or any other exception, or text; causes are looked at
    too.
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
