"""Connects the transaction coordinator to this broker: its log, its markers, its clock, its event loop.

Owns the execution of duties. Decides nothing: the rules are in `fenceline.transactions`; loads, appends and the timer
are in `node.coordination`, end markers leave through `marker_sender`. Everything runs on the event loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Executor
from typing import Final, Protocol, TypeVar

from fenceline.coordination import Now
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.metadata.image import MetadataImage
from fenceline.node.clock import Clock
from fenceline.node.coordination.appends import CoordinatorAppends, CoordinatorLog, CoordinatorTimer
from fenceline.node.coordination.loading import LoadedTopic, Loading, Replay
from fenceline.node.coordination.read_barriers import ConfirmLeadership, confirm_at_once
from fenceline.node.coordination.replies import Reply
from fenceline.node.logs import Logger
from fenceline.records.batch import BatchHeader
from fenceline.records.build import Record
from fenceline.transactions.coordinator import TransactionCoordinator
from fenceline.transactions.messages import (
    AddPartitions,
    AnswerTransaction,
    AppendState,
    DescribedTransaction,
    EndMarkers,
    EndTransaction,
    InitProducer,
    MarkerRejected,
    PartitionsAdded,
    ProducerIdentity,
    ProducerInitialized,
    TopicIndex,
    TransactionDuty,
    TransactionEnded,
    TransactionListing,
    WriteMarkers,
)
from fenceline.transactions.settings import DEFAULT_PARTITION_COUNT, TransactionSettings
from fenceline.transactions.shard import StatePartition

VERSION_OF_LEADERS: Final = 2
"""The transaction version of a client whose partitions their leaders add (`transactions.md X11`)."""

_T = TypeVar("_T")
log: Final = Logger("transactions")


class SendsMarkers(Protocol):
    """As `marker_sender.MarkerSender`."""

    def send(self, markers: EndMarkers) -> None:
        """Have them written; the codes come to `TransactionsDriver.markers_written`."""

    def on_brokers_changed(self) -> None:
        """The metadata have other brokers."""


class TransactionsDriver:
    def __init__(
        self,
        state_log: CoordinatorLog,
        clock: Clock,
        *,
        next_producer_id: Callable[[], int | None],
        level: Callable[[], int],
        partition_exists: Callable[[str, int], bool],
        settings: TransactionSettings | None = None,
        partition_count: int = DEFAULT_PARTITION_COUNT,
        threads: Executor | None = None,
        confirm_leadership: ConfirmLeadership = confirm_at_once,
    ) -> None:
        """`next_producer_id`, `level`, `partition_exists`: see `TransactionCoordinator`. `confirm_leadership` is called
        before the end of a transaction is answered without a write. Connect `sender` before the first partition is
        led."""
        self._confirm = confirm_leadership
        self._log = state_log
        self._clock = clock
        self.coordinator: Final = TransactionCoordinator(
            settings or TransactionSettings(), next_producer_id, level, partition_exists, partition_count
        )
        self._appends = CoordinatorAppends(TRANSACTION_STATE_TOPIC)
        self._timer = CoordinatorTimer(
            clock,
            self.coordinator.next_deadline_ms,
            lambda: self._carry_out(self.coordinator.on_time(self._now())),
        )
        self._loading = Loading(
            LoadedTopic(
                TRANSACTION_STATE_TOPIC,
                self.coordinator,
                _replaying,
                self._loaded,
                lambda partition: {"transactional_ids": len(partition)},
                consequence="its transactional ids lose their state, and their open transactions hang until aborted",
            ),
            state_log,
            clock,
            threads,
        )
        self.load_durations: Final = self._loading.durations
        self._sender: SendsMarkers | None = None
        self._queue: deque[TransactionDuty] = deque()
        self._is_busy = False

    def send_with(self, sender: SendsMarkers) -> None:
        """The sender of end markers, which needs this driver for its results."""
        self._sender = sender

    # --- leadership and lifecycle ----------------------------------------

    def on_leader(self, partition: int, epoch: int) -> None:
        """This broker leads `__transaction_state-<partition>` from this epoch on: load it and coordinate its ids.

        A short log is loaded before this returns. A repeated call in the same epoch means that something else about
        the partition has changed.
        """
        loading, duties = self.coordinator.begin_load(partition, epoch)
        self._carry_out(duties)
        if loading is None:
            self._loading.retry(partition)
        else:
            self._loading.begin(loading)

    def on_resigned(self, partition: int) -> None:
        """Another broker leads the partition now, or it has no leader."""
        self._carry_out(self.coordinator.resign(partition))

    def on_leaders_changed(self) -> None:
        """The metadata have other leaders or fewer topics: markers that wait for that are tried again."""
        self.coordinator.on_leaders_changed(self._now())
        self._timer.arm()

    def on_brokers_changed(self) -> None:
        """The metadata have other brokers."""
        if self._sender is not None:
            self._sender.on_brokers_changed()

    def set_partition_count(self, count: int) -> None:
        """The number of partitions of `__transaction_state` as it was created."""
        self.coordinator.partition_count = count

    def close(self) -> None:
        """Stop all timers and loads; waiting requests are answered with NOT_COORDINATOR."""
        self._timer.close()
        self._loading.close()
        for partition in self.coordinator.active_partitions:
            self._carry_out(self.coordinator.resign(partition))
        self._appends.close()

    def _loaded(self, loading: StatePartition, now: Now) -> None:
        if loading.skipped:
            log.warning(
                "records of a later release skipped",
                partition=f"{TRANSACTION_STATE_TOPIC}-{loading.partition}",
                records=loading.skipped,
                advice="Run a release that knows them on this broker, before it writes over their transactional ids.",
            )
        self._carry_out(self.coordinator.finish_load(loading, now))

    def leads_all_of(self, image: MetadataImage, node_id: int) -> bool:
        """Whether every partition of the topic that this broker leads by the metadata is loaded."""
        topic = image.topics_by_name.get(TRANSACTION_STATE_TOPIC)
        active = self.coordinator.active_partitions
        return topic is None or all(
            index in active for index, partition in enumerate(topic.partitions) if partition.leader == node_id
        )

    # --- requests ----------------------------------------

    def init_producer(self, request: InitProducer) -> Reply[ProducerInitialized]:
        return self._submit(lambda ticket, now: self.coordinator.init_producer(ticket, request, now))

    def add_partitions(self, request: AddPartitions) -> Reply[PartitionsAdded]:
        return self._submit(lambda ticket, now: self.coordinator.add_partitions(ticket, request, now))

    def add_for_leader(
        self, transactional_id: str, identity: tuple[int, int], partitions: tuple[TopicIndex, ...], verify_only: bool
    ) -> Reply[PartitionsAdded]:
        """AddPartitionsToTxn of this broker as a partition's leader."""
        return self.add_partitions(
            AddPartitions(transactional_id, ProducerIdentity(*identity), partitions, verify_only, VERSION_OF_LEADERS)
        )

    def end_transaction(self, request: EndTransaction) -> Reply[TransactionEnded]:
        """Before EndTxn v5 all transactions of a producer may have one epoch. A coordinator that was replaced may take
        the end of the newest for that of an earlier one, which has ended in the same way, and write nothing: such an
        answer (`transactions.md X14`) is confirmed first."""
        reply: Reply[TransactionEnded] = self._submit(
            lambda ticket, now: self.coordinator.end_transaction(ticket, request, now)
        )
        ended = reply.outcome
        if ended is None or not ended.is_from_memory:
            return reply
        partition = self.coordinator.partition_of(request.transactional_id)
        epoch = self.coordinator.active_epoch(partition)
        assert epoch is not None, "it has answered"
        confirmed: Reply[TransactionEnded] = Reply()
        self._confirm(
            TopicPartition(TRANSACTION_STATE_TOPIC, partition),
            epoch,
            lambda code: confirmed.put(TransactionEnded(code)),
        )
        return confirmed

    def describe(self, transactional_id: str) -> DescribedTransaction:
        """Raises PeerError."""
        return self.coordinator.describe(transactional_id)

    def list_transactions(
        self,
        states: frozenset[str],
        producer_ids: frozenset[int],
        longer_than_ms: int,
        matches: Callable[[str], bool],
    ) -> TransactionListing:
        """Empty filters and a negative duration match everything. Raises PeerError while loading."""
        return self.coordinator.list_transactions(states, producer_ids, self._now(), longer_than_ms, matches)

    def markers_written(self, markers: EndMarkers, results: Mapping[TopicIndex, ErrorCode]) -> None:
        """The leaders' codes for some partitions of the markers, or for all."""
        self._carry_out(
            self.coordinator.markers_written(
                markers.state_partition,
                markers.coordinator_epoch,
                markers.transactional_id,
                markers.identity,
                results,
                self._now(),
            )
        )

    # --- duties ----------------------------------------

    def _submit(self, start: Callable[[Reply[_T], Now], list[TransactionDuty]]) -> Reply[_T]:
        reply: Reply[_T] = Reply()
        self._carry_out(start(reply, self._now()))
        return reply

    def _carry_out(self, duties: list[TransactionDuty]) -> None:
        """Execute the duties in order, and then the duties that follow from them."""
        self._queue.extend(duties)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._queue:
                duty = self._queue.popleft()
                match duty:
                    case AnswerTransaction(ticket, outcome):
                        assert isinstance(ticket, Reply), "each request is submitted with a Reply"
                        ticket.put(outcome)
                    case AppendState():
                        self._start_append(duty)
                    case WriteMarkers(markers):
                        assert self._sender is not None, "connected before the first partition is led"
                        self._sender.send(markers)
                    case MarkerRejected():
                        _log_rejected(duty)
        finally:
            self._is_busy = False
        self._timer.arm()

    def _start_append(self, duty: AppendState) -> None:
        partition, write_id = duty.state_partition, duty.write_id

        def completed(error: PeerError | None) -> None:
            now = self._now()
            if error is None:
                self._carry_out(self.coordinator.appended(partition, write_id, now))
            else:
                self._carry_out(self.coordinator.append_failed(partition, write_id, error.code, now))

        def late() -> None:
            self._carry_out(self.coordinator.append_is_late(partition, write_id))

        def append(where: TopicPartition) -> Awaitable[int] | int:
            return self._log.append(where, duty.coordinator_epoch, [(duty.key, duty.value)])

        self._appends.start(partition, append, duty.timeout_ms, completed, late)

    def _now(self) -> Now:
        return Now(self._clock.now_ms(), self._clock.monotonic_ms())


def _log_rejected(duty: MarkerRejected) -> None:
    topic, index = duty.partition
    log.error(
        "end marker rejected; it is tried again, and the transaction stays incomplete until then",
        transactional_id=duty.transactional_id,
        producer_id=duty.identity.producer_id,
        producer_epoch=duty.identity.epoch,
        partition=f"{topic}-{index}",
        error=duty.code.name,
        attempts=duty.attempts,
        advice=f"Compare the producer's epochs with: fenceline transactions describe {duty.transactional_id}",
    )


def _replaying(loading: StatePartition) -> Replay:
    def batch(header: BatchHeader, records: list[Record], now: Now) -> None:
        if not header.is_control:
            for record in records:
                loading.replay(record.key, record.value)

    return batch
