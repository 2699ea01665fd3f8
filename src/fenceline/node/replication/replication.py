"""Replication of this node's partitions: as leader of some, as follower of others.

Owns the fetchers, the ISR changes in progress, and the recovery of leaders that were elected uncleanly (KIP-704).
Applies the roles that `Replicas` gives; decides nothing about the protocol.

Rules: `epochs.md E31`, `E35`, `E38`; `recovery.md V37-V41`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from uuid import UUID

from fenceline.config.broker import SILENCE_TIMEOUT
from fenceline.controller.partition_requests import AlteredPartition
from fenceline.errors import PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.errors import StorageError
from fenceline.log.core.producer_state import Origin
from fenceline.log.core.tail import ProducerEntry
from fenceline.metadata.image import ConfigResource, ConfigResourceType, LeaderRecoveryState, MetadataImage
from fenceline.node.logs import Logger
from fenceline.node.replication.absent_brokers import Absent, AbsentBrokers
from fenceline.node.replication.deletions import RecordDeletions
from fenceline.node.replication.isr_changes import IsrChanges
from fenceline.node.replication.replica_fetchers import ReplicaFetchers
from fenceline.node.replication.resting_leaders import RestingLeaders
from fenceline.node.replication.silent_brokers import SilentBrokers
from fenceline.node.replication.unused_leaders import UnusedLeaders
from fenceline.records.markers import end_marker
from fenceline.replica.fencing import NO_EPOCH
from fenceline.replica.fetcher import FetchLimits
from fenceline.replica.leader import InSyncRules, LeaderState
from fenceline.replica.throttle import Throttles

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.controller.requests import Request
    from fenceline.losses.cutting import LogCut
    from fenceline.metadata.changes import ChangedPartition, Delta
    from fenceline.metadata.image import TopicImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.peers import Peers
    from fenceline.node.replication.replica import Replica

log = Logger("replication")

_RECOVERY_PAUSE_S: Final = 1.0
_START_S: Final = 10.0
"""How long a starting node waits for its own recoveries before it serves requests."""
_OUTCOME_ATTEMPTS: Final = 5
_MARKERS_S: Final = 5.0
"""How long a recovery waits for end markers of transactions that their coordinators have decided."""
_MAX_LOGGED: Final = 20
_ROWS_BYTES: Final = 16 << 20
"""Size limit of a response without records: some hundred thousand partitions."""


FenceTransactions: TypeAlias = Callable[[TopicPartition], Awaitable[frozenset[int] | None]]
"""Has ongoing transactions of a partition aborted by their coordinators; returns the producers whose end markers will
come. None: a coordinator could not be asked."""
TransactionOutcomes: TypeAlias = Callable[
    ["TopicPartition", Sequence[ProducerEntry]], Awaitable[Mapping[int, bool | None] | None]
]
"""By producer id: whether the transaction that is open in a partition was committed; None: undecided; absent: no
coordinator knows it. None for all: a coordinator could not be asked."""

DecidedTransactions: TypeAlias = Callable[["TopicPartition", Sequence[ProducerEntry]], Awaitable[Mapping[int, bool]]]
"""By producer id: whether the transaction that is open in a partition was committed, where the producer's epoch alone
tells which transaction it is."""


class FlushUpTo(Protocol):
    """Waits until a log is durable at least up to an offset; returns why it never will be."""

    def __call__(self, replica: Replica, end_offset: int, *, as_leader: bool = True) -> Awaitable[PeerError | None]: ...


class Replication:
    """The replication of one broker. All methods run on the event loop unless they say otherwise."""

    def __init__(
        self,
        node_id: int,
        config: NodeConfig,
        in_service: OpenReplicas,
        peers: Peers,
        *,
        image: Callable[[], MetadataImage],
        submit: Callable[[Request], Awaitable[Any]],
        next_change: Callable[[], asyncio.Future[None]],
        broker_epoch: Callable[[], int],
        report_silent: Callable[[Collection[int]], None],
        clock: Clock,
        executor: Executor,
        flush_up_to: FlushUpTo,
        cut_log: Callable[[Replica, LogCut], None],
        open_unused: Callable[[str, int], Replica | None],
        is_unused: Callable[[TopicImage, int], bool],
        checkpoint: Callable[[], Awaitable[None]],
        rejected: Callable[[Replica, StorageError], None],
        fence_transactions: FenceTransactions,
        transaction_outcomes: TransactionOutcomes,
        decided_transactions: DecidedTransactions,
    ) -> None:
        """`submit` sends a request to the controller; `next_change` completes with the next change of its metadata.
        `report_silent` is called with all leaders that do not answer. `cut_log`, `open_unused`: see `link_work.Host`.
        `is_unused`: whether a partition has neither files nor a replica object here. `checkpoint` writes the offset
        checkpoints; raises StorageError. `rejected`: records of a follower were not appended, because the disk is
        full."""
        self.node_id = node_id
        self._config = config
        self._in_service = in_service
        self._image = image
        self._next_change = next_change
        self._flush_up_to = flush_up_to
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._rejected = rejected
        self._fence_transactions = fence_transactions
        self._transaction_outcomes = transaction_outcomes
        self._decided_transactions = decided_transactions
        self.cut_log = cut_log
        self.open_unused = open_unused
        self.checkpoint = checkpoint
        self.replication_endpoint = peers.endpoint
        self.throttles = Throttles(node_id)
        self.rules = InSyncRules(self.eligible_epoch, config.get_int("replica.lag.time.max.ms"))
        self.absent = AbsentBrokers(clock, session_ms=config.get_int("broker.session.timeout.ms"))
        self.fetchers = ReplicaFetchers(
            self,
            clock,
            executor,
            FetchLimits(
                max_wait_ms=config.get_int("replica.fetch.wait.max.ms"),
                min_bytes=config.get_int("replica.fetch.min.bytes"),
                max_bytes=config.get_int("replica.fetch.response.max.bytes"),
                partition_max_bytes=config.get_int("replica.fetch.max.bytes"),
                backoff_ms=config.get_int("replica.fetch.backoff.ms"),
            ),
            answer_timeout_ms=config.get_int("replica.socket.timeout.ms"),
            connect=peers.connect,
            quota=self.throttles.follower,
            absent=self.absent,
            silent=SilentBrokers(config.get_int(SILENCE_TIMEOUT), report_silent),
            largest_answer=self._largest_answer,
        )
        self.isr_changes = IsrChanges(node_id, broker_epoch, submit, self._altered)
        self.unused = UnusedLeaders(
            node_id,
            image,
            broker_epoch,
            submit,
            fence_transactions,
            is_open=lambda topic, index: (topic, index) in in_service.by_name,
        )
        self.resting = RestingLeaders(
            node_id,
            image,
            broker_epoch,
            self.rules,
            clock,
            offline=in_service.offline,
            is_unused=is_unused,
            open_it=open_unused,
            propose=self.isr_changes.ask,
        )
        self.deletions = RecordDeletions(self.is_alive)
        self._recoveries: dict[Replica, asyncio.Task[None]] = {}
        self._waits_for_others: set[Replica] = set()
        """Recoveries that wait for other brokers, which may wait for this one to serve."""
        self._last_id: tuple[UUID | None, bytes] = (None, b"")
        self._too_few_replicas: dict[str, tuple[int, int]] = {}
        """Topics that were logged: min.insync.replicas and the number of replicas."""

    @property
    def broker_epoch(self) -> int:
        return self._broker_epoch()

    async def close(self) -> None:
        """Stop following, and leave recoveries to the next start."""
        await self.fetchers.close()
        await self.isr_changes.close()
        await self.unused.close()
        recoveries, self._recoveries = self._recoveries, {}
        for task in recoveries.values():
            task.cancel()
        await asyncio.gather(*recoveries.values(), return_exceptions=True)

    # -- metadata ------------------------------------------------------------------------------------------------------

    def eligible_epoch(self, node_id: int) -> int:
        """The epoch of a broker that may join an ISR (E36)."""
        broker = self._image().brokers.get(node_id)
        return broker.epoch if broker is not None and broker.is_active else NO_EPOCH

    def is_alive(self, node_id: int) -> bool:
        """Registered and not fenced."""
        broker = self._image().brokers.get(node_id)
        return broker is not None and not broker.fenced

    def _largest_answer(self) -> int:
        """Size limit of a leader's response: the requested bytes, or the largest batch that is allowed (KIP-74: the
        first batch is sent completely). A batch has at most the size of a request, or of its topic's limit if the
        leader compressed it again.
        """
        config = self._config
        largest_batch = max(
            config.get_int("socket.request.max.bytes"),
            max((replica.config.max_message_bytes for replica in self._in_service), default=0),
        )
        return config.get_int("replica.fetch.response.max.bytes") + largest_batch + _ROWS_BYTES

    def absent_now(self) -> Absent:
        """Brokers that are unavailable, for responses to clients."""
        self.fetchers.check_connections()
        return self.absent.current()

    def on_image(self, delta: Delta) -> None:
        """Apply a metadata change: addresses of brokers and throttles may have changed."""
        self.absent.image_changed(self._image(), delta.changed_brokers)
        for node_id in delta.changed_brokers:
            self.fetchers.on_leader_address_changed(node_id)
        if delta.changed_brokers:
            self.deletions.brokers_changed()
        for topic in delta.deleted_topics:
            self.throttles.set_topic(topic.name, {})
        self._set_throttles(delta.changed_configs)

    def apply_image(self) -> None:
        """Apply the complete image, at start."""
        self.absent.image_changed(self._image(), self._image().brokers)
        self._set_throttles(self._image().configs)

    def _set_throttles(self, changed: Iterable[ConfigResource]) -> None:
        image = self._image()
        for kind, name in changed:
            if kind is ConfigResourceType.TOPIC:
                self.throttles.set_topic(name, image.config(kind, name))
            elif kind is ConfigResourceType.BROKER:
                # The default for all brokers, overridden by this broker's config.
                rates = {**image.config(kind, ""), **image.config(kind, str(self.node_id))}
                self.throttles.set_rates(rates, self.now_ms())

    def now_ms(self) -> int:
        """Monotonic time."""
        return self._clock.monotonic_ms()

    # -- roles, called by `Replicas` -----------------------------------------------------------------------------------

    def leads(self, replica: Replica) -> None:
        self._stop_recovery(replica)
        if replica.is_recovering:
            self._recoveries[replica] = asyncio.ensure_future(self._recover(replica))

    def still_leads(self, replica: Replica) -> None:
        self._propose_recovered_again(replica)

    def leads_unused(self, topic: TopicImage, index: int, open_it: Callable[[str, int], object]) -> None:
        self.unused.recover(topic, index, open_it)

    def follows(self, replica: Replica, leader_id: int) -> None:
        self._stop_recovery(replica)
        self.fetchers.follow(replica, leader_id, replica.leader_epoch)

    def stops_following(self, replica: Replica) -> None:
        self._stop_recovery(replica)
        self.fetchers.leave(replica)

    def follows_unused(self, topic: TopicImage, index: int) -> None:
        partition = topic.partitions[index]
        key = self._id_bytes(topic.id), index
        self.fetchers.follow_unused(topic.name, key, partition.leader, partition.leader_epoch)

    def is_followed_unused(self, changed: ChangedPartition) -> bool:
        return (
            self.fetchers.unused_epoch((self._id_bytes(changed.topic_id), changed.index)) == changed.after.leader_epoch
        )

    def stops_following_unused(self, topic_id: UUID, index: int) -> None:
        self.fetchers.leave_unused((self._id_bytes(topic_id), index))

    def followed_unused(self) -> list[TopicPartition]:
        return [TopicPartition(state.topic, state.index) for state in self.fetchers.unused()]

    def stops_resting(self, topic_id: UUID, index: int) -> None:
        self.resting.end((self._id_bytes(topic_id), index))

    def directory_failed(self) -> None:
        self.resting.end_all()

    def opened(self, replica: Replica) -> None:
        self.resting.end((replica.topic_id_bytes, replica.topic_partition.partition), replica)

    def _id_bytes(self, topic_id: UUID) -> bytes:
        """One object for all partitions of a topic: they mostly come one after the other."""
        if self._last_id[0] != topic_id:
            self._last_id = topic_id, topic_id.bytes
        return self._last_id[1]

    # -- as leader -----------------------------------------------------------------------------------------------------

    def fetched(
        self, replica: Replica, replica_id: int, *, fetch_offset: int, log_start_offset: int, broker_epoch: int
    ) -> None:
        """A follower fetched, and its log does not diverge (E31)."""
        leader = replica.leader
        assert leader is not None, "only a leader is followed"
        moved = leader.on_fetch(
            replica_id,
            fetch_offset,
            log_start_offset=log_start_offset,
            broker_epoch=broker_epoch,
            min_insync_replicas=replica.config.min_insync_replicas,
            now_ms=self._clock.monotonic_ms(),
        )
        if moved:
            replica.commit()
        self.deletions.progressed(replica)
        if replica_id not in leader.isr:
            proposal = leader.propose_expansion(
                replica_id, replica.log.log_start_offset, may_lead=self._is_eligible_leader(replica, replica_id)
            )
            if proposal is not None:
                self.isr_changes.ask(replica, proposal)

    def _is_eligible_leader(self, replica: Replica, replica_id: int) -> bool:
        topic = self._image().topics_by_id.get(replica.topic_id)
        index = replica.topic_partition.partition
        return topic is not None and index < len(topic.partitions) and replica_id in topic.partitions[index].elr

    def shrink_isrs(self) -> None:
        """Propose in-sync sets without lagging replicas (E38)."""
        for _ in self.shrink_isrs_of_each():
            pass

    def shrink_isrs_of_each(self) -> Iterator[None]:
        """The same, in steps of one partition."""
        yield from self.resting.open_incomplete()
        now_ms = self._clock.monotonic_ms()
        too_few: dict[str, tuple[int, int]] = {}
        for replica in list(self._in_service.watched.values()):
            yield
            leader = replica.leader
            if _is_at_rest(replica):
                self._in_service.unwatch(replica)
                continue
            if leader is not None and len(leader.replicas) < replica.config.min_insync_replicas:
                too_few[replica.topic_partition.topic] = replica.config.min_insync_replicas, len(leader.replicas)
            if leader is not None and leader.is_recovering:
                self._propose_recovered_again(replica)
            if leader is None or leader.is_only_replica or leader.is_settled:
                continue
            if leader.advance(replica.config.min_insync_replicas, now_ms):
                replica.commit()  # a replica that was about to rejoin the ISR has not
            if len(leader.isr) < 2:
                continue
            proposal = leader.propose_shrink(now_ms)
            if proposal is not None:
                log.info(
                    "replicas out of sync",
                    partition=str(replica.topic_partition),
                    in_sync=sorted(leader.isr),
                    wanted=[member.broker_id for member in proposal.members],
                    log_end_offset=replica.log.log_end_offset,
                )
                self.isr_changes.ask(replica, proposal)
        self._log_too_few_replicas(too_few)

    def _log_too_few_replicas(self, too_few: dict[str, tuple[int, int]]) -> None:
        """Log topics with fewer replicas than min.insync.replicas, once per change (`gaps.md G50`)."""
        new = {topic: each for topic, each in too_few.items() if self._too_few_replicas.get(topic) != each}
        self._too_few_replicas = too_few
        if new:
            log.warning(
                "min.insync.replicas exceeds the number of replicas",
                topics=[
                    f"{topic}: min.insync.replicas {wanted}, replicas {replicas}"
                    for topic, (wanted, replicas) in sorted(new.items())[:_MAX_LOGGED]
                ],
                count=len(new),
                advice="Writes with acks=all need all replicas in sync. Lower min.insync.replicas or add replicas.",
            )

    def _altered(self, replica: Replica, altered: AlteredPartition) -> None:
        """The controller made a change: apply it before the metadata log shows it."""
        leader = replica.leader
        assert leader is not None, "it was asked"
        if leader.on_partition(
            partition_epoch=altered.partition_epoch,
            replicas=leader.replicas,
            isr=altered.isr,
            is_recovering=altered.leader_recovery_state == LeaderRecoveryState.RECOVERING,
            min_insync_replicas=replica.config.min_insync_replicas,
            now_ms=self._clock.monotonic_ms(),
        ):
            replica.commit()
        replica.wake()
        self._propose_recovered_again(replica)

    # -- recovery of an uncleanly elected leader -----------------------------------------------------------------------

    async def _recover(self, replica: Replica) -> None:
        """End open transactions, flush the log, notify the controller (V38); then it serves (V39)."""
        leader = replica.leader
        assert leader is not None, "only a leader recovers"
        while replica.leader is leader and leader.is_recovering:
            if len(self._image().brokers) > 1:
                self._waits_for_others.add(replica)
            try:
                before = await self._end_decided(replica, leader)
                held = await self._fence_transactions(replica.topic_partition)
                outcomes = await self._outcomes(replica, held)
                if replica.leader is not leader:
                    return
                ended = before + self._end_open_transactions(replica, leader, outcomes)
                if held and not replica.is_internal:
                    await self._end_markers(replica, held)
                error = await self._flush_up_to(replica, replica.log.log_end_offset)
                if error is not None:
                    raise error
            except PeerError as error:
                if isinstance(error, StorageError):
                    self._in_service.storage_failed(replica, error)
                if replica.leader is not leader or replica.log.offline is not None:
                    return
                log.warning("leader recovery postponed", partition=str(replica.topic_partition), reason=str(error))
                await asyncio.sleep(_RECOVERY_PAUSE_S)
                continue
            if replica.leader is not leader:
                return
            log.warning(
                "recovered after an unclean election",
                partition=str(replica.topic_partition),
                leader_epoch=leader.leader_epoch,
                log_end_offset=replica.log.log_end_offset,
                aborted_transactions=ended[False],
                committed_transactions=ended[True],
            )
            proposal = leader.propose_recovered()
            if proposal is not None:
                self.isr_changes.ask(replica, proposal)
            return

    def _propose_recovered_again(self, replica: Replica) -> None:
        """The controller must learn of the recovery within the epoch: nothing is served before (V37)."""
        leader = replica.leader
        if leader is not None:
            proposal = leader.propose_recovered_again()
            if proposal is not None:
                self.isr_changes.ask(replica, proposal)

    async def _end_markers(self, replica: Replica, held: frozenset[int]) -> None:
        """Wait for the end markers of these producers, at most `_MARKERS_S`: their coordinators have decided."""
        ended = asyncio.Event()

        def check() -> None:
            if not held.intersection(each.producer_id for each in _open_producers(replica)):
                ended.set()

        replica.waiters.add(check)
        try:
            check()
            async with asyncio.timeout(_MARKERS_S):
                await ended.wait()
        except TimeoutError:
            log.warning(
                "end markers have not come; a reader of committed records waits for them",
                partition=str(replica.topic_partition),
                producers=sorted(held),
            )
        finally:
            replica.waiters.discard(check)

    async def _outcomes(self, replica: Replica, held: frozenset[int] | None) -> dict[int, bool | None]:
        """Of the transactions that are open here and get no end marker from a coordinator, by producer id: whether they
        were committed; None: undecided."""
        open_ones = [each for each in _open_producers(replica) if held is not None and each.producer_id not in held]
        if not open_ones:
            return {}
        for _ in range(_OUTCOME_ATTEMPTS):
            outcomes = await self._transaction_outcomes(replica.topic_partition, open_ones)
            if outcomes is not None:
                # What no coordinator knows is aborted: it would stay open for ever.
                return {each.producer_id: outcomes.get(each.producer_id, False) for each in open_ones}
            await asyncio.sleep(_RECOVERY_PAUSE_S)
        log.error(
            "coordinators do not say what became of open transactions; they stay open",
            partition=str(replica.topic_partition),
            producers=[each.producer_id for each in open_ones],
            advice="Readers of committed records stop there. See: fenceline transactions find-hanging",
        )
        return {}

    async def _end_decided(self, replica: Replica, leader: LeaderState) -> Counter[bool]:
        """Write the lost end markers of decided transactions, before that of a later transaction of the same producer
        comes and ends them. As `_end_open_transactions`."""
        open_ones = _open_producers(replica)
        if not open_ones:
            return Counter()
        decided = await self._decided_transactions(replica.topic_partition, open_ones)
        if replica.leader is not leader:
            return Counter()
        return self._end_open_transactions(replica, leader, decided)

    def _end_open_transactions(
        self, replica: Replica, leader: LeaderState, outcomes: Mapping[int, bool | None]
    ) -> Counter[bool]:
        """Write the end markers that the log lacks. Returns the number of committed (True) and aborted transactions."""
        now_ms, ended = self._clock.now_ms(), Counter[bool]()
        for producer in _open_producers(replica):
            commit = outcomes.get(producer.producer_id)
            if commit is None:
                continue
            coordinator_epoch = max(producer.coordinator_epoch, 0)
            marker = end_marker(commit, producer.producer_id, producer.epoch, coordinator_epoch, now_ms)
            replica.log.append_as_leader(
                memoryview(marker), leader_epoch=leader.leader_epoch, now_ms=now_ms, origin=Origin.COORDINATOR
            )
            replica.appended()
            ended[commit] += 1
        return ended

    def _stop_recovery(self, replica: Replica) -> None:
        self._waits_for_others.discard(replica)
        task = self._recoveries.pop(replica, None)
        if task is not None:
            task.cancel()

    async def recovered(self) -> None:
        """Wait for recoveries at the start, at most `_START_S`, so that the first clients are not rejected; not for
        those that need other brokers."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + _START_S
        while (self.unused.is_busy and len(self._image().brokers) == 1) or any(
            replica.is_leader and replica.is_recovering for replica in self._recoveries.keys() - self._waits_for_others
        ):
            remaining_s = deadline_s - loop.time()
            if remaining_s <= 0:
                return
            await asyncio.wait([self._next_change()], timeout=remaining_s)

    # -- as follower ---------------------------------------------------------------------------------------------------

    def storage_failed(self, replica: Replica, error: StorageError) -> None:
        """Appending or truncating as a follower failed. A full disk is logged once, not with every fetch."""
        if error.disk_full and replica.log.offline is None:
            self._rejected(replica, error)
        else:
            self._in_service.storage_failed(replica, error)

    def flushed(self, replica: Replica, end_offset: int) -> Awaitable[PeerError | None]:
        return self._flush_up_to(replica, end_offset, as_leader=False)

    def cut_ended(self, replica: Replica) -> None:
        self._in_service.cut_ended(replica)


def _is_at_rest(replica: Replica) -> bool:
    """Whether periodic work has nothing to do for it until something changes (`OpenReplicas.watched`)."""
    leader = replica.leader
    if replica.log.is_written or replica.is_being_cut:
        return False
    return leader is None or (
        (leader.is_only_replica or leader.is_settled)
        and leader.proposal is None
        and not leader.is_recovering
        and len(leader.replicas) >= replica.config.min_insync_replicas
    )


def _open_producers(replica: Replica) -> list[ProducerEntry]:
    return [each for each in replica.log.producers if each.transaction_first_offset >= 0]
