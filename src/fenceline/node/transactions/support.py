"""Which brokers of the cluster coordinate transactions: Fenceline's do not, Apache Kafka's do.

Owns the known support per broker registration: a broker lists AddPartitionsToTxn in ApiVersions or not. It is asked
when a transactional client connects, once per registration, and never before. Decides nothing about a request:
`handlers.find_coordinator` and `handlers.producers` do.

A broker that cannot be asked may be a Kafka broker: a client is rejected for good only if every broker is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fenceline.node.logs import Logger
from fenceline.node.net.peer_connection import Dial, open_peer
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.metadata.image import Endpoint, MetadataImage
    from fenceline.node.clock import Clock

log = Logger("transactions")

REFUSAL: Final = (
    "No broker of this cluster coordinates transactions, because none runs Apache Kafka. Remove transactional.id:"
    " idempotent producers are supported."
)
_AT_ONCE: Final = 16
_ASK_AGAIN_MS: Final = 2_000
"""Pause after a broker did not respond; clients that retry meanwhile do not wait for a connection."""
_LOGGED_AGAIN_MS: Final = 60_000
"""Interval between log messages about rejected clients."""


class TransactionSupport:
    """The transaction support of one node's cluster. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        endpoint: Callable[[int], Endpoint | None],
        clock: Clock,
        connect: Dial,
    ) -> None:
        """`endpoint`: the address of a broker for other brokers; None while it is not registered."""
        self._node_id = node_id
        self._image = image
        self._endpoint = endpoint
        self._clock = clock
        self._connect = connect
        self._known: dict[tuple[int, int], bool] = {}
        """By (broker id, broker epoch): whether it coordinates transactions."""
        self._unanswered_ms: dict[tuple[int, int], int] = {}
        self._asking = asyncio.Lock()
        self._logged_ms: int | None = None

    async def may_be_available(self) -> bool:
        """Whether another broker coordinates transactions, or could not be asked."""
        brokers = [(each.id, each.epoch) for each in self._image().brokers.values() if each.id != self._node_id]
        if not all(each in self._known for each in brokers):
            async with self._asking:
                unknown = [each for each in brokers if each not in self._known]
                for start in range(0, len(unknown), _AT_ONCE):
                    await asyncio.gather(*(self._ask(*each) for each in unknown[start : start + _AT_ONCE]))
            for old in self._known.keys() - set(brokers):
                del self._known[old]
        return any(self._known.get(each, True) for each in brokers)

    async def _ask(self, broker_id: int, epoch: int) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._unanswered_ms.get((broker_id, epoch), now_ms - _ASK_AGAIN_MS) + _ASK_AGAIN_MS:
            return
        endpoint = self._endpoint(broker_id)
        try:
            if endpoint is None:
                raise ConnectionError(f"broker {broker_id} has no inter-broker listener")
            connection = await open_peer(
                endpoint.host, endpoint.port, client_id=f"broker-{self._node_id}", connect=self._connect
            )
        except ConnectionError as error:
            self._unanswered_ms[broker_id, epoch] = self._clock.monotonic_ms()
            log.debug("broker could not be asked about transactions", broker=broker_id, reason=str(error))
            return
        self._unanswered_ms.pop((broker_id, epoch), None)
        self._known[broker_id, epoch] = ApiKey.ADD_PARTITIONS_TO_TXN in connection.versions
        connection.close()

    def log_rejected(self, client_id: str | None, peer: str, transactional_id: str) -> None:
        """A client was rejected for good. Logged once a minute."""
        now_ms = self._clock.monotonic_ms()
        if self._logged_ms is None or now_ms >= self._logged_ms + _LOGGED_AGAIN_MS:
            self._logged_ms = now_ms
            log.warning(
                "transactional producer rejected",
                transactional_id=transactional_id,
                client_id=client_id,
                peer=peer,
                reason="no broker of this cluster coordinates transactions",
                advice="Remove transactional.id: idempotent producers are supported. Or add an Apache Kafka broker.",
            )
