"""Delivers loss receipts to the ledger topic `__fenceline_losses`, in the background, with retries.

Owns the topic's creation and the produce requests; acks=all, keyed by receipt id, so that duplicates count once. The
topic's leader is contacted like any other broker, even if it is this one. Never delays the operation that lost records:
receipts are durable on this node before they come here, and are found there again after a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.requests import CreateTopics, TopicToCreate
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import LOSSES_TOPIC, NO_LEADER
from fenceline.losses.receipt import Receipt, encode
from fenceline.node.logs import Logger
from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.losses.woken_task import WokenTask
from fenceline.node.net.peer_connection import NoSuchVersion
from fenceline.records.build import build_batch
from fenceline.wire.apis import ApiKey
from fenceline.wire.errors import MalformedRequest
from fenceline.wire.produce import PartitionRecords, ProduceRequest, encode_request, parse_response

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.replication.peers import Peers

log = Logger("losses")

PARTITION: Final = 0
_CLIENT_ID: Final = "__admin_client"
"""Kafka's client id of clients that may write to internal topics."""
_FIRST_VERSION: Final = 3
_LAST_VERSION_WITH_NAMES: Final = 12
_MAX_BATCH: Final = 200
_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0
_LOG_INTERVAL_S: Final = 60.0


class LossDelivery:
    """The delivery of one broker. All methods run on the event loop unless they say otherwise."""

    def __init__(
        self,
        keeper: LossKeeper,
        image: Callable[[], MetadataImage],
        peers: Peers,
        submit: Callable[[CreateTopics], Awaitable[Any]],
        next_change: Callable[[], asyncio.Future[None]],
        executor: Executor,
        *,
        replication_factor: int,
    ) -> None:
        """`submit` sends a request to the controller; `next_change` completes with the next change of its metadata.
        `replication_factor`: of the ledger topic, if possible."""
        self._keeper = keeper
        self._image = image
        self._peers = peers
        self._submit = submit
        self._next_change = next_change
        self._executor = executor
        self._replication_factor = replication_factor
        self._task = WokenTask(self._run)

    def start(self) -> None:
        self._task.start(self._keeper.due)

    async def stop(self) -> None:
        await self._task.stop()

    async def _run(self) -> None:
        pause_s, quiet_until_s = _FIRST_PAUSE_S, 0.0
        while True:
            receipts = self._keeper.next_due(_MAX_BATCH)
            if not receipts:
                self._task.wakeup.clear()
                if not self._keeper.undelivered:
                    await self._task.wakeup.wait()
                continue
            try:
                await self._deliver(receipts)
                pause_s = _FIRST_PAUSE_S
                continue
            except (PeerError, ConnectionError, NoSuchVersion, MalformedRequest, TimeoutError) as error:
                now_s = asyncio.get_running_loop().time()
                if now_s >= quiet_until_s:
                    quiet_until_s = now_s + _LOG_INTERVAL_S
                    log.warning(
                        "loss receipts not delivered yet",
                        undelivered=self._keeper.undelivered,
                        reason=str(error) or type(error).__name__,
                        advice="They are kept on this node and retried until they are delivered.",
                    )
            except Exception:
                # Our bug; it must not stop the delivery of receipts.
                log.exception("delivery of loss receipts failed")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    async def _deliver(self, receipts: list[Receipt]) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            leader = await self._leader()
            connection = await self._peers.open(leader, _CLIENT_ID)
            try:
                version = connection.version_for(ApiKey.PRODUCE, _FIRST_VERSION, _LAST_VERSION_WITH_NAMES)
                rows = [(receipt.time_ms, receipt.id.encode(), encode(receipt), ()) for receipt in receipts]
                records = memoryview(build_batch(rows))
                request = ProduceRequest(
                    None, -1, int(_TIMEOUT_S * 1000), [PartitionRecords(LOSSES_TOPIC, None, PARTITION, records)]
                )
                body = await connection.post(ApiKey.PRODUCE, version, encode_request(version, request))
                result = parse_response(version, body).results[0]
            finally:
                connection.close()
        if result.error_code:
            raise PeerError(ErrorCode(result.error_code), result.error_message or "the ledger topic rejected them")
        await asyncio.get_running_loop().run_in_executor(self._executor, self._keeper.delivered, receipts)

    async def _leader(self) -> int:
        """The leader of the ledger topic, which is created if missing. Raises PeerError."""
        if LOSSES_TOPIC not in self._image().topics_by_name:
            await self._create()
        while True:
            changed = self._next_change()
            found = self._image().topics_by_name.get(LOSSES_TOPIC)
            if found is not None and found.partitions[PARTITION].leader != NO_LEADER:
                return found.partitions[PARTITION].leader
            await asyncio.wait([changed])

    async def _create(self) -> None:
        """With fewer replicas if the controller cannot place the configured number. Raises PeerError."""
        active = sum(each.is_active for each in self._image().brokers.values())
        replicas = max(1, min(self._replication_factor, active))
        while True:
            topic = TopicToCreate(
                LOSSES_TOPIC,
                num_partitions=1,
                replication_factor=replicas,
                configs=(
                    ("cleanup.policy", "compact"),
                    ("min.insync.replicas", str(max(1, min(2, replicas - 1)))),
                    ("unclean.leader.election.enable", "false"),
                ),
            )
            (created,) = (await self._submit(CreateTopics((topic,)))).topics
            outcome = created.outcome
            if not outcome.failed or outcome.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return
            if outcome.code is not ErrorCode.INVALID_REPLICATION_FACTOR or replicas == 1:
                raise PeerError(outcome.code, outcome.message or "the ledger topic could not be created")
            replicas -= 1
