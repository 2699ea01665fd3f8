"""Scenario: a cluster with data whose clients use transactions.

Owns the options that it draws, when all transactions have ended, and the check of the history against the logs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from random import Random
from types import ModuleType
from typing import Final

from fenceline.log.core import guards, producer_state
from fenceline.losses.receipt import LossClass, Receipt
from fenceline.losses.transactions import TransactionFate
from fenceline.metadata.features import ELR_VERSION, TRANSACTION_VERSION, fresh_levels
from fenceline.records.batch import read_header
from fenceline.records.markers import read_end_marker
from fenceline.testing.history import Partition
from fenceline.testing.simulation.brokers import BrokersScenario
from fenceline.testing.simulation.brokers_clients import SimulatedClient, SimulatedProducer
from fenceline.testing.simulation.brokers_transactions import CommittedReader, Copier, Transactor, values_of
from fenceline.testing.simulation.brokers_wire import PartitionInfo
from fenceline.testing.simulation.checks import InvariantBroken, Invariants
from fenceline.testing.simulation.data_crashes import Key
from fenceline.testing.simulation.data_history import PartitionHistory
from fenceline.testing.simulation.options import Options, sometimes
from fenceline.testing.simulation.profiles import draw
from fenceline.testing.simulation.transactions_admin import CoordinatorsAdmin
from fenceline.testing.simulation.world import Process, World
from fenceline.testing.transaction_checks import check, transaction_summary
from fenceline.testing.transaction_history import (
    ClientOutcome,
    ClientTransaction,
    ClientTransactions,
    LogBuilder,
    SentValue,
    TransactionLog,
    partition_name,
)
from fenceline.transactions import decisions, model
from fenceline.transactions.model import MAX_EPOCH

_CONFIG: Final[Mapping[str, str]] = {
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "fenceline.transaction.recovery.timeout.ms": "2000",
    "request.timeout.ms": "250",
}


_LAST_EPOCHS: Final[tuple[tuple[ModuleType, str], ...]] = (
    (decisions, "MAX_EPOCH"),
    (decisions, "LAST_EPOCH_OF_PRODUCERS"),
    (model, "MAX_EPOCH"),
    (guards, "MAX_EPOCH"),
    (producer_state, "MAX_EPOCH"),
)


def _cut_off(rng: Random, options: Options) -> Options:
    """Leaders and coordinators lose their followers, or the controllers, and come back with what no other has."""
    return replace(
        options,
        profile="cut off",
        controllers=3,
        partition_s=round(rng.uniform(0.6, 1.5), 3),
        one_way_chance=0.3,
        crash_s=sometimes(rng, 0.3, 1, 3),
        pause_s=sometimes(rng, 0.5, 1, 3),
        paused_s=2.0,
        stop_s=0.0,
        full_s=0.0,
        swap_s=sometimes(rng, 0.5, 0.3, 1),
    )


def _compacted(rng: Random, options: Options) -> Options:
    """Segments of a few batches, which are compacted all the time: those of coordinators, and of some topics. No record
    of a client that is checked has the key of another."""
    return replace(
        options, compaction=True, segment_bytes=rng.choice((500, 800, 2000)), tidy_ms=rng.choice((50, 300, 1000))
    )


def _losing(options: Options) -> Options:
    """Logs of clients lose what is committed. Nothing is compacted: the coordinators' logs have all transactions. Every
    end raises the epoch: before transaction version 2 clocks decide which transaction has lost a record."""
    return replace(
        options,
        profile="losing",
        unclean=True,
        strand_s=0.4,
        replicas=2,
        min_isr=1,
        deletes=False,
        compaction=False,
        transaction_version=2,
        changes_level=False,
    )


_MOST_TO_REST_S: Final = 60.0
"""Of virtual time, until every transaction has ended."""


class TransactionsScenario(BrokersScenario):
    """The cluster of `brokers` with transactional clients: a `stage.Scenario`. If logs may lose records, no client
    copies."""

    name = "transactions"
    more_config = _CONFIG

    def __init__(self, world: World, invariants: Invariants) -> None:
        super().__init__(world, invariants)
        self._history = ClientTransactions()
        self._rests_since_s = math.inf
        """When the clients were first told to rest, or the history was last checked meanwhile."""
        self._reads_again = False
        """Whether the readers have been told to read everything once more."""

    @staticmethod
    def adjust_options(rng: Random, drawn: Options) -> Options:
        """Leaders and coordinators move, responses are late, clients die."""
        options = draw(rng, drawn)
        if rng.random() < 0.4:
            options = _cut_off(rng, options)
        # A client of an older version names topics, and writes to whichever has the name.
        deletes = rng.random() < 0.2
        options = replace(
            options,
            topics=2,
            partitions=rng.choice((1, 1, 2)),
            replicas=3,
            min_isr=2,
            unclean=False,
            deletes=deletes,
            strand_s=0.0,
            power_chance=0.0,
            crash_calls=0,
            return_s=0.0,
            think_ms=rng.choice((20.0, 50.0, 100.0)),
            transaction_version=2 if deletes else rng.choice((0, 1, 2, 2, 2)),
            changes_level=not deletes and rng.random() < 0.3,
            last_epoch=rng.choice((0, 0, 0, 0, 6)),
            coordinate_s=sometimes(rng, 0.8, 0.3, 2),
            slow_chance=rng.choice((0.0, 0.01, 0.05)),
            slow_delay_s=rng.choice((0.2, 1.0)),
        )
        options = _compacted(rng, options) if rng.random() < 0.3 else options
        return _losing(options) if rng.random() < 0.15 else options

    def build(self) -> None:
        """See `BrokersScenario`. Epochs that run out soon are a constant of several modules."""
        last = self._world.options.last_epoch
        if last:
            for module, name in _LAST_EPOCHS:
                self.replace_constant(module, name, vars(module)[name] - (MAX_EPOCH - last))
        super().build()
        for client in self._clients:
            if isinstance(client, (CoordinatorsAdmin, Transactor, CommittedReader)):
                client.histories = self._history
            if isinstance(client, CommittedReader):
                client.log_end = self._log_end

    def _log_end(self, place: PartitionInfo) -> int:
        copies = (broker.partitions.open_by_id.get(place.key) for broker in self._brokers.values())
        return max((copy.log.log_end_offset for copy in copies if copy is not None), default=0)

    def feature_levels(self) -> Mapping[str, int]:
        """See `BrokersScenario`."""
        levels = dict(fresh_levels())
        options = self._world.options
        levels.update({TRANSACTION_VERSION: options.transaction_version, ELR_VERSION: int(options.elr)})
        return {name: level for name, level in levels.items() if level}

    def clients(self) -> list[type[SimulatedClient]]:
        """See `BrokersScenario`."""
        if self._world.options.unclean:
            # Positions and copies of what is lost prove nothing.
            return [CoordinatorsAdmin, Transactor, Transactor, Transactor, Transactor, SimulatedProducer]
        return [
            CoordinatorsAdmin,
            Transactor,
            Transactor,
            Transactor,
            Copier,
            Copier,
            CommittedReader,
            SimulatedProducer,
        ]

    def quiesce(self) -> bool:
        """First the writers rest, then all transactions end, then the readers read everything once more, and rest."""
        now_s = self._world.scheduler.now_s
        self._rests_since_s = min(self._rests_since_s, now_s)
        if now_s > self._rests_since_s + _MOST_TO_REST_S:
            self._rests_since_s = math.inf
            self._check_history()  # says more than that the cluster does not rest
            if left := self._undecided() or self._unstable():
                raise InvariantBroken(f"{', '.join(left)} (transactions)")
        readers = [client for client in self._clients if isinstance(client, CommittedReader)]
        for client in self._clients:
            client.must_rest |= client not in readers
        if any(client.is_waiting for client in self._clients if client not in readers):
            return False
        ends = self._ends()
        if not ends or not all(
            reader.must_rest or reader.has_read(where, end) for where, end in ends.items() for reader in readers
        ):
            return False
        if self._undecided() or self._unstable() or self._has_incomplete_receipts():
            return False
        if not self._reads_again:
            self._reads_again = True
            for reader in readers:
                reader.begin_again()
            return False
        for reader in readers:
            reader.must_rest = True
        return super().quiesce()

    def _undecided(self) -> list[str]:
        """The nodes that coordinate transactions which have not ended, with their states."""
        found = []
        for node_id, broker in sorted(self._brokers.items()):
            states = broker.transactions.coordinator.states() if broker.has_metadata else {}
            found += [
                f"n{node_id} has {count} {state.title}" for state, count in states.items() if not state.is_at_rest
            ]
        return found

    def _unstable(self) -> list[str]:
        """The copies of logs in which a transaction is open, or whose last records are not committed."""
        return [
            f"n{node_id} {replica.log.topic_partition} is stable up to {replica.log.last_stable_offset} only"
            for node_id, broker in sorted(self._brokers.items())
            for replica in broker.partitions.open_by_id.values()
            if replica.log.last_stable_offset != replica.log.log_end_offset
        ]

    def _ends(self) -> dict[Partition, int]:
        """By partition of the clients' topics: the end of its log."""
        found: dict[Partition, int] = {}
        for broker in self._brokers.values():
            for replica in broker.partitions.open_by_id.values():
                topic, index = replica.topic_partition
                if not topic.startswith("__"):
                    found[partition_name(topic, replica.topic_id_bytes, index)] = replica.log.log_end_offset
        return found

    def final(self) -> None:
        """Also: the history is that of a correct log."""
        super().final()
        self._check_history()

    def _check_history(self) -> None:
        self._history.logs.update(self._logs())
        live = {_name(history.name, topic_id) for (topic_id, _), history in self._live()}
        cut = self._receipts()
        first_cut = {where: min(each.start_offset for each in receipts) for where, receipts in cut.items() if receipts}

        def is_lost(partition: Partition, offset: int) -> bool:
            return partition not in live or offset >= first_cut.get(partition, offset + 1)

        found = transaction_summary(check(self._history, is_lost=is_lost))
        if found:
            raise InvariantBroken(f"{found} (transactions)")
        if not first_cut:
            return
        present = {
            where: {(each.offset, each.value) for each in log.values} for where, log in self._history.logs.items()
        }
        for transaction in self._history.transactions:
            if transaction.outcome is ClientOutcome.COMMITTED:
                check_losses(transaction, present, cut)

    def _receipts(self) -> dict[Partition, list[Receipt]]:
        return {_name(history.name, key[0]): self.checks.receipts_of(key) for key, history in self._live()}

    def _has_incomplete_receipts(self) -> bool:
        """Whether coordinators are still asked about transactions that lost records."""
        return any(broker.losses.next_incomplete(1) for broker in self._brokers.values() if broker.has_metadata)

    def _live(self) -> Iterator[tuple[Key, PartitionHistory]]:
        """The partitions of the clients' topics that were not deleted."""
        for key in self.checks.live_keys:
            history = self.checks.histories[key]
            if not history.name.startswith("__"):
                yield key, history

    def _logs(self) -> dict[Partition, TransactionLog]:
        """What is committed of each partition; nothing of those that were deleted."""
        found: dict[Partition, TransactionLog] = {
            _name(history.name, topic_id): TransactionLog() for (topic_id, _), history in self.checks.histories.items()
        }
        for (topic_id, _), history in self._live():
            builder = LogBuilder()
            for batch in history.batches:
                header = read_header(batch.content)
                if not header.is_control:
                    builder.data(header, values_of(batch.content, header))
                elif (marker := read_end_marker(header, memoryview(batch.content))) is not None:
                    builder.end_marker(header, commit=marker.commit)
            found[_name(history.name, topic_id)] = builder.finish()
        return found

    def check_step(self, process: Process) -> None:
        """See `BrokersScenario`."""
        super().check_step(process)
        broker = self._brokers.get(process.node_id)
        if broker is not None and broker.has_metadata:
            try:
                broker.transactions.coordinator.check()
            except AssertionError as error:
                raise InvariantBroken(f"{process.name}: {error} (coordinator)") from error


def check_losses(
    transaction: ClientTransaction,
    present: Mapping[Partition, Set[tuple[int, int]]],
    receipts: Mapping[Partition, Iterable[Receipt]],
) -> None:
    """Raises InvariantBroken if a record of this committed transaction is gone and no receipt says so: of which
    transaction, that it was committed, and that it is torn if another record of it is there. `present`: offset and
    value of the records in the logs."""
    there: list[SentValue] = []
    gone: list[SentValue] = []
    for sent in transaction.sent:
        if sent.partition not in receipts or sent.offset < 0:
            continue
        is_there = (sent.offset, sent.value) in present[sent.partition]
        (there if is_there else gone).append(sent)
    for sent in gone:
        told = [
            (receipt, lost)
            for receipt in receipts[sent.partition]
            for lost in receipt.transactions
            if lost.start_offset <= sent.offset < lost.end_offset_exclusive
            and lost.transactional_id == transaction.transactional_id
            and lost.outcome is TransactionFate.COMMITTED
        ]
        if not told:
            raise InvariantBroken(f"no receipt says that {sent} of {transaction} is lost (receipts)")
        if there and not any(receipt.loss_class is LossClass.TORN for receipt, _ in told):
            raise InvariantBroken(f"no receipt says that {transaction} is torn: {sent} is lost (receipts)")


def _name(name: str, topic_id: bytes) -> Partition:
    """The partition as clients name it. `name`: topic and index."""
    topic, _, index = name.rpartition("-")
    return partition_name(topic, topic_id, int(index))
