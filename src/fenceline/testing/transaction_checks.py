"""Checks a history of transactions for what cannot have happened in a correct log.

Owns the rules and nothing else: pure functions of a `ClientTransactions`, in time and memory linear in its size. Raises
nothing for a violation: each is a `TransactionAnomaly`, which prints the transactions that it consists of and nothing
else, a cycle as the shortest one.

The anomalies are those of Jepsen's Kafka workload (`transactions.md X68`), and a few that need the logs. Allowed, as in
Kafka: cycles of writes, and records of others between two of one transaction.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Final

from fenceline.testing.history import NO_OFFSET, ConsumerHistory, Partition
from fenceline.testing.transaction_history import (
    UNDECIDED,
    ClientOutcome,
    ClientTransaction,
    ClientTransactions,
    Fate,
    LoggedValue,
    TransactionLog,
    topic_of,
)

_SHOWN_TRANSACTIONS: Final = 6
_NEVER: Final = 1 << 62


class TransactionAnomalyKind(Enum):
    LOST_WRITE = "acknowledged in a committed transaction, but not committed in the log"
    TORN = "a part of a transaction is committed, another is not"
    NOT_REQUESTED = "committed, but no client asked for it"
    NOT_ABORTED = "committed, but the abort was acknowledged"
    DUPLICATE = "committed twice"
    NEVER_SENT = "in the log, but never sent to this partition"
    LEFT_OPEN = "its transaction never ended"
    INCONSISTENT_OFFSET = "two values at one offset"
    NONMONOTONIC_SEND = "before a record that its transaction sent earlier"
    ABORTED_READ = "read as committed, but not committed in the log"
    CYCLE = "transactions that read each other's records"
    POLL_SKIP = "committed, but skipped by a reader"
    NONMONOTONIC_POLL = "a reader went back without a seek"
    STABLE_OFFSET_FELL = "the last stable offset decreased"
    STABLE_OFFSET_AHEAD = "beyond a record that was not decided"
    EPOCH_FELL = "an older epoch of the producer after a newer one"
    COPIED_TWICE = "copied to the output twice"
    NOT_COPIED = "below the committed position of the group, but not in the output"
    WRONG_POSITION = "the group's committed position"


@dataclass(frozen=True, slots=True)
class TransactionAnomaly:
    """`transactions`: those that show it, in the order of a cycle."""

    kind: TransactionAnomalyKind
    detail: str
    transactions: tuple[ClientTransaction, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.kind.name}: {self.detail} ({self.kind.value})"]
        lines += [f"  {each}" for each in self.transactions[:_SHOWN_TRANSACTIONS]]
        hidden = len(self.transactions) - _SHOWN_TRANSACTIONS
        return "\n".join([*lines, f"  and {hidden} more"] if hidden > 0 else lines)


def check(
    history: ClientTransactions, *, is_lost: Callable[[Partition, int], bool] = lambda partition, offset: False
) -> Iterator[TransactionAnomaly]:
    """All anomalies. `is_lost`: whether what was at this offset was cut, and a receipt says so; acknowledgements and
    reads of it prove nothing. Raises ValueError if a log is missing."""
    yield from _TransactionCheck(history, is_lost).anomalies()


class _Located:
    """A value in a log."""

    __slots__ = ("logged", "partition")

    def __init__(self, partition: Partition, logged: LoggedValue) -> None:
        self.partition = partition
        self.logged = logged


class _UndecidedOffsets:
    """The transactions of one log: by first offset, with the greatest marker up to each."""

    def __init__(self, log: TransactionLog) -> None:
        first: dict[int, int] = {}
        found: list[tuple[int, int]] = []
        for each in log.values:
            if each.marker == UNDECIDED:
                found.append((each.offset, _NEVER))
            elif each.marker != each.offset:
                first.setdefault(each.marker, each.offset)
        found += [(offset, marker) for marker, offset in first.items()]
        self._found = sorted(found)
        self._greatest = list(accumulate((marker for _, marker in self._found), max))

    def first_below(self, stable: int, log_end: int) -> int | None:
        """The first offset of a transaction that begins below `stable` and has no marker below `log_end`."""
        count = bisect_left(self._found, (stable, -1))
        if not count or self._greatest[count - 1] < log_end:
            return None
        return next(offset for offset, marker in self._found[:count] if marker >= log_end)


class _TransactionCheck:
    """The check of one history."""

    def __init__(self, history: ClientTransactions, is_lost: Callable[[Partition, int], bool]) -> None:
        self._history = history
        self._is_lost = is_lost
        self._sender: dict[int, ClientTransaction] = {}
        """By value."""
        used = set(history.plain_values.values())
        for transaction in history.transactions:
            for sent in transaction.sent:
                self._sender[sent.value] = transaction
                used.add(sent.partition)
        missing = used - history.logs.keys()
        if missing:
            topic, index = min(missing)
            raise ValueError(f"the final content of the log of {topic}-{index} is not recorded")
        self._at: dict[Partition, dict[int, LoggedValue]] = {
            partition: {each.offset: each for each in log.values} for partition, log in history.logs.items()
        }
        self._where: dict[int, _Located] = {}
        """By value: its first committed place, or its first place."""
        for partition, log in history.logs.items():
            for each in log.values:
                known = self._where.get(each.value)
                if known is None or (known.logged.fate is not Fate.COMMITTED and each.fate is Fate.COMMITTED):
                    self._where[each.value] = _Located(partition, each)

    def anomalies(self) -> Iterator[TransactionAnomaly]:
        for partition, log in self._history.logs.items():
            yield from self._log(partition, log)
            yield from self._epochs(partition, log)
        for transaction in self._history.transactions:
            yield from self._transaction(transaction)
        for reader in self._history.readers:
            yield from self._polls(reader)
            yield from self._stable_offsets(reader)
        yield from self._cycles()
        yield from self._copies()
        yield from self._positions()

    def _anomaly(
        self, kind: TransactionAnomalyKind, detail: str, *transactions: ClientTransaction | None
    ) -> TransactionAnomaly:
        return TransactionAnomaly(kind, detail, tuple(each for each in transactions if each is not None))

    def _shown(self, partition: Partition, offset: int, value: int) -> str:
        return f"value {value} at {partition[0]}-{partition[1]} offset {offset}"

    # --- logs ----------------------------------------

    def _log(self, partition: Partition, log: TransactionLog) -> Iterator[TransactionAnomaly]:
        committed: dict[int, int] = {}
        for each in log.values:
            sender = self._sender.get(each.value)
            shown = self._shown(partition, each.offset, each.value)
            sent_to = (
                {sent.partition for sent in sender.sent if sent.value == each.value}
                if sender is not None
                else {self._history.plain_values.get(each.value)}
            )
            if partition not in sent_to:
                yield self._anomaly(TransactionAnomalyKind.NEVER_SENT, shown, sender)
            if each.fate is Fate.OPEN:
                yield self._anomaly(TransactionAnomalyKind.LEFT_OPEN, shown, sender)
            if each.fate is not Fate.COMMITTED:
                continue
            before = committed.setdefault(each.value, each.offset)
            if before != each.offset:
                yield self._anomaly(TransactionAnomalyKind.DUPLICATE, f"{shown}, and at {before}", sender)
            if sender is not None and not sender.commit_requested:
                yield self._anomaly(TransactionAnomalyKind.NOT_REQUESTED, shown, sender)
            elif sender is not None and sender.outcome is ClientOutcome.ABORTED:
                yield self._anomaly(TransactionAnomalyKind.NOT_ABORTED, shown, sender)

    def _epochs(self, partition: Partition, log: TransactionLog) -> Iterator[TransactionAnomaly]:
        newest: dict[int, int] = {}
        for offset, producer_id, epoch in log.epochs:
            if epoch < newest.get(producer_id, epoch):
                yield self._anomaly(
                    TransactionAnomalyKind.EPOCH_FELL,
                    f"epoch {epoch} of producer {producer_id} at {partition[0]}-{partition[1]} offset {offset},"
                    f" after {newest[producer_id]}",
                )
            newest[producer_id] = epoch

    # --- transactions ----------------------------------------

    def _transaction(self, transaction: ClientTransaction) -> Iterator[TransactionAnomaly]:
        committed, missing = [], []
        newest: dict[Partition, int] = {}
        for sent in transaction.sent:
            place = self._where.get(sent.value)
            is_committed = place is not None and place.logged.fate is Fate.COMMITTED
            if sent.offset != NO_OFFSET and self._is_lost(sent.partition, sent.offset):
                continue
            if is_committed:
                committed.append(sent)
            elif sent.offset != NO_OFFSET or place is not None:
                missing.append(sent)
            if place is None:
                continue
            offset = place.logged.offset
            shown = self._shown(sent.partition, offset, sent.value)
            if sent.offset not in (NO_OFFSET, offset):
                yield self._anomaly(
                    TransactionAnomalyKind.INCONSISTENT_OFFSET,
                    f"{shown}, acknowledged at {sent.offset}",
                    transaction,
                )
            if offset < newest.get(sent.partition, -1):
                yield self._anomaly(TransactionAnomalyKind.NONMONOTONIC_SEND, shown, transaction)
            newest[sent.partition] = offset
        if committed and missing:
            shown = self._shown(missing[0].partition, missing[0].offset, missing[0].value)
            yield self._anomaly(
                TransactionAnomalyKind.TORN, f"{shown} is missing, value {committed[0].value} is not", transaction
            )
        elif missing and transaction.outcome is ClientOutcome.COMMITTED:
            shown = self._shown(missing[0].partition, missing[0].offset, missing[0].value)
            yield self._anomaly(TransactionAnomalyKind.LOST_WRITE, shown, transaction)
        for partition, offset, value in transaction.polled:
            yield from self._read(transaction.client, partition, offset, value, transaction)

    # --- readers ----------------------------------------

    def _read(
        self, who: str, partition: Partition, offset: int, value: int, reader: ClientTransaction | None = None
    ) -> Iterator[TransactionAnomaly]:
        """`who` received this as a committed record."""
        if self._is_lost(partition, offset):
            return
        known = self._at.get(partition, {}).get(offset)
        shown = f"{who} read {self._shown(partition, offset, value)}"
        sender = self._sender.get(value)
        if known is None or known.value != value:
            has = "nothing" if known is None else str(known.value)
            yield self._anomaly(
                TransactionAnomalyKind.INCONSISTENT_OFFSET, f"{shown}, the log has {has}", sender, reader
            )
        elif known.fate is not Fate.COMMITTED:
            yield self._anomaly(TransactionAnomalyKind.ABORTED_READ, f"{shown}, {known.fate.value}", sender, reader)

    def _polls(self, reader: ConsumerHistory) -> Iterator[TransactionAnomaly]:
        for partition, polls in reader.polls.items():
            log = self._history.logs.get(partition)
            offsets = [each.offset for each in log.values if each.fate is Fate.COMMITTED] if log is not None else []
            position: int | None = None
            for offset, value in zip(polls.offsets, polls.values, strict=True):
                if offset < 0:
                    position = value
                    continue
                shown = f"{reader.name} at {self._shown(partition, offset, value)}, its position was {position}"
                if position is not None and offset < position:
                    yield self._anomaly(TransactionAnomalyKind.NONMONOTONIC_POLL, shown, self._sender.get(value))
                elif position is not None:
                    index = bisect_left(offsets, position)
                    if index < len(offsets) and offsets[index] < offset:
                        skipped = self._at[partition][offsets[index]]
                        yield self._anomaly(
                            TransactionAnomalyKind.POLL_SKIP,
                            f"{shown}, between is {self._shown(partition, skipped.offset, skipped.value)}",
                            self._sender.get(skipped.value),
                            self._sender.get(value),
                        )
                position = offset + 1
                yield from self._read(reader.name, partition, offset, value)

    def _stable_offsets(self, reader: ConsumerHistory) -> Iterator[TransactionAnomaly]:
        """It never falls under one leader: the next one may not know the high watermark at first."""
        told: dict[tuple[Partition, int], int] = {}
        undecided = {partition: _UndecidedOffsets(log) for partition, log in self._history.logs.items()}
        for partition, epoch, stable, log_end in self._history.stable_offsets[reader.name]:
            before = told.get((partition, epoch), 0)
            shown = f"{reader.name} was told {stable} of {partition[0]}-{partition[1]} in epoch {epoch}"
            if stable < before and not self._is_lost(partition, stable):
                yield self._anomaly(TransactionAnomalyKind.STABLE_OFFSET_FELL, f"{shown} after {before}")
            told[partition, epoch] = stable
            first = undecided[partition].first_below(stable, log_end) if partition in undecided else None
            if first is not None and not self._is_lost(partition, first):
                value = self._at[partition][first].value
                yield self._anomaly(
                    TransactionAnomalyKind.STABLE_OFFSET_AHEAD,
                    f"{shown}, its log ended at {log_end}, {self._shown(partition, first, value)} was not decided",
                    self._sender.get(value),
                )

    # --- cycles ----------------------------------------

    def _cycles(self) -> Iterator[TransactionAnomaly]:
        """The shortest cycle of each group of transactions that read each other's records."""
        edges: dict[int, set[int]] = defaultdict(set)
        for transaction in self._history.transactions:
            for polled in transaction.polled:
                sender = self._sender.get(polled.value)
                if sender is not None and sender is not transaction:
                    edges[sender.number].add(transaction.number)
        for group in _strongly_connected(edges):
            cycle = _shortest_cycle(edges, group)
            found = [self._history.transactions[number] for number in cycle]
            shown = " -> ".join(f"T{each.number}" for each in [*found, found[0]])
            yield self._anomaly(TransactionAnomalyKind.CYCLE, f"each is read by the next: {shown}", *found)

    # --- copies ----------------------------------------

    def _copies(self) -> Iterator[TransactionAnomaly]:
        """Each record that a group has passed was copied once: by the committed transactions of its group."""
        uncertain = self._uncertain_positions()
        copied: dict[tuple[str, Partition], dict[int, ClientTransaction]] = defaultdict(dict)
        position: dict[tuple[str, Partition], int] = defaultdict(int)
        unknown: set[tuple[Partition, int]] = set()
        """Copied by a transaction of which neither log nor client knows the outcome: its records are gone."""
        for transaction in self._history.transactions:
            is_untraceable = transaction.outcome is ClientOutcome.UNKNOWN and all(
                self._is_lost(sent.partition, sent.offset) for sent in transaction.sent
            )
            if not transaction.positions or not (is_untraceable or self._is_visible(transaction)):
                continue
            if is_untraceable:
                unknown.update((polled.partition, polled.offset) for polled in transaction.polled)
                continue
            groups = {
                (each.group, each.partition): each.offset
                for each in transaction.positions
                if (each.group, each.partition) not in uncertain
            }
            for key, offset in groups.items():
                position[key] = max(position[key], offset)
                for polled in transaction.polled:
                    if polled.partition != key[1]:
                        continue
                    before = copied[key].setdefault(polled.offset, transaction)
                    if before is not transaction:
                        shown = self._shown(polled.partition, polled.offset, polled.value)
                        yield self._anomaly(TransactionAnomalyKind.COPIED_TWICE, shown, before, transaction)
        for (group, partition), end in position.items():
            log, done = self._history.logs.get(partition), copied[group, partition]
            for each in log.values if log is not None else ():
                is_due = each.offset < end and each.fate is Fate.COMMITTED
                if is_due and each.offset not in done and (partition, each.offset) not in unknown:
                    yield self._anomaly(
                        TransactionAnomalyKind.NOT_COPIED,
                        f"{self._shown(partition, each.offset, each.value)}, {group} is at {end}",
                        self._sender.get(each.value),
                    )

    def _is_visible(self, transaction: ClientTransaction) -> bool:
        """Whether the logs have a committed record of it, or its client was told so."""
        if transaction.outcome is ClientOutcome.COMMITTED:
            return True
        for sent in transaction.sent:
            place = self._where.get(sent.value)
            if place is not None and place.logged.fate is Fate.COMMITTED:
                return True
        return False

    def _positions(self) -> Iterator[TransactionAnomaly]:
        """A position that a coordinator returned is one of a visible transaction, and not behind one that was
        acknowledged before."""
        moves: dict[tuple[str, Partition], list[tuple[int, ClientTransaction]]] = defaultdict(list)
        for transaction in self._history.transactions:
            for sent in transaction.positions:
                moves[sent.group, sent.partition].append((sent.offset, transaction))
        uncertain = self._uncertain_positions()
        for group, partition, offset, order in self._history.read_positions:
            if (group, partition) in uncertain:
                continue
            known = moves[group, partition]
            shown = f"{group} is at {offset} in {partition[0]}-{partition[1]}"
            by = [transaction for end, transaction in known if end == offset]
            if offset > 0 and not any(self._may_be_visible(each) for each in by):
                yield self._anomaly(TransactionAnomalyKind.WRONG_POSITION, f"{shown}, which no commit moved", *by)
            for end, transaction in known:
                is_committed = transaction.outcome is ClientOutcome.COMMITTED
                if is_committed and end > offset and transaction.decided_at < order:
                    yield self._anomaly(
                        TransactionAnomalyKind.WRONG_POSITION, f"{shown}, {end} was committed before", transaction
                    )
                    break

    def _uncertain_positions(self) -> set[tuple[str, Partition]]:
        """(group, partition): a transaction may have moved this position although it meant an earlier topic of the
        same name. TxnOffsetCommit names topics (transactions.md X30: up to version 5): what a client sends for a
        deleted topic, or repeats, moves the position in the next one."""
        late = {
            (sent.group, sent.partition)
            for transaction in self._history.transactions
            for sent in transaction.positions
            if not 0 <= sent.answered_at <= self._history.deletions.get(topic_of(sent.partition), _NEVER)
        }
        found: set[tuple[str, Partition]] = set()
        earlier: dict[tuple[str, str, int], list[Partition]] = defaultdict(list)
        for group, partition in dict.fromkeys((each.group, each.partition) for each in self._history.read_positions):
            before = earlier[group, topic_of(partition), partition[1]]
            if any((group, each) in late for each in before):
                found.add((group, partition))
            before.append(partition)
        return found

    def _may_be_visible(self, transaction: ClientTransaction) -> bool:
        """Without records in a log its client's word counts."""
        if self._is_visible(transaction):
            return True
        is_logged = any(sent.value in self._where for sent in transaction.sent)
        return not is_logged and transaction.outcome is ClientOutcome.UNKNOWN


def transaction_summary(anomalies: Iterable[TransactionAnomaly], shown: int = 3) -> str:
    """The number of each kind, and the smallest of them; empty if there are none."""
    found = list(anomalies)
    if not found:
        return ""
    counts = Counter(each.kind.name for each in found)
    smallest = sorted(found, key=lambda each: sum(len(one.sent) + len(one.polled) for one in each.transactions))
    return "\n".join(
        [", ".join(f"{count} {kind}" for kind, count in counts.most_common()), *map(str, smallest[:shown])]
    )


def _strongly_connected(edges: Mapping[int, set[int]]) -> Iterator[set[int]]:
    """Groups of more than one node that reach each other (Tarjan, without recursion)."""
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    for root in sorted(edges):
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        work = [(root, iter(sorted(edges.get(root, ()))))]
        while work:
            node, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges.get(other, ())))))
                    break
                if other in on_stack:
                    low[node] = min(low[node], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group: set[int] = set()
                    while node not in group:
                        group.add(stack.pop())
                    on_stack -= group
                    if len(group) > 1:
                        yield group


def _shortest_cycle(edges: Mapping[int, set[int]], group: set[int]) -> list[int]:
    best: list[int] = []
    for start in sorted(group):
        before: dict[int, int] = {}
        waiting = deque([start])
        while waiting and start not in before:
            node = waiting.popleft()
            for other in sorted(edges.get(node, set()) & group):
                if other not in before:
                    before[other] = node
                    waiting.append(other)
        found = [start]
        node = before[start]
        while node != start:
            found.append(node)
            node = before[node]
        if not best or len(found) < len(best):
            best = found[:1] + found[:0:-1]
    return best
