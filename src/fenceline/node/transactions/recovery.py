"""Before an uncleanly elected leader serves: what is open in its partition is fenced at its coordinator (KIP-704).

The log of such a leader may lack records of a transaction. If the leader only wrote an ABORT marker by itself, the
coordinator, which still lists the partition, could commit the rest: the transaction would be torn. So every ongoing
transaction that has the partition, also one of which the log has nothing any more, is aborted by its coordinator: a new
producer with the id is asked for once, which fences the old one. Decided transactions are left alone; their markers
come.

Owns the questions to all coordinators, asked together for all partitions that recover at the same time. Never appends:
`replication` aborts what no coordinator knows. Rules: transactions.md X16, X61, X62.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

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
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.transactions.driver import TransactionsDriver

log: Final = Logger("transactions")

_OPEN_STATES: Final = tuple(
    state.title for state in (TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)
)
_DESCRIBED_AT_ONCE: Final = 1_000
_RETRY_S: Final = 0.1
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
        *,
        patience_ms: int,
        request_timeout_ms: int,
    ) -> None:
        """`patience_ms`: how long coordinators that do not answer are asked again."""
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._coordinator = coordinator
        self._patience_s = patience_ms / 1000
        self._timeout_s = request_timeout_ms / 1000
        self._waiting: dict[TopicPartition, asyncio.Future[frozenset[int] | None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def fence(self, where: TopicPartition) -> frozenset[int] | None:
        """Have every ongoing transaction that has this partition aborted. Returns the producer ids of all transactions
        whose end markers will come; None if a coordinator could not be asked."""
        if where.topic == TRANSACTION_STATE_TOPIC or TRANSACTION_STATE_TOPIC not in self._image().topics_by_name:
            return frozenset()
        result = self._waiting.get(where)
        if result is None:
            result = self._waiting[where] = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        return await asyncio.shield(result)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
        left = None
        while left is None or left:
            coordinators = self._coordinators()
            left = coordinators if left is None else left & coordinators
            if NO_LEADER in coordinators:
                left = left | {NO_LEADER}
            done = {broker for broker in left if await self._fence_at(broker, partitions, held)}
            left -= done
            if left:
                if loop.time() >= until_s:
                    log.warning(
                        "coordinators of transactions could not be asked; open transactions are left to them",
                        brokers=sorted(left),
                        partitions=len(partitions),
                    )
                    return None
                await asyncio.sleep(_RETRY_S)
        return {partition: frozenset(producers) for partition, producers in held.items()}

    def _coordinators(self) -> frozenset[int]:
        topic = self._image().topics_by_name.get(TRANSACTION_STATE_TOPIC)
        return frozenset(partition.leader for partition in topic.partitions) if topic is not None else frozenset()

    async def _fence_at(self, broker: int, partitions: frozenset[TopicIndex], held: dict[TopicIndex, set[int]]) -> bool:
        """Whether this coordinator has been asked about everything, and everything is fenced."""
        if broker == NO_LEADER:
            return False
        try:
            async with asyncio.timeout(self._timeout_s):
                if broker == self._node_id:
                    return await self._fence_at_coordinator(_Here(self._coordinator), partitions, held) and (
                        # A partition of the topic that this broker is about to load has other ids.
                        self._coordinator.leads_all_of(self._image(), self._node_id)
                    )
                connection = await self._peers.open(broker, f"broker-{self._node_id}-recovery")
                try:
                    return await self._fence_at_coordinator(_Elsewhere(connection, self._timeout_s), partitions, held)
                finally:
                    connection.close()
        except (ConnectionError, TimeoutError, PeerError, MalformedRequest, NoSuchVersion) as error:
            log.debug("coordinator could not be asked", broker=broker, reason=str(error))
            return False

    async def _fence_at_coordinator(
        self, coordinator: _Coordinator, partitions: frozenset[TopicIndex], held: dict[TopicIndex, set[int]]
    ) -> bool:
        """Raises what the coordinator raises."""
        for _ in range(2):
            # CONCURRENT_TRANSACTIONS can also mean that another change is pending: only a second look tells.
            is_fenced = True
            for each in await coordinator.open_transactions():
                named = partitions.intersection(each.partitions)
                for partition in named:
                    held.setdefault(partition, set()).add(each.producer_id)
                if named and each.is_ongoing:
                    is_fenced = False
                    await coordinator.fence(each)
            if is_fenced:
                return True
        return False


class _Coordinator(Protocol):
    """Raises PeerError, ConnectionError, MalformedRequest, NoSuchVersion."""

    async def open_transactions(self) -> Sequence[OpenTransaction]: ...
    async def fence(self, transaction: OpenTransaction) -> None: ...


class _Here:
    """This broker's own."""

    def __init__(self, driver: TransactionsDriver) -> None:
        self._driver = driver

    async def open_transactions(self) -> Sequence[OpenTransaction]:
        listing = self._driver.list_transactions(frozenset(_OPEN_STATES), frozenset(), -1, lambda _: True)
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

    async def open_transactions(self) -> Sequence[OpenTransaction]:
        connection = self._connection
        version = connection.version_for(ApiKey.LIST_TRANSACTIONS, 0, 1)
        fields = {"state_filters": list(_OPEN_STATES), "producer_id_filters": []}
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


def _partitions(topics: Iterable[Any]) -> Iterable[TopicIndex]:
    for topic in topics:
        for index in topic.partitions:
            yield topic.topic, index
