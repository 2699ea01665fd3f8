"""What the client raises, and which answers of a broker are worth another try.

Owns the client's exceptions. All belong to the three families of `fenceline.errors`: a broker's answer is a `PeerError`
with its code, a thing only the caller's configuration or network can mend is an `OperatorError`. Every one says what to
do, can be pickled (Spark workers send them home) and carries its facts as attributes.

Rules: `epochs.md` E48-E52, `list_offsets.md` L29.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.client.loss_receipts import LossReceipt
    from fenceline.client.offsets import CommittedOffset

STALE_METADATA: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Answers that mean: look the leader up again, then ask again (E51, E52)."""

RETRIABLE: Final = STALE_METADATA | {
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
COORDINATOR_MOVED: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

_ADVICE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "Check the topic's name, or create the topic first.",
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "This user may not use the topic: ask for an ACL.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "This user may not use the group: ask for an ACL.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "This user lacks a permission on the cluster.",
    ErrorCode.MESSAGE_TOO_LARGE: "Raise the topic's max.message.bytes, or lower batch.size.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Lower batch.size below the topic's segment.bytes.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Fewer replicas are in sync than min.insync.replicas asks for: bring brokers back.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "Records of this producer were lost on the way or on the broker.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "Another producer took over this one's id.",
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "The topic or the broker's version does not take this compression.type.",
    ErrorCode.UNSUPPORTED_VERSION: "The other side, or a feature level of its cluster, is too old for this call.",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: (
        "Brokers are named by bootstrap.servers, controllers by bootstrap.controllers."
    ),
    ErrorCode.INVALID_UPDATE_VERSION: "See what every node supports: fenceline features list.",
    ErrorCode.DUPLICATE_VOTER: "It votes already; remove a voter whose directory was lost before its id votes again.",
    ErrorCode.VOTER_NOT_FOUND: "See who votes, and with which directory id: fenceline quorum describe.",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "See who is registered: fenceline brokers list.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check sasl.mechanism, sasl.username and sasl.password.",
    ErrorCode.ILLEGAL_GENERATION: (
        "The group moved on without this member: poll more often or raise max.poll.interval.ms."
    ),
    ErrorCode.UNKNOWN_MEMBER_ID: "The group forgot this member: poll more often or raise session.timeout.ms.",
    ErrorCode.FENCED_INSTANCE_ID: "Another consumer runs with the same group.instance.id: give each its own.",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "The group's members share no assignor: use the same partition.assignment.strategy."
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is outside of what the broker allows (group.min/max.session.timeout.ms)."
    ),
}


class ClientError(PeerError):
    """A `PeerError` whose facts survive pickling: `facts` are the keyword arguments it was made from."""

    def __init__(self, code: ErrorCode, message: str, **facts: Any) -> None:
        super().__init__(code, message)
        self.facts = facts

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.code, self.message, self.facts)


def _rebuild(kind: type[ClientError], code: ErrorCode, message: str, facts: dict[str, Any]) -> ClientError:
    made = kind.__new__(kind)
    ClientError.__init__(made, code, message, **facts)
    made.__dict__.update(facts)
    return made


class RetriableError(ClientError):
    """A refusal that says nothing against another try. Calls make it themselves while their time lasts."""


class FencedLeaderEpochError(RetriableError):
    """The request carried an older leader epoch than the broker's: the metadata behind it are stale (KIP-320, E2)."""


class UnknownLeaderEpochError(RetriableError):
    """The request carried a newer leader epoch than the broker knows yet: the broker is behind (KIP-320, E2)."""


class ConnectionLost(RetriableError):
    """A broker's connection broke or could not be made. Retried inside a call while its time lasts."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class TimedOut(RetriableError):
    """No answer in time, or a call's retries used up its time; the message names the last trouble."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class BrokersUnreachable(OperatorError):
    """None of `bootstrap.servers` (or of the brokers they named) could be reached in time."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.advice)


class OffsetOutOfRangeError(ClientError):
    """The log does not hold `offset`.

    Attributes: topic, partition, offset, leader_epoch, log_start_offset, log_end_offset (-1 where unknown).
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    log_start_offset: int
    log_end_offset: int

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        leader_epoch: int = -1,
        log_start_offset: int = -1,
        log_end_offset: int = -1,
        detail: str = "",
    ) -> None:
        facts = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "leader_epoch": leader_epoch,
            "log_start_offset": log_start_offset,
            "log_end_offset": log_end_offset,
        }
        known = f"it holds {log_start_offset} to {log_end_offset}" if log_end_offset >= 0 else "its range is unknown"
        message = (
            f"{topic}-{partition}: offset {offset} is not in the log ({known}). "
            f"{detail or 'Retention or a truncation removed it'}: "
            "seek to an offset that exists, or set auto.offset.reset."
        )
        ClientError.__init__(self, ErrorCode.OFFSET_OUT_OF_RANGE, message, **facts)
        self.__dict__.update(facts)

    @property
    def offset_out_of_range_partitions(self) -> dict[TopicPartition, int]:
        """The positions that are not in the log any more, of every partition that the error is about."""
        return {TopicPartition(self.topic, self.partition): self.offset}


class LogTruncationError(OffsetOutOfRangeError):
    """The log was cut below a position that had been read, so records seen before no longer exist (KIP-320, E48-E50).

    Attributes: topic, partition; truncated_from and leader_epoch (the position: next offset and epoch of the record
    before it; the former is `offset`, too); divergent_offset and divergent_epoch (up to where the log is what was read,
    and the epoch of its record before; -1 when the leader could not tell); epochs (of what was read from there on,
    oldest first); evidence (loss receipts of a Fenceline cluster for that range, empty where there are none). What was
    read of offsets `divergent_offset` to `truncated_from - 1` is gone.

    These are of one partition. Where a poll found more than one of them cut, `others` has the errors of the others, and
    `truncations`, `offset_out_of_range_partitions` and `truncation_offsets` speak of all.
    """

    truncated_from: int
    divergent_offset: int
    divergent_epoch: int
    epochs: tuple[int, ...]
    evidence: tuple[LossReceipt, ...]
    others: tuple[LogTruncationError, ...]

    def __init__(
        self,
        topic: str,
        partition: int,
        truncated_from: int,
        leader_epoch: int,
        *,
        divergent_offset: int = -1,
        divergent_epoch: int = -1,
        epochs: Iterable[int] = (),
        evidence: Iterable[LossReceipt] = (),
        others: Iterable[LogTruncationError] = (),
    ) -> None:
        read_epochs, receipts, more = tuple(epochs), tuple(evidence), tuple(others)
        facts = {
            "topic": topic,
            "partition": partition,
            "offset": truncated_from,
            "truncated_from": truncated_from,
            "leader_epoch": leader_epoch,
            "log_start_offset": -1,
            "log_end_offset": -1,
            "divergent_offset": divergent_offset,
            "divergent_epoch": divergent_epoch,
            "epochs": read_epochs,
            "evidence": receipts,
            "others": more,
        }
        if divergent_offset >= 0:
            read_in = "" if not read_epochs else f" in {_epochs(read_epochs)}"
            at_epoch = "" if divergent_epoch < 0 else f" (epoch {divergent_epoch})"
            where = (
                f"the histories part at offset {divergent_offset}{at_epoch}: "
                f"records {divergent_offset} to {truncated_from - 1} as read before{read_in} are gone"
            )
            advice = f"undo what was derived from them, then seek to {divergent_offset}"
        else:
            where = "the leader no longer knows that epoch, so the point where the histories part is unknown"
            advice = "compare what was read with the log, then seek to an offset you trust"
        message = (
            f"{topic}-{partition}: the log was truncated under offset {truncated_from} "
            f"(read in leader epoch {leader_epoch}); {where}. "
            f"To go on, {advice}."
        )
        if receipts:
            message += " Loss receipts: " + "; ".join(map(str, receipts)) + "."
        if more:
            message += f" {len(more)} other partitions were cut as well. " + " ".join(other.message for other in more)
        ClientError.__init__(self, ErrorCode.OFFSET_OUT_OF_RANGE, message, **facts)
        self.__dict__.update(facts)

    @property
    def truncations(self) -> tuple[LogTruncationError, ...]:
        """One error for each partition that was found cut, this one first."""
        return self, *self.others

    @property
    def offset_out_of_range_partitions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(one.topic, one.partition): one.truncated_from for one in self.truncations}

    @property
    def truncation_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """Up to where each log is what was read: the first offset that differs, with the epoch of the record before it,
        as `seek` takes them. A partition whose leader cannot tell is not in it.
        """
        from fenceline.client.offsets import CommittedOffset

        return {
            TopicPartition(one.topic, one.partition): CommittedOffset(one.divergent_offset, one.divergent_epoch)
            for one in self.truncations
            if one.divergent_offset >= 0
        }

    def with_evidence(self, evidence: Iterable[LossReceipt]) -> LogTruncationError:
        """The same truncation with the receipts that were found for it."""
        return self._with(tuple(evidence), self.others)

    def with_others(self, others: Iterable[LogTruncationError]) -> LogTruncationError:
        """The same truncation as one of several that were found at once."""
        return self._with(self.evidence, tuple(others))

    def _with(self, evidence: tuple[LossReceipt, ...], others: tuple[LogTruncationError, ...]) -> LogTruncationError:
        return LogTruncationError(
            self.topic,
            self.partition,
            self.truncated_from,
            self.leader_epoch,
            divergent_offset=self.divergent_offset,
            divergent_epoch=self.divergent_epoch,
            epochs=self.epochs,
            evidence=evidence,
            others=others,
        )


def _epochs(epochs: tuple[int, ...]) -> str:
    if len(epochs) == 1:
        return f"epoch {epochs[0]}"
    if len(epochs) > 4:
        return f"epochs {epochs[0]} to {epochs[-1]}"
    return f"epochs {', '.join(map(str, epochs[:-1]))} and {epochs[-1]}"


class EpochMismatchError(ClientError):
    """A record inside a planned range carries a newer leader epoch than the plan knew: the range was rewritten.

    Attributes: topic, partition, offset (of the first such batch), leader_epoch (found), expected_epoch (highest
    allowed).
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    expected_epoch: int

    def __init__(self, topic: str, partition: int, offset: int, leader_epoch: int, expected_epoch: int) -> None:
        facts = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "leader_epoch": leader_epoch,
            "expected_epoch": expected_epoch,
        }
        message = (
            f"{topic}-{partition}: offset {offset} was written in leader epoch {leader_epoch}, but the range was "
            f"planned when the log ended in epoch {expected_epoch}. The log was cut and rewritten: plan it again."
        )
        super().__init__(ErrorCode.FENCED_LEADER_EPOCH, message, **facts)
        self.__dict__.update(facts)


class TopicReplacedError(ClientError):
    """A topic of that name exists, but it is not the one that was asked for (its id differs).

    Attributes: topic, expected_id, found_id.
    """

    topic: str

    def __init__(self, topic: str, expected_id: object, found_id: object) -> None:
        facts = {"topic": topic, "expected_id": expected_id, "found_id": found_id}
        super().__init__(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{topic}: the topic was deleted and created anew (id {expected_id} was expected, {found_id} found). "
            "Offsets of the old one mean nothing here: start over.",
            **facts,
        )
        self.__dict__.update(facts)


class UnknownEpochError(ClientError):
    """A position's epoch is newer than any that the cluster has had for a long while: brokers that are behind, or an
    offset of another cluster. Attributes: topic, partition, offset, leader_epoch (the position's), known_epoch.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    known_epoch: int

    def __init__(self, topic: str, partition: int, offset: int, leader_epoch: int, known_epoch: int) -> None:
        facts = {
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "leader_epoch": leader_epoch,
            "known_epoch": known_epoch,
        }
        super().__init__(
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{topic}-{partition}: offset {offset} was read in leader epoch {leader_epoch}, but the cluster is in "
            f"epoch {known_epoch}. Either its brokers are behind, or the offset is of another cluster or of a topic "
            "that was deleted: look where it comes from, or seek without an epoch.",
            **facts,
        )
        self.__dict__.update(facts)


class NoOffsetError(ClientError):
    """A partition has neither a committed offset nor a reset policy. Attributes: topic, partition."""

    topic: str
    partition: int

    def __init__(self, topic: str, partition: int) -> None:
        facts = {"topic": topic, "partition": partition}
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{topic}-{partition} has no committed offset and auto.offset.reset=none: seek to an offset, or set the "
            "policy.",
            **facts,
        )
        self.__dict__.update(facts)


class CommitFailedError(ClientError):
    """The group moved on before a commit: other members own the partitions now. Records since may be read twice."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)


class BufferFull(ClientError):
    """The producer's buffer.memory stayed full for max.block.ms."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


_KINDS: Final[Mapping[ErrorCode, type[ClientError]]] = {
    ErrorCode.FENCED_LEADER_EPOCH: FencedLeaderEpochError,
    ErrorCode.UNKNOWN_LEADER_EPOCH: UnknownLeaderEpochError,
}


def error_code(value: int) -> ErrorCode:
    """The code for a number from the wire; a number newer than this client reads as UNKNOWN_SERVER_ERROR."""
    try:
        return ErrorCode(int(value))
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def broker_error(code: ErrorCode, subject: str, message: str | None = None) -> ClientError:
    """A broker's refusal in words: what it was about, the broker's own message, and what to do."""
    text = f"{subject}: {code.name}"
    if message:
        text += f" ({message.rstrip('.')})"
    advice = _ADVICE.get(code)
    kind = _KINDS.get(code, RetriableError if code in RETRIABLE else ClientError)
    return kind(code, f"{text}. {advice}" if advice else text)


def raise_if(result: Any, subject: str) -> None:
    """Raise for a result whose error code is another than NONE, with its message where it has one."""
    code = error_code(result.error_code)
    if code is not ErrorCode.NONE:
        raise broker_error(code, subject, getattr(result, "error_message", None))
