"""The client's exceptions, and which error codes are retriable.

All exceptions belong to the three families of `fenceline.errors`: an error response of a broker is a `PeerError` with
its code, a problem of the caller's configuration or network is an `OperatorError`. Each has advice in its message, its
details as attributes, and can be pickled (Spark workers send them to the driver).

Rules: `epochs.md` E48-E52, `list_offsets.md` L29.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from fenceline.client.core.loss_receipts import LossReceipt
from fenceline.client.core.offsets import CommittedOffset
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

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
"""Errors after which metadata is refreshed and the request is sent again (E51, E52)."""

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
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: "The user needs an ACL for the topic.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "The user needs an ACL for the group.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "The user needs an ACL for the cluster.",
    ErrorCode.MESSAGE_TOO_LARGE: "Raise the topic's max.message.bytes, or lower batch.size.",
    ErrorCode.RECORD_LIST_TOO_LARGE: "Lower batch.size below the topic's segment.bytes.",
    ErrorCode.NOT_ENOUGH_REPLICAS: "Fewer replicas are in sync than min.insync.replicas: start the missing brokers.",
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "Earlier records of this producer were lost in transit or by the broker.",
    ErrorCode.INVALID_PRODUCER_EPOCH: "Another producer has taken over this producer id.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "The user needs an ACL for the transactional.id.",
    ErrorCode.INVALID_TRANSACTION_TIMEOUT: "Lower transaction.timeout.ms to the broker's transaction.max.timeout.ms.",
    ErrorCode.CONCURRENT_TRANSACTIONS: "The previous transaction of this transactional.id is still being completed.",
    ErrorCode.INVALID_TXN_STATE: (
        "The transaction has ended, perhaps because it took longer than transaction.timeout.ms."
    ),
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE: "The topic or the broker's version does not support this compression.type.",
    ErrorCode.UNSUPPORTED_VERSION: "The node, or a feature level of its cluster, is too old for this call.",
    ErrorCode.MISMATCHED_ENDPOINT_TYPE: (
        "Use bootstrap.servers for brokers and bootstrap.controllers for controllers."
    ),
    ErrorCode.INVALID_UPDATE_VERSION: "List the levels that each node supports: fenceline features list.",
    ErrorCode.DUPLICATE_VOTER: "It is a voter already; if its directory was lost, remove the old voter first.",
    ErrorCode.VOTER_NOT_FOUND: "List the voters and their directory ids: fenceline quorum describe.",
    ErrorCode.BROKER_ID_NOT_REGISTERED: "List the registered brokers: fenceline brokers list.",
    ErrorCode.SASL_AUTHENTICATION_FAILED: "Check sasl.mechanism, sasl.username and sasl.password.",
    ErrorCode.ILLEGAL_GENERATION: (
        "The group has rebalanced without this member: poll more often or raise max.poll.interval.ms."
    ),
    ErrorCode.UNKNOWN_MEMBER_ID: "The group removed this member: poll more often or raise session.timeout.ms.",
    ErrorCode.FENCED_INSTANCE_ID: "Another consumer uses the same group.instance.id: give each consumer its own.",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: (
        "The group's members have no assignor in common: use the same partition.assignment.strategy."
    ),
    ErrorCode.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms is outside the broker's limits (group.min/max.session.timeout.ms)."
    ),
}


class ClientError(PeerError):
    """A `PeerError` whose attributes survive pickling: `facts` holds the keyword arguments that it was created with."""

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
    """An error that may be resolved by a retry. Calls retry it until their timeout."""


class FencedLeaderEpochError(RetriableError):
    """The request's leader epoch is older than the broker's: the client's metadata is stale (KIP-320, E2)."""


class UnknownLeaderEpochError(RetriableError):
    """The request's leader epoch is newer than the broker's: the broker's metadata is stale (KIP-320, E2)."""


class ConnectionLost(RetriableError):
    """A connection to a broker was lost or could not be established."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.NETWORK_EXCEPTION, message)


class TimedOut(RetriableError):
    """A response did not arrive in time, or a call's retries reached its timeout; the message has the last error."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class BrokersUnreachable(OperatorError):
    """None of `bootstrap.servers`, and no broker that they named, could be reached in time."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.message, self.advice)


class NeverReached(BrokersUnreachable):
    """The same, and there has been no connection before: an address is wrong rather than a cluster in trouble."""


class OffsetOutOfRangeError(ClientError):
    """`offset` is not in the log.

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
        known = (
            f"log start {log_start_offset}, log end {log_end_offset}" if log_end_offset >= 0 else "its range is unknown"
        )
        message = (
            f"{topic}-{partition}: offset {offset} is not in the log ({known}). "
            f"{detail or 'Retention or a truncation removed it'}: "
            "seek to an existing offset, or set auto.offset.reset."
        )
        ClientError.__init__(self, ErrorCode.OFFSET_OUT_OF_RANGE, message, **facts)
        self.__dict__.update(facts)

    @property
    def offset_out_of_range_partitions(self) -> dict[TopicPartition, int]:
        """The positions that are out of range, for every partition that the error covers."""
        return {TopicPartition(self.topic, self.partition): self.offset}


class LogTruncationError(OffsetOutOfRangeError):
    """The log was truncated below the position, so records that were read no longer exist (KIP-320, E48-E50).

    Attributes: topic, partition; truncated_from and leader_epoch (the position: next offset and epoch of the record
    before it; `offset` is the same as truncated_from); divergent_offset and divergent_epoch (the first offset at which
    the log differs from the records read, and the epoch of the record before it; -1 if the leader does not know);
    epochs (of the records read from there on, oldest first); evidence (loss receipts of a Fenceline cluster for that
    range). The records read at offsets `divergent_offset` to `truncated_from - 1` were removed.

    These attributes describe one partition. If a poll found several truncated partitions, `others` has the errors of
    the others, and `truncations`, `offset_out_of_range_partitions` and `truncation_offsets` cover all.
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
            read_in = " before" if not read_epochs else f" in {_epochs(read_epochs)}"
            at_epoch = "" if divergent_epoch < 0 else f" (epoch {divergent_epoch})"
            where = (
                f"it diverges at offset {divergent_offset}{at_epoch}: "
                f"records {divergent_offset} to {truncated_from - 1}, read{read_in}, were removed"
            )
            advice = f"Undo what was derived from them, then seek to {divergent_offset}."
        else:
            where = "the leader does not know that epoch, so the offset at which the log diverges is unknown"
            advice = "Compare the records that were read with the log, then seek to an offset that you trust."
        message = (
            f"{topic}-{partition}: the log was truncated below offset {truncated_from} "
            f"(read in leader epoch {leader_epoch}); {where}. {advice}"
        )
        if receipts:
            message += " Loss receipts: " + "; ".join(map(str, receipts)) + "."
        if more:
            message += f" Other truncated partitions: {len(more)}. " + " ".join(other.message for other in more)
        ClientError.__init__(self, ErrorCode.OFFSET_OUT_OF_RANGE, message, **facts)
        self.__dict__.update(facts)

    @property
    def truncations(self) -> tuple[LogTruncationError, ...]:
        """One error for each truncated partition, this one first."""
        return self, *self.others

    @property
    def offset_out_of_range_partitions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(one.topic, one.partition): one.truncated_from for one in self.truncations}

    @property
    def truncation_offsets(self) -> dict[TopicPartition, CommittedOffset]:
        """The first offset at which each log differs from the records read, with the epoch of the record before it, as
        `seek` accepts them. Partitions for which it is unknown are left out.
        """
        return {
            TopicPartition(one.topic, one.partition): CommittedOffset(one.divergent_offset, one.divergent_epoch)
            for one in self.truncations
            if one.divergent_offset >= 0
        }

    def with_evidence(self, evidence: Iterable[LossReceipt]) -> LogTruncationError:
        """The same truncation with these loss receipts."""
        return self._with(tuple(evidence), self.others)

    def with_others(self, others: Iterable[LogTruncationError]) -> LogTruncationError:
        """The same truncation with the errors of other partitions."""
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


class EvidenceIncompleteError(ClientError):
    """The evidence of a loss has fewer records than its receipt: some of its batches are damaged, or were not kept.

    Attributes: receipt, records (read), missing_records. Raised after all records that are there have been returned.
    """

    receipt: LossReceipt
    records: int
    missing_records: int

    def __init__(self, receipt: LossReceipt, records: int) -> None:
        facts = {"receipt": receipt, "records": records, "missing_records": receipt.records - records}
        note = f" ({receipt.evidence_note.rstrip('.')})" if receipt.evidence_note else ""
        message = (
            f"The evidence of loss receipt {receipt.id[:12]} has {records} of {receipt.records} records{note}: "
            "the others are in damaged batches, or were not kept. All records that are there have been returned."
        )
        ClientError.__init__(self, ErrorCode.CORRUPT_MESSAGE, message, **facts)
        self.__dict__.update(facts)


class EpochMismatchError(ClientError):
    """A record in a planned range has another leader epoch than planned: the log was truncated and rewritten.

    Attributes: topic, partition, offset (of the first such record), leader_epoch (found), expected_epoch (at the
    planned end).
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
            f"planned when the log ended in epoch {expected_epoch}. The log was truncated and rewritten: plan it again."
        )
        super().__init__(ErrorCode.FENCED_LEADER_EPOCH, message, **facts)
        self.__dict__.update(facts)


class TopicReplacedError(ClientError):
    """The topic was deleted and recreated: its id differs from the expected one.

    Attributes: topic, expected_id, found_id.
    """

    topic: str

    def __init__(self, topic: str, expected_id: object, found_id: object) -> None:
        facts = {"topic": topic, "expected_id": expected_id, "found_id": found_id}
        super().__init__(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"{topic}: the topic was deleted and recreated (expected id {expected_id}, found {found_id}). "
            "Offsets of the old topic are invalid: start over with the new one.",
            **facts,
        )
        self.__dict__.update(facts)


class UnknownEpochError(ClientError):
    """No leader reached the position's epoch within `default.api.timeout.ms`: the brokers are behind, or the offset is
    of another cluster. Attributes: topic, partition, offset, leader_epoch (of the position), known_epoch.
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
            f"epoch {known_epoch}. Either its brokers are behind, or the offset is of another cluster or of a deleted "
            "topic: check where it comes from, or seek without an epoch.",
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
            f"{topic}-{partition} has no committed offset and auto.offset.reset=none: seek to an offset, or set "
            "auto.offset.reset.",
            **facts,
        )
        self.__dict__.update(facts)


class CommitFailedError(ClientError):
    """The group rebalanced before the commit: other members own the partitions, and may read records again."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)


class BufferFull(ClientError):
    """The producer's buffer.memory stayed full for max.block.ms."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.REQUEST_TIMED_OUT, message)


class TransactionAbortable(ClientError):
    """The transaction cannot be committed, but the producer can continue: abort it, then repeat its work in a new one.
    The error that caused this is the `__cause__`.
    """

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)


class TransactionAborted(ClientError):
    """A record was not sent, or not sent again, because its transaction was aborted."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_TXN_STATE, message)


class TransactionFailed(ClientError):
    """The producer cannot be used any more: close it. A new one with the same transactional.id ends its transaction."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(code, message)


class ProducerFenced(TransactionFailed):
    """The coordinator does not accept this producer any more: another one has started with the same transactional.id,
    or the transaction took longer than transaction.timeout.ms.
    """


_KINDS: Final[Mapping[ErrorCode, type[ClientError]]] = {
    ErrorCode.FENCED_LEADER_EPOCH: FencedLeaderEpochError,
    ErrorCode.UNKNOWN_LEADER_EPOCH: UnknownLeaderEpochError,
}


def error_code(value: int) -> ErrorCode:
    """The code of a number in a response; UNKNOWN_SERVER_ERROR for one that this client does not know."""
    if value == 0:
        return ErrorCode.NONE
    try:
        return ErrorCode(int(value))
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def broker_error(code: ErrorCode, subject: str, message: str | None = None) -> ClientError:
    """The exception for an error code: its message has the subject, the broker's message, and advice."""
    text = f"{subject}: {code.name}"
    if message:
        text += f" ({message.rstrip('.')})"
    advice = _ADVICE.get(code)
    kind = _KINDS.get(code, RetriableError if code in RETRIABLE else ClientError)
    return kind(code, f"{text}. {advice}" if advice else text)


def raise_if(result: Any, subject: str) -> None:
    """Raise if the result's error code is not NONE, with its error message if it has one."""
    code = error_code(result.error_code)
    if code is not ErrorCode.NONE:
        raise broker_error(code, subject, getattr(result, "error_message", None))
