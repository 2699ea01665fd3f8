"""Before an uncleanly elected leader serves: what is open in its partition is fenced at its coordinator (KIP-704).

The log of such a leader may lack records of a transaction. If the leader only wrote an ABORT marker by itself, the
coordinator, which still lists the partition, could commit the rest: the transaction would be torn. So every ongoing
transaction that has the partition, also one of which the log has nothing any more, is aborted by its coordinator: a new
producer with the id is asked for once, which fences the old one. Decided transactions are left alone; their markers
come. A transaction that is complete for its coordinator, but open here, has lost its end marker: the coordinator's log
tells which one it was. It is written first, if it is sure which transaction it belongs to: the producer may have begun
another one since, whose marker would end both.

A coordinator counts as asked about a partition of `__transaction_state` if it leads it in the newest epoch known here,
before and after the question: a broker that has not heard yet that it leads it would leave out its transactions.

A leader does not wait for ever for a coordinator that does not answer: it serves, and the question is repeated until
every coordinator has answered, then only about transactions that are older than the service.

Owns the questions to all coordinators, asked together for all partitions that recover at the same time. Never appends:
`replication` aborts what no coordinator knows. Rules: transactions.md X16, X61, X62.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import NO_LEADER, TRANSACTION_STATE_TOPIC, TopicPartition
from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnection
from fenceline.transactions.messages import InitProducer, TopicIndex
from fenceline.transactions.states import TransactionState
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.log.core.tail import ProducerEntry
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.transactions.driver import TransactionsDriver
    from fenceline.transactions.history import TransactionHistory

log: Final = Logger("transactions")

_OPEN_STATES: Final = tuple(
    state.title for state in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
)
_DESCRIBED_AT_ONCE: Final = 1_000
_RETRY_S: Final = 0.1
_LATE_RETRY_S: Final = 1.0
_FIRST_WITH_LEADER_EPOCH: Final = 7
"""Of Metadata."""
_FIRST_WITH_DURATION: Final = 1
"""Of ListTransactions."""
_FIRST_WITH_IDENTITY: Final = 3
"""Of InitProducerId."""


class OpensCoordinatorPeers(Protocol):
    """As `Peers`."""

    def open(self, node_id: int, client_id: str) -> Awaitable[PeerConnection]: ...


class OpenTransaction(NamedTuple):
    """A transaction that is not complete, as its coordinator describes it."""

    transactional_id: str
    producer_id: int
    is_ongoing: bool
    timeout_ms: int
    partitions: tuple[TopicIndex, ...]


class TransactionRecovery:
    """Of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        peers: OpensCoordinatorPeers,
        coordinator: TransactionsDriver,
        history_of: Callable[[Collection[int]], Awaitable[TransactionHistory | None]],
        *,
        patience_ms: int,
        request_timeout_ms: int,
    ) -> None:
        """`history_of`: the transactions of these producers. `patience_ms`: how long coordinators that do not answer
        are asked again."""
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._coordinator = coordinator
        self._history_of = history_of
        self._patience_s = patience_ms / 1000
        self._timeout_s = request_timeout_ms / 1000
        self._waiting: dict[TopicPartition, asyncio.Future[frozenset[int] | None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._late: dict[TopicIndex, float] = {}
        """Partitions that are served although a coordinator has not answered, and since when (the loop's clock)."""
        self._late_task: asyncio.Task[None] | None = None

    async def fence(self, where: TopicPartition) -> frozenset[int] | None:
        """Have every ongoing transaction that has this partition aborted. Returns the producer ids of all transactions
        whose end markers will come; None if a coordinator could not be asked yet: it is asked again in the background,
        and whatever is open now is aborted then."""
        if where.topic == TRANSACTION_STATE_TOPIC or TRANSACTION_STATE_TOPIC not in self._image().topics_by_name:
            return frozenset()
        result = self._waiting.get(where)
        if result is None:
            result = self._waiting[where] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return await asyncio.shield(result)

    async def decided(self, where: TopicPartition, open_ones: Sequence[ProducerEntry]) -> Mapping[int, bool]:
        """By producer id: whether the transaction that is open in this partition was committed, if its coordinator has
        decided it and no other transaction of the producer can have written its records. Asked before `fence`: the
        marker of a later transaction would end it."""
        try:
            async with asyncio.timeout(self._patience_s):
                history = await self._history_of({each.producer_id for each in open_ones})
        except TimeoutError:
            history = None
        if history is None:
            return {}
        at = where.topic, where.partition
        found = {each.producer_id: history.only(each.producer_id, each.epoch, at) for each in open_ones}
        return {
            producer_id: past.commit
            for producer_id, past in found.items()
            if past is not None and past.commit is not None
        }

    async def outcomes(
        self, where: TopicPartition, open_ones: Sequence[ProducerEntry]
    ) -> Mapping[int, bool | None] | None:
        """By producer id: whether the transaction that is open in this partition was committed, from the coordinators'
        logs: its end marker was lost. None: undecided; absent: no coordinator knows it. None for all: a coordinator
        could not be asked."""
        history = await self._history_of({each.producer_id for each in open_ones})
        if history is None:
            return None
        at = where.topic, where.partition
        found = {
            each.producer_id: history.of(each.producer_id, each.epoch, at, each.last_timestamp_ms) for each in open_ones
        }
        return {producer_id: past.commit for producer_id, past in found.items() if past is not None}

    @property
    def late_count(self) -> int:
        """Partitions that are served although a coordinator has not answered."""
        return len(self._late)

    async def close(self) -> None:
        tasks = [task for task in (self._task, self._late_task) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        asked: Mapping[TopicPartition, asyncio.Future[frozenset[int] | None]] = {}
        try:
            while self._waiting:
                # Partitions that come now were not served when the coordinators are asked: nothing is added meanwhile.
                asked, self._waiting = self._waiting, {}
                held = await self._fence_all(frozenset((each.topic, each.partition) for each in asked))
                for where, result in asked.items():
                    if not result.done():
                        result.set_result(
                            None if held is None else held.get((where.topic, where.partition), frozenset())
                        )
        finally:
            # Cancelled, or our bug: no recovery waits for ever.
            for result in (*asked.values(), *self._waiting.values()):
                if not result.done():
                    result.set_result(None)
            self._waiting = {}
            self._task = None

    async def _fence_all(self, partitions: frozenset[TopicIndex]) -> dict[TopicIndex, frozenset[int]] | None:
        """By partition: the producers whose markers will come."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience_s
        held: dict[TopicIndex, set[int]] = {}
        search = _Search(partitions, held)
        left = await self._not_fenced(None, search)
        while left:
            if loop.time() >= until_s:
                self._fence_later(partitions, left)
                return None
            await asyncio.sleep(_RETRY_S)
            left = await self._not_fenced(left, search)
        return {partition: frozenset(producers) for partition, producers in held.items()}

    async def _not_fenced(self, left: Collection[int] | None, search: _Search) -> list[int]:
        """Ask the coordinators of these partitions of `__transaction_state`, or of all: those whose coordinator has not
        answered. A partition that moves is asked about again."""
        topic = self._image().topics_by_name.get(TRANSACTION_STATE_TOPIC)
        leaders = [partition.leader for partition in topic.partitions] if topic is not None else []
        wanted = [index for index in range(len(leaders)) if left is None or index in left]
        fenced = {
            broker: await self._fence_at(broker, [index for index in wanted if leaders[index] == broker], search)
            for broker in sorted({leaders[index] for index in wanted})
        }
        return [index for index in wanted if not fenced[leaders[index]]]

    def _fence_later(self, partitions: frozenset[TopicIndex], left: Iterable[int]) -> None:
        log.warning(
            "coordinators of transactions do not answer; the partitions are served, and open transactions block "
            "readers of committed records until the coordinators can be asked",
            partitions=len(partitions),
            not_asked=[f"{TRANSACTION_STATE_TOPIC}-{index}" for index in left],
        )
        self._late.update(dict.fromkeys(partitions, asyncio.get_running_loop().time()))
        if self._late_task is None:
            self._late_task = asyncio.ensure_future(self._run_late())

    async def _run_late(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._late:
                await asyncio.sleep(_LATE_RETRY_S)
                for since_s in sorted(set(self._late.values())):
                    partitions = frozenset(each for each, when_s in self._late.items() if when_s == since_s)
                    search = _Search(partitions, {}, lambda since_s=since_s: loop.time() - since_s)  # type: ignore[misc]
                    if await self._not_fenced(None, search):
                        continue
                    for partition in partitions:
                        if self._late.get(partition) == since_s:
                            del self._late[partition]
                    log.info("coordinators of transactions have answered", partitions=len(partitions))
        finally:
            self._late_task = None

    async def _fence_at(self, broker: int, indexes: Sequence[int], search: _Search) -> bool:
        """Whether this coordinator has been asked about everything in these partitions of `__transaction_state`, and
        everything is fenced."""
        if broker == NO_LEADER:
            return False
        try:
            async with asyncio.timeout(self._timeout_s):
                if broker == self._node_id:
                    return await _fence_at_coordinator(_Here(self._coordinator), search) and (
                        # A partition of the topic that this broker is about to load has other ids.
                        self._coordinator.leads_all_of(self._image(), self._node_id)
                    )
                connection = await self._peers.open(broker, f"broker-{self._node_id}-recovery")
                try:
                    coordinator = _Elsewhere(connection, self._timeout_s)
                    epochs = self._epochs_of(indexes)
                    return (
                        await coordinator.leads(broker, epochs)
                        and await _fence_at_coordinator(coordinator, search)
                        and await coordinator.leads(broker, epochs)
                    )
                finally:
                    connection.close()
        except (ConnectionError, TimeoutError, PeerError, MalformedRequest, NoSuchVersion) as error:
            log.debug("coordinator could not be asked", broker=broker, reason=str(error))
            return False

    def _epochs_of(self, indexes: Iterable[int]) -> _Epochs:
        partitions = self._image().topics_by_name[TRANSACTION_STATE_TOPIC].partitions
        return _Epochs(len(partitions), {index: partitions[index].leader_epoch for index in indexes})


class _Epochs(NamedTuple):
    """Leader epochs of partitions of `__transaction_state`, by index."""

    partition_count: int
    by_index: Mapping[int, int]


class _Search(NamedTuple):
    partitions: frozenset[TopicIndex]
    held: dict[TopicIndex, set[int]]
    """Filled: by partition, the producers whose end markers will come."""
    served_for_s: Callable[[], float] | None = None
    """For how long the partitions have been served: younger transactions are left alone. None: they are not served."""

    def longer_than_ms(self) -> int:
        return -1 if self.served_for_s is None else int(self.served_for_s() * 1000)


async def _fence_at_coordinator(coordinator: _Coordinator, search: _Search) -> bool:
    """Raises what the coordinator raises."""
    for _ in range(2):
        # CONCURRENT_TRANSACTIONS can also mean that another change is pending: only a second look tells.
        is_fenced = True
        for each in await coordinator.open_transactions(search.longer_than_ms()):
            named = search.partitions.intersection(each.partitions)
            for partition in named:
                search.held.setdefault(partition, set()).add(each.producer_id)
            if named and each.is_ongoing:
                is_fenced = False
                await coordinator.fence(each)
        if is_fenced:
            return True
    return False


class _Coordinator(Protocol):
    """Raises PeerError, ConnectionError, MalformedRequest, NoSuchVersion."""

    async def open_transactions(self, longer_than_ms: int) -> Sequence[OpenTransaction]: ...
    async def fence(self, transaction: OpenTransaction) -> None: ...


class _Here:
    """This broker's own."""

    def __init__(self, driver: TransactionsDriver) -> None:
        self._driver = driver

    async def open_transactions(self, longer_than_ms: int) -> Sequence[OpenTransaction]:
        listing = self._driver.list_transactions(frozenset(_OPEN_STATES), frozenset(), longer_than_ms, lambda _: True)
        found = []
        for listed in listing.transactions:
            known = self._driver.describe(listed.transactional_id)
            found.append(
                OpenTransaction(
                    listed.transactional_id,
                    known.identity.producer_id,
                    known.state == TransactionState.ONGOING.title,
                    known.timeout_ms,
                    known.partitions,
                )
            )
        return found

    async def fence(self, transaction: OpenTransaction) -> None:
        reply = self._driver.init_producer(InitProducer(transaction.transactional_id, transaction.timeout_ms))
        await reply.wait()


class _Elsewhere:
    """Another broker's: Fenceline's or Apache Kafka's."""

    def __init__(self, connection: PeerConnection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    async def leads(self, broker: int, epochs: _Epochs) -> bool:
        """Whether this broker knows that it leads these partitions, in these epochs or later ones, and has loaded
        them. A broker's coordinator learns of an epoch after its metadata, so both are asked."""
        connection = self._connection
        version = connection.version_for(ApiKey.METADATA, _FIRST_WITH_LEADER_EPOCH, 12)
        wanted: dict[str, Any] = {"topics": [{"name": TRANSACTION_STATE_TOPIC}], "allow_auto_topic_creation": False}
        answer = await connection.call(ApiKey.METADATA, version, wanted, self._timeout_s)
        led = {
            each.partition_index: each.leader_epoch
            for topic in answer.topics
            for each in topic.partitions
            if each.leader_id == broker
        }
        if any(led.get(index, -1) < epoch for index, epoch in epochs.by_index.items()):
            return False
        ids = [_an_id_of(index, epochs.partition_count) for index in epochs.by_index]
        await self._described(ids)  # raises NOT_COORDINATOR and COORDINATOR_LOAD_IN_PROGRESS
        return True

    async def open_transactions(self, longer_than_ms: int) -> Sequence[OpenTransaction]:
        connection = self._connection
        lowest = _FIRST_WITH_DURATION if longer_than_ms >= 0 else 0
        version = connection.version_for(ApiKey.LIST_TRANSACTIONS, lowest, _FIRST_WITH_DURATION)
        fields: dict[str, Any] = {"state_filters": list(_OPEN_STATES), "producer_id_filters": []}
        if version >= _FIRST_WITH_DURATION:
            fields["duration_filter"] = longer_than_ms
        listing = await connection.call(ApiKey.LIST_TRANSACTIONS, version, fields, self._timeout_s)
        if listing.error_code:
            raise PeerError(ErrorCode(listing.error_code))
        ids = [each.transactional_id for each in listing.transaction_states]
        found: list[OpenTransaction] = []
        for start in range(0, len(ids), _DESCRIBED_AT_ONCE):
            found += await self._described(ids[start : start + _DESCRIBED_AT_ONCE])
        return found

    async def _described(self, ids: Sequence[str]) -> list[OpenTransaction]:
        connection = self._connection
        version = connection.version_for(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0)
        fields = {"transactional_ids": list(ids)}
        answer = await connection.call(ApiKey.DESCRIBE_TRANSACTIONS, version, fields, self._timeout_s)
        found = []
        for each in answer.transaction_states:
            code = ErrorCode(each.error_code)
            if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                continue
            if code is not ErrorCode.NONE:
                raise PeerError(code)
            if each.transaction_state in _OPEN_STATES:
                found.append(
                    OpenTransaction(
                        each.transactional_id,
                        each.producer_id,
                        each.transaction_state == TransactionState.ONGOING.title,
                        millis(each.transaction_timeout),
                        tuple(_partitions(each.topics)),
                    )
                )
        return found

    async def fence(self, transaction: OpenTransaction) -> None:
        connection = self._connection
        version = connection.version_for(ApiKey.INIT_PRODUCER_ID, 2, 5)
        fields: dict[str, Any] = {
            "transactional_id": transaction.transactional_id,
            "transaction_timeout": transaction.timeout_ms,
        }
        if version >= _FIRST_WITH_IDENTITY:
            fields.update(producer_id=-1, producer_epoch=-1)
        await connection.call(ApiKey.INIT_PRODUCER_ID, version, fields, self._timeout_s)


@cache
def _an_id_of(index: int, partition_count: int) -> str:
    """A transactional id that belongs to this partition of `__transaction_state`. No client has it."""
    return next(name for number in count() if partition_for(name := f"recovery-{number}", partition_count) == index)


def _partitions(topics: Iterable[Any]) -> Iterable[TopicIndex]:
    for topic in topics:
        for index in topic.partitions:
            yield topic.topic, index
