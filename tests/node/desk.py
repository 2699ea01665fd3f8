"""One broker without sockets: real replicas on a simulated disk, real handlers; the test acts as the controller and the
other brokers.

`lead`, `follow` and `tell` define the partitions of the topic `rain`; requests go through the real handlers as bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any, Final
from uuid import UUID

from immutables import Map

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode, PeerError
from fenceline.ids import TopicPartition
from fenceline.log.core.disk import FileSlice
from fenceline.log.directories.log_dir import LogDir
from fenceline.log.directories.log_dirs import LogDirs
from fenceline.metadata.changes import difference
from fenceline.metadata.image import (
    BrokerImage,
    Endpoint,
    LeaderRecoveryState,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from fenceline.node.api.handlers.transaction_markers import TransactionMarkers
from fenceline.node.api.produce.transactional import Verdicts
from fenceline.node.api.tables import broker_apis, data_path_handlers
from fenceline.node.client_limits import NodeQuotas
from fenceline.node.context import NodeView, RequestContext
from fenceline.node.data_plane import DataPlane
from fenceline.node.losses.evidence_reads import EvidenceReads
from fenceline.node.metadata.format import format_directory
from fenceline.node.metrics import NodeMetrics
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.net.dialing import dial_plain
from fenceline.node.replication.replica import Replica
from fenceline.node.storage.storage_trouble import StorageTrouble
from fenceline.node.turns import Turns
from fenceline.quorum.control_records import VoterEndpoint
from fenceline.records.build import build_batch
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from fenceline.wire.fetch import (
    FetchedPartition,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    encode_request,
    parse_response,
)
from fenceline.wire.frame import parse_response_header
from tests.node.api.handlers.fakes import DIRECTORY, broker_image, image_of, partition, topic_image
from tests.node.controller_helpers import CLUSTER, StillClock

TOPIC: Final = "rain"
ME: Final = 1
OTHERS: Final = (2, 3)
RECOVERING: Final = LeaderRecoveryState.RECOVERING
_DATA: Final = "/data"
_SETTINGS: Final = {
    "broker.rack": "a",
    "fenceline.fetch.load.min.byte.rate": "0",
    "max.incremental.fetch.session.cache.slots": "10",
}


class _Controller:
    """Receives requests and answers none, until `answer` is set."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer: Callable[[Any], Any] | None = None
        self._out: list[asyncio.Future[Any]] = []

    def now_ms(self) -> int:
        return 1_000

    def lose(self) -> None:
        """The requests so far get no response."""
        out, self._out = self._out, []
        for each in out:
            if not each.done():
                each.set_exception(PeerError(ErrorCode.REQUEST_TIMED_OUT))

    def subscribe(self, listener: Any) -> None:
        """No test describes ACLs."""

    async def submit(self, request: Any) -> Any:
        self.asked.append(request)
        if self.answer is None:
            self._out.append(asyncio.get_running_loop().create_future())
            return await self._out[-1]
        answered = self.answer(request)
        if isinstance(answered, PeerError):
            raise answered
        return answered


class _Lifecycle:
    """Receives reports about directories and silent leaders; `answers` says whether a controller responds."""

    def __init__(self) -> None:
        self.failed: list[UUID] = []
        self.cordoned: list[tuple[UUID, ...]] = []
        self.silent: list[tuple[int, ...]] = []
        self.answers = True

    def report_cordoned(self, directory_ids: tuple[UUID, ...]) -> None:
        self.cordoned.append(directory_ids)

    def report_silent(self, broker_ids: Collection[int]) -> None:
        self.silent.append(tuple(broker_ids))

    async def report_failed(self, directory_id: UUID) -> None:
        self.failed.append(directory_id)
        if not self.answers:
            await asyncio.get_running_loop().create_future()


class FakeVerifier:
    """Coordinators of transactions: confirm every partition, until `answers` has codes for the next questions."""

    answers_at_once = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, int], tuple[tuple[str, int], ...], bool]] = []
        self.answers: list[ErrorCode | dict[tuple[str, int], ErrorCode]] = []
        self.before_answer: Callable[[], object] | None = None

    def ask(
        self,
        transactional_id: str,
        identity: tuple[int, int],
        partitions: Collection[tuple[str, int]],
        *,
        verify_only: bool,
    ) -> Verdicts | Awaitable[Verdicts]:
        self.asked.append((transactional_id, identity, tuple(partitions), verify_only))

        async def later() -> Verdicts:
            await asyncio.sleep(0)
            return self._answer(partitions)

        return self._answer(partitions) if self.answers_at_once else later()

    def _answer(self, partitions: Collection[tuple[str, int]]) -> Verdicts:
        if self.before_answer is not None:
            self.before_answer()
        answer = self.answers.pop(0) if self.answers else ErrorCode.NONE
        return answer if isinstance(answer, dict) else dict.fromkeys(partitions, answer)


class Desk:
    """Broker 1 of three. Create it inside a running loop, `close` it at the end."""

    def __init__(self, partitions: int = 1, *, settings: dict[str, str] | None = None, directories: int = 1) -> None:
        self.loop = asyncio.get_running_loop()
        self.node_id = ME
        self.broker_epoch = 101
        self.config = NodeConfig.load(None, {**_SETTINGS, **(settings or {})}, {})
        self.clock = StillClock()
        self.metrics = NodeMetrics()
        self.disk_threads = ThreadPoolExecutor(2)
        self.controller = _Controller()
        self.quotas = NodeQuotas(self.config, self.clock, self.controller.subscribe)
        self.storage_trouble = StorageTrouble(self.clock)
        self.topic_settings: dict[str, str] = {}
        self.disk = SimDisk(0)
        paths = [_DATA, *(f"{_DATA}{number}" for number in range(2, directories + 1))]
        for path in paths:
            self.disk.mkdir(path)
        endpoint = VoterEndpoint("CONTROLLER", "localhost", 9093)
        format_directory(paths, cluster_id=CLUSTER, node_id=ME, voter_endpoint=endpoint, disk=self.disk, now_ms=0)
        self.brokers: dict[int, BrokerImage] = {
            number: broker_image(
                number,
                epoch=100 + number,
                rack="abc"[number - 1],
                endpoints=(
                    Endpoint("PLAINTEXT", f"host{number}", 9092, 0),
                    Endpoint("OUTSIDE", f"public{number}", 9094, 0),
                ),
            )
            for number in (ME, *OTHERS)
        }
        nobody = partition((1, 2, 3), leader=-1)
        self.image: MetadataImage = image_of(
            [topic_image(TOPIC, *[nobody] * partitions, number=4711)], self.brokers.values()
        )
        self.topic_id = self.image.topics_by_name[TOPIC].id
        opened = [LogDir.open(path, self.disk, node_id=ME) for path in paths]
        for each in opened:
            each.begin()  # as `recover_logs` does
        if directories == 1:
            opened[0].directory_id = DIRECTORY  # according to the image, the directory of all replicas
        self.log_dirs = LogDirs(opened, metadata=opened[0])
        self.lifecycle = _Lifecycle()
        self.deleted: list[tuple[Callable[[], None], int]] = []
        """Pending deletions, with their delays in milliseconds."""
        self.plane = plane = self.new_plane()
        self.replication, self.partitions, self.flushes = plane.replication, plane.partitions, plane.flushes
        self.moves, self.losses, self.directory_failures = plane.moves, plane.losses, plane.directory_failures
        self.checkpoint = plane.checkpoints.write
        # Followers do not fetch: the test appends what they would have fetched.
        plane.replication.fetchers.follow = lambda *_: None  # type: ignore[method-assign]
        plane.replication.fetchers.follow_unused = lambda *_: None  # type: ignore[method-assign]
        self.verifier = FakeVerifier()
        self.ended_in_groups: list[tuple[Any, ...]] = []
        self.fenced: list[TopicPartition] = []
        """Partitions about which an uncleanly elected leader has asked coordinators."""
        self.held_producers: frozenset[int] | None = frozenset()
        self.outcomes: dict[int, bool | None] | None = {}
        self.decided: dict[int, bool] = {}
        """What they answer: the producers whose end markers will come."""
        self.group_code = ErrorCode.NONE
        node = NodeView(ME, CLUSTER, self.config, lambda: self.image)
        self.producing, self.fetching = data_path_handlers(
            node,
            self.partitions,
            self.replication,
            loop=self.loop,
            turns=Turns(self.loop, self.clock.monotonic_ms),
            clock=self.clock,
            rng=Random(1),
            metrics=self.metrics,
            threads=self.disk_threads,
            flush_up_to=self.flushes.up_to,
            rejected=self.storage_trouble.rejected,
            verifier=self.verifier,
            evidence=EvidenceReads(self.plane.losses, self.disk_threads),
        )
        self.markers = TransactionMarkers(
            self.partitions,
            self.clock,
            end_group_transactions=self._end_group_transactions,
            flush_up_to=self.flushes.up_to,
            rejected=self.storage_trouble.rejected,
            timeout_ms=self.config.get_int("request.timeout.ms"),
        )
        missing: Any = None
        controller: Any = self.controller
        apis = broker_apis(
            node,
            controller=controller,
            replicas=self.partitions,
            replication=self.replication,
            log_start_moved=lambda: None,
            coordinator=missing,
            transaction_coordinator=missing,
            producer_ids=missing,
            directories=self.log_dirs,
            moves=self.moves,
            threads=self.disk_threads,
            auto_create=missing,
            create_offsets_topic=missing,
            create_transaction_topic=missing,
            markers=self.markers,
            authorization=None,
            quotas=self.quotas,
            check_certificates=missing,
        )
        self._handlers = {api.key: api.handler for api in apis}

    async def _end_group_transactions(self, *asked: Any) -> ErrorCode:
        self.ended_in_groups.append(asked)
        return self.group_code

    async def _fence(self, where: TopicPartition) -> frozenset[int] | None:
        self.fenced.append(where)
        return self.held_producers

    async def _outcomes(self, where: TopicPartition, open_ones: Any) -> dict[int, bool | None] | None:
        return self.outcomes

    async def _decided(self, where: TopicPartition, open_ones: Any) -> dict[int, bool]:
        return self.decided

    def new_plane(self) -> DataPlane:
        """As after a start, on the same directories and metadata."""
        return DataPlane(
            ME,
            self.config,
            self.log_dirs,
            dial=dial_plain(self.config),
            image=lambda: self.image,
            submit=self.controller.submit,
            next_change=self.loop.create_future,
            broker_epoch=lambda: self.broker_epoch,
            report_failed=self.lifecycle.report_failed,
            report_cordoned=self.lifecycle.report_cordoned,
            report_silent=self.lifecycle.report_silent,
            log_config=lambda _: self.topic_settings,
            fence_transactions=self._fence,
            transaction_outcomes=self._outcomes,
            decided_transactions=self._decided,
            trouble=self.storage_trouble,
            clock=self.clock,
            rng=Random(1),
            executor=self.disk_threads,
            delete_later=lambda delete, delay_ms: self.deleted.append((delete, delay_ms)),
        )

    async def close(self) -> None:
        await self.plane.close()
        await turns()
        self.disk_threads.shutdown()

    # --- metadata from the controller -------------------------------------------------------------------------------

    def tell(self, index: int = 0, **changes: Any) -> None:
        """Change the partition in the image, with the next partition epoch."""
        before = self.image
        topic = before.topics_by_name[TOPIC]
        partitions = list(topic.partitions)
        changes.setdefault("partition_epoch", partitions[index].partition_epoch + 1)
        partitions[index] = partitions[index]._replace(**changes)
        self._apply(before, replace(before, **_with_topic(before, replace(topic, partitions=tuple(partitions)))))

    def lead(self, epoch: int, isr: Iterable[int] = (1,), index: int = 0, **changes: Any) -> Replica:
        self.tell(index, leader=ME, leader_epoch=epoch, isr=tuple(isr), **changes)
        return self.replica(index)

    def follow(
        self, epoch: int, leader: int = 2, isr: Iterable[int] = (2, 1), index: int = 0, **changes: Any
    ) -> Replica:
        self.tell(index, leader=leader, leader_epoch=epoch, isr=tuple(isr), **changes)
        return self.replica(index)

    def tell_broker(self, number: int, **changes: Any) -> None:
        self.brokers[number] = replace(self.brokers[number], **changes)
        self._apply(self.image, replace(self.image, brokers=Map(self.brokers)))

    def add_topic(self, topic: TopicImage) -> None:
        self._apply(self.image, replace(self.image, **_with_topic(self.image, topic)))

    def delete_topic(self) -> None:
        self._apply(self.image, replace(self.image, topics_by_name=Map(), topics_by_id=Map()))

    def _apply(self, before: MetadataImage, after: MetadataImage) -> None:
        self.image = after
        delta = difference(before, after)
        self.replication.on_image(delta)
        self.moves.on_image(delta)
        self.partitions.apply(delta)

    # --- the log ----------------------------------------------------------------------------------------------------

    def replica(self, index: int = 0) -> Replica:
        return self.partitions.hosted(TOPIC, None, index)

    def append(self, records: int = 1, *, index: int = 0, timestamps: Iterable[int] | None = None) -> None:
        """As a producer with acks=1 does."""
        replica = self.replica(index)
        rows = [(at, b"k", b"v", ()) for at in (timestamps or range(records))]
        for row in rows:
            replica.log.append_as_leader(
                memoryview(build_batch([row])), leader_epoch=replica.leader_epoch, now_ms=self.clock.ms
            )
        replica.appended()

    def copied(self, records: int, *, epoch: int, index: int = 0, high_watermark: int = 0) -> None:
        """Append what a follower would fetch."""
        replica = self.replica(index)
        for _ in range(records):
            batch = bytearray(build_batch([(0, b"k", b"v", ())]))
            batch[0:8] = replica.log.log_end_offset.to_bytes(8, "big")
            batch[12:16] = epoch.to_bytes(4, "big")
            replica.log.append_as_follower(memoryview(batch), leader_epoch=epoch, now_ms=self.clock.ms)
        replica.apply_leader_offsets(high_watermark, 0)

    # --- requests ---------------------------------------------------------------------------------------------------

    def context(self, version: int, listener: str = "PLAINTEXT") -> RequestContext:
        return RequestContext(version, 7, "test", "peer", "host", listener)

    def fetch(self, *wanted: FetchPartition, version: int = 17, **fields: Any) -> Answer:
        given: dict[str, Any] = {
            "cluster_id": None,
            "replica_id": -1,
            "replica_epoch": -1,
            "max_wait_ms": 0,
            "min_bytes": 1,
            "max_bytes": 50 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "forgotten": [],
            "rack_id": "",
        }
        listener = fields.pop("listener", "PLAINTEXT")
        request = FetchRequest(partitions=list(wanted), **given | fields)
        body = memoryview(bytes(b"".join(encode_request(version, request))))
        return Answer(version, self.fetching.handle(self.context(version, listener), body))

    def wanted(self, offset: int = 0, *, index: int = 0, version: int = 17, **fields: Any) -> FetchPartition:
        by_id = version >= 13
        topic, topic_id = (None, self.topic_id.bytes) if by_id else (TOPIC, None)
        return FetchPartition(topic, topic_id, index, offset, 1 << 20, **fields)

    def fetched(self, offset: int = 0, *, version: int = 17, index: int = 0, **fields: Any) -> FetchedPartition:
        """The response for one partition, to a consumer (or the reader that `fields` name) that does not wait."""
        own = {name: fields.pop(name) for name in tuple(fields) if name in FetchPartition._fields}
        answer = self.fetch(self.wanted(offset, index=index, version=version, **own), version=version, **fields)
        return answer.response.partitions[0]

    def follower_fetched(self, replica_id: int, offset: int, *, index: int = 0, **fields: Any) -> FetchedPartition:
        """A fetch of broker `replica_id` from here, with the right epochs."""
        fields.setdefault("current_leader_epoch", self.replica(index).leader_epoch)
        fields.setdefault("replica_epoch", 100 + replica_id)
        fields.setdefault("log_start_offset", 0)
        return self.fetched(offset, index=index, replica_id=replica_id, **fields)

    async def ask(self, key: ApiKey, version: int, **fields: Any) -> Any:
        request = read_request(key, version, write_request(key, version, fields))
        answer = self._handlers[key](self.context(version), request)
        if not isinstance(answer, (bytes, dict)):
            answer = await answer
        body = answer if isinstance(answer, bytes) else write_response(key, version, answer)
        return read_response(key, version, body)

    async def list_offset(
        self,
        timestamp: int = -1,
        *,
        version: int = 10,
        replica_id: int = -1,
        epoch: int = -1,
        index: int = 0,
        **more: Any,
    ) -> Any:
        """The response for one partition."""
        asked = {"partition_index": index, "timestamp": timestamp, "current_leader_epoch": epoch}
        topics = [{"name": TOPIC, "partitions": [asked]}]
        answer = await self.ask(ApiKey.LIST_OFFSETS, version, replica_id=replica_id, topics=topics, **more)
        return answer.topics[0].partitions[0]

    async def epoch_end(self, leader_epoch: int, *, current: int = -1, version: int = 4, index: int = 0) -> Any:
        asked = {"partition": index, "current_leader_epoch": current, "leader_epoch": leader_epoch}
        topics = [{"topic": TOPIC, "partitions": [asked]}]
        answer = await self.ask(ApiKey.OFFSET_FOR_LEADER_EPOCH, version, replica_id=-1, topics=topics)
        return answer.topics[0].partitions[0]

    async def delete_records(self, offset: int, *, timeout_ms: int = 60_000, index: int = 0) -> Any:
        topics = [{"name": TOPIC, "partitions": [{"partition_index": index, "offset": offset}]}]
        answer = await self.ask(ApiKey.DELETE_RECORDS, 2, topics=topics, timeout=timeout_ms)
        return answer.topics[0].partitions[0]

    def produced(self, *, version: int = 12, acks: int = 1, index: int = 0, listener: str = "PLAINTEXT") -> Any:
        """The whole response to a produce request of one record."""
        batch = bytes(build_batch([(0, b"k", b"v", ())]))
        data = [{"name": TOPIC, "topic_id": self.topic_id, "partition_data": [{"index": index, "records": batch}]}]
        fields = {"transactional_id": None, "acks": acks, "timeout": 1_000, "topic_data": data}
        outcome = self.producing.handle(
            self.context(version, listener), memoryview(write_request(ApiKey.PRODUCE, version, fields))
        )
        assert isinstance(outcome, list), "it waits"
        return read_response(ApiKey.PRODUCE, version, _body(ApiKey.PRODUCE, version, outcome))


def _with_topic(image: MetadataImage, topic: Any) -> dict[str, Any]:
    return {
        "topics_by_name": image.topics_by_name.set(topic.name, topic),
        "topics_by_id": image.topics_by_id.set(topic.id, topic),
    }


def _body(key: ApiKey, version: int, parts: Any) -> bytes:
    frame = b"".join(bytes(_read(part)) for part in parts)
    _, position = parse_response_header(key, version, frame[4:])
    return frame[4 + position :]


def _read(part: Any) -> Any:
    assert not isinstance(part, FileSlice), "this disk does not use files"
    return part


class Answer:
    """A fetch's response, at once or later. Stands in for the connection."""

    def __init__(self, version: int, outcome: Any) -> None:
        self._version = version
        self._parts: Any = None
        self.is_pending = isinstance(outcome, PendingAnswer)
        self._arrived = asyncio.Event()
        if self.is_pending:
            self._pending = outcome
            outcome.attach(self)
        else:
            self.answer_pending(None, outcome)

    def answer_pending(self, pending: Any, parts: Any, let_go: Callable[[], None] | None = None) -> None:
        self._parts = parts
        self.is_pending = False
        self._arrived.set()
        if let_go is not None:
            let_go()

    def close(self, reason: str) -> None:
        raise AssertionError(reason)

    def abort(self) -> None:
        pass

    def abandon(self) -> None:
        """The reader disconnects."""
        self._pending.abandon()

    @property
    def response(self) -> FetchResponse:
        assert not self.is_pending, "it waits"
        return parse_response(self._version, memoryview(_body(ApiKey.FETCH, self._version, self._parts)))

    async def later(self) -> FetchResponse:
        await self._arrived.wait()
        return self.response


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def run_story(story: Callable[..., Coroutine[Any, Any, None]], **given: Any) -> None:
    """Run `story(desk)`."""

    async def whole() -> None:
        desk = Desk(**given)
        try:
            await story(desk)
        finally:
            await desk.close()

    asyncio.run(asyncio.wait_for(whole(), 30))


def where(index: int = 0) -> TopicPartition:
    return TopicPartition(TOPIC, index)


def state(image: MetadataImage, index: int = 0) -> PartitionImage:
    return image.topics_by_name[TOPIC].partitions[index]
