"""Asks the coordinators of transactions about partitions of other leaders: AddPartitionsToTxn v4-5 (KIP-890).

The leader of a partition asks before a transactional batch opens a transaction there: to add the partition to the
producer's transaction, or only whether it has been added.

Owns one connection and one request in flight for each coordinator, and the questions that wait for it; they leave in
one request. Never appends, never retries and never keeps an answer: the caller's guard (`log.core.guards`) tells
whether an answer still counts.

For one transactional id a newer epoch displaces a waiting question of an older one, which gets 47; an older one gets
47 at once. Questions of the same producer and epoch leave together. Apache Kafka answers the earlier of two with 13
instead, so a producer whose partitions are written over several connections has to retry.

Rules: transactions.md X33, X34.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fenceline.coordination import partition_for
from fenceline.errors import ErrorCode
from fenceline.ids import CONSUMER_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from fenceline.node.coordination.replies import Reply
from fenceline.node.logs import Logger
from fenceline.node.metric_families import Durations, counters
from fenceline.node.net.broker_link import BrokerLink
from fenceline.node.net.peer_connection import NoSuchVersion, PeerConnection
from fenceline.transactions.messages import PartitionsAdded
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage

log = Logger("transactions")

TopicIndex: TypeAlias = tuple[str, int]
"""A topic and the index of a partition."""
PartitionCodes: TypeAlias = dict[TopicIndex, ErrorCode]

_VERSIONS: Final = (4, 5)
_AS_PRODUCERS_KNOW_IT: Final = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ErrorCode.INVALID_TXN_STATE,
}


AsksHere: TypeAlias = Callable[[str, tuple[int, int], tuple[TopicIndex, ...], bool], Reply[PartitionsAdded]]
"""(transactional id, (producer id, epoch), partitions, whether only to verify) -> a code for each partition"""


class OpensPeers(Protocol):
    """As `Peers`."""

    def open(self, node_id: int, client_id: str) -> Awaitable[PeerConnection]: ...


class _Question:
    """About one transactional id. Several callers may share it."""

    __slots__ = ("_waiters", "identity", "partitions", "verify_only")

    def __init__(self, identity: tuple[int, int], verify_only: bool) -> None:
        self.identity = identity
        self.verify_only = verify_only
        self.partitions: dict[TopicIndex, None] = {}
        self._waiters: list[tuple[asyncio.Future[PartitionCodes], tuple[TopicIndex, ...]]] = []

    def join(self, partitions: Collection[TopicIndex]) -> asyncio.Future[PartitionCodes]:
        answer: asyncio.Future[PartitionCodes] = asyncio.get_running_loop().create_future()
        self.partitions.update(dict.fromkeys(partitions))
        self._waiters.append((answer, tuple(partitions)))
        return answer

    def settle(self, code_of: Callable[[TopicIndex], ErrorCode]) -> None:
        for answer, partitions in self._waiters:
            if not answer.done():
                answer.set_result({partition: code_of(partition) for partition in partitions})

    def settle_all(self, code: ErrorCode) -> None:
        self.settle(lambda _: code)


class Verification:
    """The questions of one broker. All methods run on the event loop."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        peers: OpensPeers,
        *,
        request_timeout_ms: int,
        ask_here: AsksHere | None = None,
    ) -> None:
        """`ask_here` asks this broker's own coordinator; without it, this broker is asked as any other."""
        self._node_id = node_id
        self._image = image
        self._peers = peers
        self._timeout_s = request_timeout_ms / 1000
        self._ask_here = ask_here
        self._links: dict[int, _CoordinatorLink] = {}
        self._is_closed = False
        self.failures = 0
        """Partitions that were not verified."""
        self.durations = Durations()
        """From the question to the answer."""

    def ask(
        self,
        transactional_id: str,
        identity: tuple[int, int],
        partitions: Collection[TopicIndex],
        *,
        verify_only: bool,
    ) -> PartitionCodes | Awaitable[PartitionCodes]:
        """Whether these partitions are in the transaction of `identity` (producer id, epoch); unless `verify_only`,
        they are added to it. A code for each: NONE, those of X12 and X34 (3, 13, 14, 15, 16, 42, 47, 48, 49, 51, 120,
        ...). This broker's own coordinator answers most questions at once."""
        started_s = asyncio.get_running_loop().time()
        coordinator = self._coordinator(transactional_id)
        if self._is_closed:
            return self._answered(dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION), started_s)
        if coordinator is None:
            return self._answered(dict.fromkeys(partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE), started_s)
        if coordinator == self._node_id and self._ask_here is not None:
            reply = self._ask_here(transactional_id, identity, tuple(partitions), verify_only)
            if reply.outcome is not None:
                return self._answered(_codes_here(partitions, reply.outcome), started_s)
            return self._when_answered(_answer_here(partitions, reply), started_s)
        link = self._links.get(coordinator)
        if link is None:
            link = self._links[coordinator] = _CoordinatorLink(self, coordinator)
        return self._when_answered(link.ask(transactional_id, identity, partitions, verify_only), started_s)

    async def _when_answered(self, codes: Awaitable[PartitionCodes], started_s: float) -> PartitionCodes:
        return self._answered(await codes, started_s)

    def _answered(self, codes: PartitionCodes, started_s: float) -> PartitionCodes:
        self.durations.observe(asyncio.get_running_loop().time() - started_s)
        self.failures += sum(code is not ErrorCode.NONE for code in codes.values())
        return codes

    async def ask_for_offsets(
        self, transactional_id: str, identity: tuple[int, int], partition_index: int, adds: bool
    ) -> ErrorCode:
        """`ask`, for one partition of `__consumer_offsets`."""
        partition = (CONSUMER_OFFSETS_TOPIC, partition_index)
        codes = self.ask(transactional_id, identity, (partition,), verify_only=not adds)
        return (codes if isinstance(codes, dict) else await codes)[partition]

    def _coordinator(self, transactional_id: str) -> int | None:
        """The broker that leads the id's partition of `__transaction_state`; None if there is none."""
        topic = self._image().topics_by_name.get(TRANSACTION_STATE_TOPIC)
        if topic is None or not topic.partitions:
            return None
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return leader if leader >= 0 else None

    async def open(self, coordinator: int) -> PeerConnection:
        return await self._peers.open(coordinator, f"broker-{self._node_id}-add-partitions-to-txn")

    @property
    def timeout_s(self) -> float:
        return self._timeout_s

    async def close(self) -> None:
        """Open questions get NETWORK_EXCEPTION, and later ones at once."""
        self._is_closed = True
        links, self._links = self._links, {}
        for link in links.values():
            await link.close()

    def collect(self) -> Iterator[Any]:
        """Metrics, for prometheus-client."""
        yield from counters(
            (
                "fenceline_transaction_verification_failures",
                "Partitions that a transaction's coordinator did not confirm",
                self.failures,
            )
        )
        yield self.durations.family(
            "fenceline_transaction_verification_seconds",
            "Time until a transaction's coordinator has answered about partitions",
        )


class _CoordinatorLink(BrokerLink):
    """The questions for one coordinator."""

    def __init__(self, owner: Verification, node_id: int) -> None:
        super().__init__(node_id, owner.open)
        self._owner = owner
        self._waiting: dict[str, _Question] = {}
        """By transactional id: not sent yet."""

    def ask(
        self, transactional_id: str, identity: tuple[int, int], partitions: Collection[TopicIndex], verify_only: bool
    ) -> Awaitable[PartitionCodes]:
        question = self._waiting.get(transactional_id)
        if question is not None and (question.identity, question.verify_only) != (identity, verify_only):
            is_same_producer = question.identity[0] == identity[0]
            if is_same_producer and identity[1] < question.identity[1]:
                fenced = _Question(identity, verify_only)
                answer = fenced.join(partitions)
                fenced.settle_all(ErrorCode.INVALID_PRODUCER_EPOCH)
                return answer
            is_newer = is_same_producer and identity[1] > question.identity[1]
            question.settle_all(ErrorCode.INVALID_PRODUCER_EPOCH if is_newer else ErrorCode.NETWORK_EXCEPTION)
            question = None
        if question is None:
            question = self._waiting[transactional_id] = _Question(identity, verify_only)
        answer = question.join(partitions)
        self.send_soon()
        return answer

    async def send_all(self) -> None:
        batch: dict[str, _Question] = {}
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, {}
                await self._send(batch)
        finally:
            # Cancelled, or our bug: no question waits for ever.
            for question in (*batch.values(), *self._waiting.values()):
                question.settle_all(ErrorCode.NETWORK_EXCEPTION)
            self._waiting = {}
            self.sending = None

    async def _send(self, batch: Mapping[str, _Question]) -> None:
        try:
            response = await self._call(batch)
        except NoSuchVersion:
            # A coordinator that cannot be asked has no part in KIP-890: its producers added the partition themselves.
            for question in batch.values():
                question.settle_all(ErrorCode.NONE if question.verify_only else ErrorCode.INVALID_TXN_STATE)
            return
        except (ConnectionError, MalformedRequest) as error:
            log.debug("coordinator did not answer about a transaction", broker=self.node_id, reason=str(error))
            self.disconnect()
            for question in batch.values():
                question.settle_all(ErrorCode.NETWORK_EXCEPTION)
            return
        if response.error_code:
            log.warning(
                "coordinator refused to verify transactions",
                broker=self.node_id,
                error=ErrorCode(response.error_code).name,
            )
            for question in batch.values():
                question.settle_all(_known(response.error_code))
            return
        results = {result.transactional_id: result for result in response.results_by_transaction}
        for transactional_id, question in batch.items():
            codes = dict(_codes(results.get(transactional_id)))
            question.settle(lambda partition, codes=codes: codes.get(partition, ErrorCode.NETWORK_EXCEPTION))  # type: ignore[misc]

    async def _call(self, batch: Mapping[str, _Question]) -> Any:
        """The response entity. Raises NoSuchVersion, ConnectionError, MalformedRequest."""
        connection = await self.connected()
        version = connection.version_for(ApiKey.ADD_PARTITIONS_TO_TXN, *_VERSIONS)
        fields = {"transactions": [_transaction(*item) for item in batch.items()]}
        return await connection.call(ApiKey.ADD_PARTITIONS_TO_TXN, version, fields, self._owner.timeout_s)


def _transaction(transactional_id: str, question: _Question) -> dict[str, Any]:
    by_topic: dict[str, list[int]] = {}
    for topic, index in question.partitions:
        by_topic.setdefault(topic, []).append(index)
    producer_id, epoch = question.identity
    return {
        "transactional_id": transactional_id,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": question.verify_only,
        "topics": [{"name": topic, "partitions": indexes} for topic, indexes in by_topic.items()],
    }


def _codes(result: Any) -> Iterable[tuple[TopicIndex, ErrorCode]]:
    for topic in result.topic_results if result is not None else ():
        for partition in topic.results_by_partition:
            yield (topic.name, partition.partition_index), _known(partition.partition_error_code)


def _codes_here(partitions: Iterable[TopicIndex], added: PartitionsAdded) -> PartitionCodes:
    return {partition: _known(code) for partition, code in zip(partitions, added.errors, strict=True)}


async def _answer_here(partitions: Iterable[TopicIndex], reply: Reply[PartitionsAdded]) -> PartitionCodes:
    return _codes_here(partitions, await reply.wait())


def _known(code: int | ErrorCode) -> ErrorCode:
    """As a producer knows it (X34)."""
    known = ErrorCode(code)
    return _AS_PRODUCERS_KNOW_IT.get(known, known)
