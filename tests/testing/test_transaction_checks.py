"""Histories that break one rule of transactions each, and the anomaly that each gives."""

from __future__ import annotations

import pytest

from fenceline.testing.history import Partition
from fenceline.testing.transaction_checks import TransactionAnomalyKind, check, transaction_summary
from fenceline.testing.transaction_history import (
    UNDECIDED,
    ClientOutcome,
    ClientTransaction,
    ClientTransactions,
    Fate,
    LoggedEpoch,
    LoggedValue,
    PolledValue,
    ReadPosition,
    SentPosition,
    StableOffsetReport,
    TransactionLog,
    partition_name,
)

A: Partition = ("a", 0)
B: Partition = ("b", 0)
GROUP = "group"
Kind = TransactionAnomalyKind


class Story:
    """A history and its logs, written in the order of what happens."""

    def __init__(self) -> None:
        self.history = ClientTransactions()
        self.history.logs |= {A: TransactionLog(), B: TransactionLog()}

    def begin(self, client: str = "p") -> ClientTransaction:
        return self.history.begin(client, f"id of {client}")

    def send(self, transaction: ClientTransaction, partition: Partition, offset: int | None = None) -> int:
        """The value; acknowledged at `offset`, unless that is None."""
        sent = transaction.sends(partition, self.history.next_value())
        sent.offset = -1 if offset is None else offset
        return sent.value

    def end(self, transaction: ClientTransaction, *, commit: bool = True) -> None:
        transaction.asks(commit=commit)
        transaction.outcome = ClientOutcome.COMMITTED if commit else ClientOutcome.ABORTED
        transaction.decided_at = self.history.now()

    def log(
        self, partition: Partition, offset: int, value: int, marker: int, fate: Fate = Fate.COMMITTED
    ) -> LoggedValue:
        logged = LoggedValue(offset, value, fate, marker)
        self.history.logs[partition].values.append(logged)
        return logged

    def kinds(self) -> list[TransactionAnomalyKind]:
        return [each.kind for each in check(self.history)]


@pytest.fixture
def story() -> Story:
    return Story()


def _committed(story: Story) -> tuple[ClientTransaction, int, int]:
    """A transaction with a record in each partition, without a flaw."""
    transaction = story.begin()
    first, second = story.send(transaction, A, 0), story.send(transaction, B, 0)
    story.end(transaction)
    story.log(A, 0, first, 1)
    story.log(B, 0, second, 1)
    return transaction, first, second


def test_a_correct_history_has_no_anomaly(story: Story) -> None:
    _, first, _ = _committed(story)
    reader = story.history.reader("r")
    reader.positioned(A, 0)
    reader.polled(A, 0, first)
    story.history.was_told("r", StableOffsetReport(A, 0, 2, 2))
    assert story.kinds() == []
    assert transaction_summary(check(story.history)) == ""


def test_a_log_that_is_not_recorded_is_an_error() -> None:
    story = Story()
    story.send(story.begin(), ("c", 3))
    with pytest.raises(ValueError, match="c-3 is not recorded"):
        story.kinds()


def test_a_committed_record_is_missing(story: Story) -> None:
    transaction = story.begin()
    story.send(transaction, A, 0)
    story.end(transaction)
    assert story.kinds() == [Kind.LOST_WRITE]


def test_a_part_is_missing(story: Story) -> None:
    _committed(story)
    story.history.logs[B].values.clear()
    assert story.kinds() == [Kind.TORN]


def test_a_part_is_aborted_in_a_transaction_whose_outcome_is_unknown(story: Story) -> None:
    transaction = story.begin()
    first, second = story.send(transaction, A, 0), story.send(transaction, B, 0)
    transaction.asks(commit=True)
    story.log(A, 0, first, 1)
    story.log(B, 0, second, 1, Fate.ABORTED)
    assert story.kinds() == [Kind.TORN]


def test_a_send_without_acknowledgement_may_be_missing(story: Story) -> None:
    transaction = story.begin()
    first = story.send(transaction, A, 0)
    story.send(transaction, B)
    transaction.asks(commit=True)
    story.log(A, 0, first, 1)
    assert story.kinds() == []


def test_a_commit_that_no_one_asked_for(story: Story) -> None:
    story.log(A, 0, story.send(story.begin(), A, 0), 1)
    assert story.kinds() == [Kind.NOT_REQUESTED]


def test_an_acknowledged_abort_is_committed(story: Story) -> None:
    transaction = story.begin()
    value = story.send(transaction, A, 0)
    transaction.asks(commit=True)
    story.end(transaction, commit=False)
    story.log(A, 0, value, 1)
    assert story.kinds() == [Kind.NOT_ABORTED]


def test_a_record_is_committed_twice(story: Story) -> None:
    _, first, _ = _committed(story)
    story.log(A, 5, first, 6)
    assert story.kinds() == [Kind.DUPLICATE]


def test_a_record_was_never_sent_there(story: Story) -> None:
    _, first, _ = _committed(story)
    story.history.logs[A].values.clear()
    story.log(B, 7, first, 8)
    assert Kind.NEVER_SENT in story.kinds()


def test_a_transaction_is_left_open(story: Story) -> None:
    story.log(A, 0, story.send(story.begin(), A, 0), UNDECIDED, Fate.OPEN)
    assert story.kinds() == [Kind.LEFT_OPEN]


def test_an_acknowledgement_has_another_offset(story: Story) -> None:
    transaction, _, _ = _committed(story)
    transaction.sent[0].offset = 3
    assert story.kinds() == [Kind.INCONSISTENT_OFFSET]


def test_sends_change_their_order(story: Story) -> None:
    transaction = story.begin()
    first, second = story.send(transaction, A, 1), story.send(transaction, A, 0)
    story.end(transaction)
    story.log(A, 0, second, 2)
    story.log(A, 1, first, 2)
    assert story.kinds() == [Kind.NONMONOTONIC_SEND]


def test_an_older_epoch_follows(story: Story) -> None:
    story.history.logs[A].epochs += [LoggedEpoch(0, 7, 1), LoggedEpoch(1, 7, 2), LoggedEpoch(2, 7, 1)]
    assert story.kinds() == [Kind.EPOCH_FELL]


def test_a_reader_gets_an_aborted_record(story: Story) -> None:
    transaction = story.begin()
    value = story.send(transaction, A, 0)
    story.end(transaction, commit=False)
    story.log(A, 0, value, 1, Fate.ABORTED)
    story.history.reader("r").polled(A, 0, value)
    assert story.kinds() == [Kind.ABORTED_READ]


def test_a_reader_gets_what_the_log_has_not(story: Story) -> None:
    _, _, second = _committed(story)
    story.history.reader("r").polled(A, 0, second)
    assert story.kinds() == [Kind.INCONSISTENT_OFFSET]


def test_a_reader_skips_a_record(story: Story) -> None:
    _committed(story)
    transaction = story.begin()
    value = story.send(transaction, A, 2)
    story.end(transaction)
    story.log(A, 2, value, 3)
    reader = story.history.reader("r")
    reader.positioned(A, 0)
    reader.polled(A, 2, value)
    assert story.kinds() == [Kind.POLL_SKIP]


def test_a_reader_goes_back(story: Story) -> None:
    _, first, _ = _committed(story)
    reader = story.history.reader("r")
    reader.polled(A, 0, first)
    reader.polled(A, 0, first)
    assert story.kinds() == [Kind.NONMONOTONIC_POLL]
    reader.positioned(A, 0)
    reader.polled(A, 0, first)
    assert story.kinds() == [Kind.NONMONOTONIC_POLL]


def test_the_stable_offset_falls_under_one_leader(story: Story) -> None:
    story.history.reader("r")
    for epoch, stable in ((0, 5), (1, 3), (1, 2)):
        story.history.was_told("r", StableOffsetReport(A, epoch, stable, 9))
    assert story.kinds() == [Kind.STABLE_OFFSET_FELL]


@pytest.mark.parametrize(("stable", "log_end", "is_ahead"), [(1, 2, False), (1, 1, True), (0, 1, False)])
def test_the_stable_offset_passes_what_is_not_decided(story: Story, stable: int, log_end: int, is_ahead: bool) -> None:
    """The marker of the transaction at 0 is at 1."""
    _committed(story)
    story.history.reader("r")
    story.history.was_told("r", StableOffsetReport(A, 0, stable, log_end))
    assert story.kinds() == [Kind.STABLE_OFFSET_AHEAD] * is_ahead


def test_transactions_read_each_other(story: Story) -> None:
    """The shortest cycle is shown: T0 and T1, though T2 is in one with both."""
    transactions = [story.begin(f"p{number}") for number in range(3)]
    for number, each in enumerate(transactions):
        story.log(A, number, story.send(each, A, number), 9)
    for each, read in ((0, 1), (1, 0), (2, 1), (0, 2)):
        transactions[each].polled.append(PolledValue(A, read, transactions[read].sent[0].value))
    for each in transactions:
        story.end(each)
    (found,) = check(story.history)
    assert found.kind is Kind.CYCLE
    assert [each.number for each in found.transactions] == [0, 1]
    assert "T0 -> T1 -> T0" in str(found)


def _copied(story: Story, source: int, end: int, target: int) -> ClientTransaction:
    """The record at `source` of A is copied to `target` of B."""
    copying = story.begin("copier")
    copying.polled.append(PolledValue(A, source, story.history.logs[A].values[source].value))
    value = story.send(copying, B, target)
    copying.positions.append(SentPosition(GROUP, A, end))
    story.end(copying)
    story.log(B, target, value, target + 1)
    return copying


def _sources(story: Story, count: int) -> None:
    transaction = story.begin()
    for offset in range(count):
        story.log(A, offset, story.send(transaction, A, offset), count)
    story.end(transaction)


def test_a_record_is_copied_twice(story: Story) -> None:
    _sources(story, 1)
    _copied(story, 0, 1, 0)
    _copied(story, 0, 1, 2)
    assert story.kinds() == [Kind.COPIED_TWICE]


def test_a_record_is_not_copied(story: Story) -> None:
    _sources(story, 2)
    _copied(story, 1, 2, 0)
    assert story.kinds() == [Kind.NOT_COPIED]


def test_a_position_falls_back(story: Story) -> None:
    _sources(story, 1)
    _copied(story, 0, 1, 0)
    story.history.read_positions.append(ReadPosition(GROUP, A, 0, story.history.now()))
    assert story.kinds() == [Kind.WRONG_POSITION]


def test_a_position_that_no_transaction_committed(story: Story) -> None:
    _sources(story, 1)
    copying = _copied(story, 0, 1, 0)
    copying.outcome = ClientOutcome.ABORTED
    story.history.logs[B].values[0] = story.history.logs[B].values[0]._replace(fate=Fate.ABORTED)
    story.history.read_positions.append(ReadPosition(GROUP, A, 1, story.history.now()))
    assert story.kinds() == [Kind.WRONG_POSITION]


@pytest.mark.parametrize("is_late", [True, False])
def test_a_position_of_a_deleted_topic_moves_the_next_one_only_if_it_came_late(story: Story, is_late: bool) -> None:
    """TxnOffsetCommit names topics (transactions.md X30). A position that was accepted before the deletion belongs to
    the deleted topic: its namesake must not have it."""
    deleted, remade = partition_name("a", b"1" * 16, 0), partition_name("a", b"2" * 16, 0)
    story.history.logs |= {deleted: TransactionLog(), remade: TransactionLog()}
    story.history.read_positions.append(ReadPosition(GROUP, deleted, 0, story.history.now()))
    copying = story.begin("copier")
    story.log(B, 0, story.send(copying, B, 0), 1)
    if is_late:
        story.history.deletes("a")
    copying.positions.append(SentPosition(GROUP, deleted, 5, story.history.now()))
    if not is_late:
        story.history.deletes("a")
    story.end(copying)
    story.history.read_positions.append(ReadPosition(GROUP, remade, 5, story.history.now()))
    assert story.kinds() == ([] if is_late else [Kind.WRONG_POSITION])


def test_what_was_cut_proves_nothing(story: Story) -> None:
    transaction = story.begin()
    story.send(transaction, A, 0)
    story.end(transaction)
    assert list(check(story.history, is_lost=lambda partition, offset: (partition, offset) == (A, 0))) == []


def test_the_summary_shows_the_smallest_anomalies_first(story: Story) -> None:
    large = story.begin()
    for offset in range(5):
        story.send(large, A, offset)
    story.end(large)
    small = story.begin()
    story.send(small, B, 0)
    story.end(small)
    lines = transaction_summary(check(story.history), shown=1).splitlines()
    assert lines[0] == "2 LOST_WRITE"
    assert lines[-1].strip().startswith("T1 p (id of p): sends 6 to b-0 offset 0")
