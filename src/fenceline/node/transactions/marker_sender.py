"""Sends end markers of decided transactions to the leaders of their partitions: WriteTxnMarkers v1-2.

Owns one connection and one request in flight for each other broker, and the markers that wait for it; many of them
leave in one request. Partitions led here are written directly. Never retries: each marker gets a code, and the
coordinator decides.

A broker that cannot be reached is NETWORK_EXCEPTION, a partition without leader LEADER_NOT_AVAILABLE, an unknown one
UNKNOWN_TOPIC_OR_PARTITION. Rules: transactions.md X21, X22.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fenceline.errors import ErrorCode
from fenceline.ids import NO_LEADER
from fenceline.node.logs import Logger
from fenceline.node.net.broker_link import BrokerLink
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnection
from fenceline.transactions.messages import EndMarkers, TopicIndex
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage

log: Final = Logger("transactions")

Codes: TypeAlias = Mapping[TopicIndex, ErrorCode]
EndHere: TypeAlias = Callable[[EndMarkers], Awaitable[Codes] | Codes]
"""Writes the markers of partitions that are led here: their codes, or an awaitable of them."""

_VERSIONS: Final = (1, 2)
_MOST_IN_A_REQUEST: Final = 100
"""Transactions. Thousands may wait for a broker that comes back, and each costs both sides 0.1 to 0.2 ms."""


class OpensMarkerPeers(Protocol):
    """As `Peers`."""

    def open(self, node_id: int, client_id: str) -> Awaitable[PeerConnection]: ...


class MarkerSender:
    """Of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        peers: OpensMarkerPeers,
        end_here: EndHere,
        written: Callable[[EndMarkers, Codes], None],
        *,
        request_timeout_ms: int,
    ) -> None:
        """`written` gets the codes, broker by broker."""
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._end_here = end_here
        self._written = written
        self._timeout_s = request_timeout_ms / 1000
        self._links: dict[int, _MarkerLink] = {}
        self._tasks: set[asyncio.Future[None]] = set()
        self._is_closed = False

    @property
    def waiting_count(self) -> int:
        """Markers of transactions that wait for a broker, once for each broker."""
        return sum(link.count for link in self._links.values())

    def send(self, markers: EndMarkers) -> None:
        """Have the markers written. `written` is called before this returns for those that need no wait."""
        if self._is_closed:
            return
        known: dict[TopicIndex, ErrorCode] = {}
        by_broker: dict[int, list[TopicIndex]] = {}
        for partition in markers.partitions:
            leader = self._leader(*partition)
            if leader is None:
                known[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif leader == NO_LEADER:
                known[partition] = ErrorCode.LEADER_NOT_AVAILABLE
            else:
                by_broker.setdefault(leader, []).append(partition)
        if known:
            self._written(markers, known)
        for broker, partitions in by_broker.items():
            part = markers.of(partitions)
            if broker == self._node_id:
                self._send_here(part)
            else:
                link = self._links.get(broker)
                if link is None:
                    link = self._links[broker] = _MarkerLink(self, broker)
                link.send(part)

    def _leader(self, topic: str, index: int) -> int | None:
        image = self._image().topics_by_name.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return None
        return image.partitions[index].leader

    def _send_here(self, markers: EndMarkers) -> None:
        codes = self._end_here(markers)
        if isinstance(codes, Mapping):
            self._written(markers, codes)
            return

        async def wait(codes: Awaitable[Codes]) -> None:
            self._written(markers, await codes)

        task = asyncio.ensure_future(wait(codes))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def on_brokers_changed(self) -> None:
        """Forget links to brokers that are gone and have nothing to do."""
        brokers = self._image().brokers
        for broker in [each for each, link in self._links.items() if each not in brokers and not link.count]:
            self._links.pop(broker).disconnect()

    async def close(self) -> None:
        """Markers that are not written are sent again by the next coordinator."""
        self._is_closed = True
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- of the links ----------------------------------------

    async def open(self, broker: int) -> PeerConnection:
        return await self._peers.open(broker, f"broker-{self._node_id}-write-txn-markers")

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    def finished(self, markers: EndMarkers, codes: Codes) -> None:
        if not self._is_closed:
            self._written(markers, codes)


class _MarkerLink(BrokerLink):
    """The markers for one broker."""

    def __init__(self, owner: MarkerSender, node_id: int) -> None:
        super().__init__(node_id, owner.open)
        self._owner = owner
        self._waiting: list[EndMarkers] = []
        self._in_flight: Sequence[EndMarkers] = ()

    @property
    def count(self) -> int:
        return len(self._waiting) + len(self._in_flight)

    def send(self, markers: EndMarkers) -> None:
        self._waiting.append(markers)
        self.send_soon()

    async def close(self) -> None:
        self._waiting.clear()
        await super().close()

    async def send_all(self) -> None:
        try:
            while self._waiting:
                self._in_flight = self._waiting[:_MOST_IN_A_REQUEST]
                del self._waiting[:_MOST_IN_A_REQUEST]
                codes = await self._codes(self._in_flight)
                sent, self._in_flight = self._in_flight, ()
                for markers in sent:
                    known = codes.get(markers.identity.producer_id, {})
                    self._owner.finished(
                        markers,
                        {each: known.get(each, ErrorCode.NETWORK_EXCEPTION) for each in markers.partitions},
                    )
        finally:
            # Cancelled, or our bug: the coordinator hears of every marker.
            unsent, self._in_flight, self._waiting = [*self._in_flight, *self._waiting], (), []
            self.sending = None
            for markers in unsent:
                self._owner.finished(markers, dict.fromkeys(markers.partitions, ErrorCode.NETWORK_EXCEPTION))

    async def _codes(self, batch: Sequence[EndMarkers]) -> Mapping[int, Codes]:
        """By producer id; what is missing was not answered."""
        try:
            connection = await self.connected()
            version = connection.version_for(ApiKey.WRITE_TXN_MARKERS, *_VERSIONS)
            fields = {"markers": [_marker(each, version) for each in batch]}
            response = await connection.call(ApiKey.WRITE_TXN_MARKERS, version, fields, self._owner.timeout_s)
        except (ConnectionError, MalformedRequest, NoSuchVersion) as error:
            log.debug("broker did not write end markers", broker=self.node_id, reason=str(error))
            self.disconnect()
            return {}
        return {marker.producer_id: dict(_codes_of(marker)) for marker in response.markers}


def _marker(markers: EndMarkers, version: int) -> dict[str, Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in markers.partitions:
        by_topic.setdefault(topic, []).append(index)
    fields = {
        "producer_id": markers.identity.producer_id,
        "producer_epoch": markers.identity.epoch,
        "transaction_result": markers.commit,
        "topics": [{"name": topic, "partition_indexes": indexes} for topic, indexes in by_topic.items()],
        "coordinator_epoch": markers.coordinator_epoch,
    }
    return {**fields, "transaction_version": markers.transaction_version} if version > 1 else fields


def _codes_of(marker: Any) -> Iterable[tuple[TopicIndex, ErrorCode]]:
    for topic in marker.topics:
        for partition in topic.partitions:
            yield (topic.name, partition.partition_index), ErrorCode(partition.error_code)
