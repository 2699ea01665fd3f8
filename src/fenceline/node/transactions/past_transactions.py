"""Asks the transaction coordinators what became of producers' transactions, past ones included.

A coordinator forgets the partitions of a transaction once all end markers are written. Its log keeps them until
compaction: the ids of the producers are listed, then the partitions of `__transaction_state` that hold them are read.
A producer id that is not listed may be an earlier one of its transactional id, whose epochs have run out, or its
coordinator has not heard yet that it leads: then all partitions are read. Works with brokers of Apache Kafka.

Owns the requests. Never decides; `transactions.history` reads the records. Rules: transactions.md X26, X31, X61.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode, FencelineError, PeerError
from fenceline.ids import NO_LEADER, TRANSACTION_STATE_TOPIC
from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnection
from fenceline.node.replication.leader_queries import EARLIEST, LATEST, LeaderQueries
from fenceline.records.batch import iter_headers
from fenceline.records.decode import decode_batch
from fenceline.transactions.history import TransactionHistory
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage

log: Final = Logger("transactions")

_IDS_AT_ONCE: Final = 1_000
_FETCH_BYTES: Final = 256 * 1024
"""Decoded in one iteration of the event loop."""
_FETCH_VERSIONS: Final = (4, 12)
"""With topic names."""
_LIST_OFFSETS_VERSION: Final = 4
"""The first with leader epochs."""
_ANY_EPOCH: Final = -1
_CONSUMER: Final = -1
"""In place of a replica's id."""


class OpensHistoryPeers(Protocol):
    """As `Peers`."""

    def open(self, node_id: int, client_id: str) -> Awaitable[PeerConnection]: ...


class PastTransactions:
    """Of one broker. All methods run on the event loop."""

    def __init__(
        self, node_id: int, image: Callable[[], MetadataImage], peers: OpensHistoryPeers, *, request_timeout_ms: int
    ) -> None:
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._timeout_s = request_timeout_ms / 1000

    async def of(self, producer_ids: Collection[int]) -> TransactionHistory | None:
        """None if a coordinator could not be asked: try again later. A producer that no coordinator knows has no
        transaction in the result."""
        history = TransactionHistory(producer_ids)
        leaders = self._leaders()
        if any(leader == NO_LEADER for leader in leaders):
            return None
        connections: dict[int, PeerConnection] = {}
        try:
            for broker in sorted(set(leaders)):
                connections[broker] = await self._peers.open(broker, f"broker-{self._node_id}-past-transactions")
            listed = [await self._listed(each, sorted(producer_ids)) for each in connections.values()]
            likely = {partition_for(name, len(leaders)) for name in set().union(*listed)}
            for index in sorted(range(len(leaders)), key=lambda index: index not in likely):
                if index in likely or history.unknown:
                    await self._read(connections[leaders[index]], index, history)
        except (ConnectionError, FencelineError, MalformedRequest, NoSuchVersion, TimeoutError) as error:
            log.debug("coordinators could not be asked about past transactions", reason=str(error))
            return None
        finally:
            for connection in connections.values():
                connection.close()
        return history if leaders == self._leaders() else None

    def _leaders(self) -> list[int]:
        topic = self._image().topics_by_name.get(TRANSACTION_STATE_TOPIC)
        return [partition.leader for partition in topic.partitions] if topic is not None else []

    async def _listed(self, connection: PeerConnection, producer_ids: list[int]) -> set[str]:
        found: set[str] = set()
        version = connection.version_for(ApiKey.LIST_TRANSACTIONS, 0, 0)
        for start in range(0, len(producer_ids), _IDS_AT_ONCE):
            fields = {"state_filters": [], "producer_id_filters": producer_ids[start : start + _IDS_AT_ONCE]}
            listing = await connection.call(ApiKey.LIST_TRANSACTIONS, version, fields, self._timeout_s)
            _raise_if(listing.error_code)
            found.update(each.transactional_id for each in listing.transaction_states)
        return found

    async def _read(self, connection: PeerConnection, index: int, history: TransactionHistory) -> None:
        """A whole partition, up to its end as the leader tells it once it knows what is committed (KIP-207)."""
        offset = await self._offset(connection, index, EARLIEST)
        end = await self._offset(connection, index, LATEST)
        version = connection.version_for(ApiKey.FETCH, *_FETCH_VERSIONS)
        while offset < end:
            row = {"partition": index, "fetch_offset": offset, "partition_max_bytes": _FETCH_BYTES}
            fields = {
                "max_wait": 0,
                "min_bytes": 0,
                "max_bytes": _FETCH_BYTES,
                "topics": [{"topic": TRANSACTION_STATE_TOPIC, "partitions": [row]}],
            }
            answer = await connection.call(ApiKey.FETCH, version, fields, self._timeout_s)
            partition = _only(answer.responses)
            _raise_if(partition.error_code)
            read_to = _add(history, memoryview(partition.records or b""), offset)
            if read_to == offset:
                return  # compaction has removed the rest
            offset = read_to
            await asyncio.sleep(0)

    async def _offset(self, connection: PeerConnection, index: int, timestamp: int) -> int:
        queries = LeaderQueries(connection, _CONSUMER, TRANSACTION_STATE_TOPIC, index, _ANY_EPOCH, self._timeout_s)
        found = await queries.offset(timestamp, first_version=_LIST_OFFSETS_VERSION)
        if found is None:
            raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        _raise_if(found.error_code)
        return found.offset


def _add(history: TransactionHistory, content: memoryview, offset: int) -> int:
    """Returns the offset after the last batch; `offset` if there is none."""
    for header in iter_headers(content, allow_partial_tail=True):
        if header.next_offset > offset:
            offset = header.next_offset
            if not header.is_control:
                for record in decode_batch(content, header):
                    history.add(record.key, record.value)
    return offset


def _only(topics: Iterable[Any]) -> Any:
    for topic in topics:
        for partition in topic.partitions:
            return partition
    raise PeerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _raise_if(code: int) -> None:
    if code:
        raise PeerError(ErrorCode(code))
