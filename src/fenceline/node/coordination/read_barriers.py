"""Confirms, before a coordinator answers from memory, that no other broker has taken over its partition.

Owns one connection and one request in flight for each other broker, and the partitions that wait for it; they leave in
one request: OffsetForLeaderEpoch v3-4. A broker that does not answer is asked again until the ISR no longer has it, or
the read's patience ends. Decides nothing: `replica.read_barrier` says whom to ask and what an answer means. Nothing
runs while no read waits. Works with brokers of Apache Kafka. Everything runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.node.logs import Logger
from fenceline.node.metric_families import Durations, counters
from fenceline.node.net.broker_link import BrokerLink
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnection
from fenceline.replica.read_barrier import OfficeAnswer, ReadBarrier, office_answer, possible_successors
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.replication.replica import Replica

log: Final = Logger("coordinators")

Confirmed: TypeAlias = Callable[[ErrorCode], None]
"""Called once: with NONE, or NOT_COORDINATOR."""
ConfirmLeadership: TypeAlias = Callable[[TopicPartition, int, Confirmed], None]
"""As `ReadBarriers.confirm`."""

_VERSIONS: Final = (3, 4)
_QUESTION_S: Final = 1.0
"""A broker that has not answered by then is asked again, over a new connection."""
_RETRY_S: Final = 0.1
_WARN_EVERY_S: Final = 60.0
"""Between two log lines about brokers that do not answer."""


def confirm_at_once(where: TopicPartition, leader_epoch: int, confirmed: Confirmed) -> None:
    """Of a coordinator whose partitions have no other replica, or with `fenceline.coordinator.confirmation.enable`
    off."""
    confirmed(ErrorCode.NONE)


class LedReplicas(Protocol):
    """As `Replicas`."""

    def leader(self, topic: str | None, topic_id: bytes | None, index: int) -> Replica: ...


class OpensReplicaPeers(Protocol):
    """As `Peers`."""

    def open(self, node_id: int, client_id: str) -> Awaitable[PeerConnection]: ...


class ReadBarriers:
    """Of one broker."""

    def __init__(
        self,
        node_id: int,
        replicas: LedReplicas,
        image: Callable[[], MetadataImage],
        peers: OpensReplicaPeers,
        *,
        patience_ms: int,
        request_timeout_ms: int,
    ) -> None:
        """`patience_ms`: how long a read waits at most."""
        self.node_id: Final = node_id
        self._replicas = replicas
        self._image = image
        self._peers = peers
        self._patience_s = patience_ms / 1000
        self.timeout_s: Final = min(request_timeout_ms / 1000, _QUESTION_S)
        self._barriers: dict[TopicPartition, _PartitionBarrier] = {}
        self._links: dict[int, _PeerLink] = {}
        self._is_closed = False
        self._warned_s = -_WARN_EVERY_S
        self.rejected = 0
        """Reads that were not confirmed."""
        self.durations: Final = Durations()
        """From the arrival of a read to its confirmation, if other brokers were asked."""

    def confirm(self, where: TopicPartition, leader_epoch: int, confirmed: Confirmed) -> None:
        """Call `confirmed` with NONE once it is certain that no other leader of the partition had taken office when
        this was called; at once if there is no other replica to ask. NOT_COORDINATOR if another may have: what Kafka's
        coordinator answers when OffsetFetch takes too long, because clients before 3.9 retry no other code."""
        try:
            replica = self._replicas.leader(where.topic, None, where.partition)
            others = self.others(where, replica, leader_epoch)
        except PeerError:
            self._reject(confirmed)
            return
        if others is not None and not others:
            confirmed(ErrorCode.NONE)
            return
        if self._is_closed:
            self._reject(confirmed)
            return
        barrier = self._barriers.get(where)
        if barrier is not None and not barrier.holds(replica, leader_epoch):
            barrier.reject_all()
            barrier = None
        if barrier is None:
            barrier = self._barriers[where] = _PartitionBarrier(self, where, replica, leader_epoch)
        started_s = asyncio.get_running_loop().time()

        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.durations.observe(asyncio.get_running_loop().time() - started_s)
                confirmed(code)
            else:
                self._reject(confirmed)

        barrier.add(done, started_s + self._patience_s)

    def _reject(self, confirmed: Confirmed) -> None:
        self.rejected += 1
        confirmed(ErrorCode.NOT_COORDINATOR)

    async def close(self) -> None:
        """Waiting reads get NOT_COORDINATOR, and later ones at once."""
        self._is_closed = True
        for barrier in list(self._barriers.values()):
            barrier.reject_all()
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()

    def collect(self) -> Iterator[Any]:
        """Metrics, for prometheus-client."""
        yield from counters(
            (
                "fenceline_stable_reads_rejected",
                "Reads of stable offsets that the other replicas did not confirm",
                self.rejected,
            )
        )
        yield self.durations.family(
            "fenceline_stable_read_confirmation_seconds",
            "Time until the other replicas have confirmed that this broker is still the coordinator",
        )

    # --- of the barriers and the links ----------------------------------------

    def others(self, where: TopicPartition, replica: Replica, leader_epoch: int) -> frozenset[int] | None:
        """See `possible_successors`. Raises PeerError if this broker no longer leads in this epoch."""
        leader, partition = replica.leader, self._image().partition(*where)
        if leader is None or partition is None or leader.leader_epoch != leader_epoch:
            raise PeerError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return possible_successors(leader, partition)

    def ask(self, broker: int, barrier: _PartitionBarrier) -> None:
        link = self._links.get(broker)
        if link is None:
            link = self._links[broker] = _PeerLink(self, broker)
        link.ask(barrier)

    def expired(self, where: TopicPartition, missing: Sequence[int]) -> None:
        """Reads of this partition have waited too long for these brokers."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._warned_s + _WARN_EVERY_S:
            return
        self._warned_s = now_s
        log.warning(
            "answer of a coordinator not confirmed in time",
            partition=str(where),
            waits_for=list(missing),
            waited_ms=round(self._patience_s * 1000),
            advice=f"Members of the ISR or the ELR do not answer. Check with: fenceline topics describe {where.topic}",
        )

    def ended(self, barrier: _PartitionBarrier) -> None:
        if self._barriers.get(barrier.where) is barrier:
            del self._barriers[barrier.where]

    async def open(self, broker: int) -> PeerConnection:
        return await self._peers.open(broker, f"broker-{self.node_id}-read-barrier")


class _PartitionBarrier:
    """The waiting reads of one partition; dropped when none waits."""

    __slots__ = ("_owner", "_replica", "_timer", "reads", "where")

    def __init__(self, owner: ReadBarriers, where: TopicPartition, replica: Replica, leader_epoch: int) -> None:
        self._owner = owner
        self.where = where
        self._replica = replica
        self.reads: ReadBarrier[Confirmed] = ReadBarrier(leader_epoch)
        self._timer: asyncio.TimerHandle | None = None
        replica.waiters.add(self.go_on)

    def holds(self, replica: Replica, leader_epoch: int) -> bool:
        return self._replica is replica and self.reads.leader_epoch == leader_epoch

    def add(self, confirmed: Confirmed, deadline_s: float) -> None:
        self.reads.add(confirmed, deadline_s)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(deadline_s, self._expire)
        self.go_on()

    def go_on(self) -> None:
        """After an answer, a new read, or a change of the partition."""
        if self.reads.is_empty:
            return
        try:
            others = self._owner.others(self.where, self._replica, self.reads.leader_epoch)
        except PeerError:
            self.reject_all()
            return
        if others is None:
            return  # a change of the metadata is on its way
        self._settle(self.reads.pop_confirmed(others), ErrorCode.NONE)
        for broker in self.reads.to_ask(others):
            self.reads.wanted(broker)
            self._owner.ask(broker, self)

    def answered(self, broker: int, answer: OfficeAnswer) -> None:
        if answer is OfficeAnswer.REPLACED:
            self.reject_all()
        else:
            self.reads.answered(broker, answer)
            self.go_on()

    def reject_all(self) -> None:
        self._settle(self.reads.pop_all(), ErrorCode.NOT_COORDINATOR)

    def _expire(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        expired = self.reads.pop_expired(loop.time())
        if expired:
            self._owner.expired(self.where, self.reads.unanswered)
        self._settle(expired, ErrorCode.NOT_COORDINATOR)
        if self._timer is None and (deadline_s := self.reads.next_deadline_s) is not None:
            self._timer = loop.call_at(deadline_s, self._expire)

    def _settle(self, reads: Sequence[Confirmed], code: ErrorCode) -> None:
        if self.reads.is_empty:
            self._replica.waiters.discard(self.go_on)
            self._owner.ended(self)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for confirmed in reads:
            confirmed(code)


class _PeerLink(BrokerLink):
    """The partitions about which one broker is asked."""

    def __init__(self, owner: ReadBarriers, broker: int) -> None:
        super().__init__(broker, owner.open)
        self._owner = owner
        self._waiting: dict[_PartitionBarrier, None] = {}
        """Not asked yet."""

    def ask(self, barrier: _PartitionBarrier) -> None:
        self._waiting[barrier] = None
        self.send_soon()

    async def close(self) -> None:
        self._waiting.clear()
        await super().close()

    async def send_all(self) -> None:
        try:
            while self._waiting:
                batch: list[_PartitionBarrier] = []
                try:
                    async with asyncio.timeout(self._owner.timeout_s):
                        connection = await self.connected()
                        batch = self._take()
                        answers = await self._answers(connection, batch)
                except (ConnectionError, MalformedRequest, NoSuchVersion, TimeoutError) as error:
                    log.debug("replica did not confirm a coordinator", broker=self.node_id, reason=str(error))
                    self.disconnect()
                    batch = batch or self._take()
                    await asyncio.sleep(_RETRY_S)
                    for each in batch:
                        each.answered(self.node_id, OfficeAnswer.UNDECIDED)
                    continue
                for each in batch:
                    answer = answers.get(each.where, OfficeAnswer.UNDECIDED)
                    if answer is OfficeAnswer.UNDECIDED:
                        self._answer_later(each)
                    else:
                        each.answered(self.node_id, answer)
        finally:
            self.sending = None

    def _take(self) -> list[_PartitionBarrier]:
        """All that wait, without those whose reads have ended meanwhile."""
        waiting, self._waiting = self._waiting, {}
        return [each for each in waiting if each.reads.sent(self.node_id)]

    def _answer_later(self, barrier: _PartitionBarrier) -> None:
        asyncio.get_running_loop().call_later(_RETRY_S, barrier.answered, self.node_id, OfficeAnswer.UNDECIDED)

    async def _answers(
        self, connection: PeerConnection, batch: Sequence[_PartitionBarrier]
    ) -> dict[TopicPartition, OfficeAnswer]:
        if not batch:
            return {}
        version = connection.version_for(ApiKey.OFFSET_FOR_LEADER_EPOCH, *_VERSIONS)
        fields = {"replica_id": self._owner.node_id, "topics": _topics(batch)}
        response = await connection.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, fields, self._owner.timeout_s)
        return {
            TopicPartition(topic.topic, partition.partition): office_answer(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }


def _topics(batch: Sequence[_PartitionBarrier]) -> list[dict[str, Any]]:
    by_topic: dict[str, list[dict[str, int]]] = {}
    for each in batch:
        epoch = each.reads.leader_epoch
        row = {"partition": each.where.partition, "current_leader_epoch": epoch + 1, "leader_epoch": epoch}
        by_topic.setdefault(each.where.topic, []).append(row)
    return [{"topic": topic, "partitions": rows} for topic, rows in by_topic.items()]
