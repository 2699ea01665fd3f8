"""Fetch requests for the evidence of a loss: what is answered to whom, and what the node keeps of it in memory."""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ParamSpec, cast

import pytest

from fenceline.errors import ErrorCode
from fenceline.ids import EVIDENCE_RESOURCE
from fenceline.losses.cutting import cut_log
from fenceline.losses.evidence import EvidenceReader
from fenceline.losses.folder import ReceiptFolder
from fenceline.losses.quarantine import BY_AGE, without_evidence
from fenceline.losses.receipt import encode
from fenceline.node.api.fetch.evidence_fetch import PREFIX, EvidenceFetch, is_of_evidence
from fenceline.node.api.fetch.load_budget import LoadBudget
from fenceline.node.api.fetch.load_pace import LoadPace
from fenceline.node.context import RequestContext
from fenceline.node.logs import redirect
from fenceline.node.losses.evidence_reads import EvidenceReads
from fenceline.node.losses.keeper import LossKeeper
from fenceline.node.net.connection import PendingAnswer
from fenceline.node.replication.open_replicas import OpenReplicas
from fenceline.records.batch import iter_headers
from fenceline.testing.sim_disk import SimDisk
from fenceline.wire.apis import ApiKey
from fenceline.wire.fetch import FetchedPartition, FetchPartition, FetchRequest, parse_response
from fenceline.wire.frame import parse_response_header
from tests.losses.helpers import DIRECTORY, a_disk, cut, open_log, write

VERSION = 12
P = ParamSpec("P")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*args, **named))

    return run


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        for _ in itertools.count():
            if condition():
                return
            await asyncio.sleep(0)


class GatedDisk(SimDisk):
    """Reads wait for the gate, and the reading threads are counted."""

    def __init__(self) -> None:
        super().__init__(0)
        self.gate = threading.Event()
        self.gate.set()
        self.reading = 0
        self.most_reading = 0
        self.threads: set[int] = set()

    def open_read(self, path: str) -> int:
        self.threads.add(threading.get_ident())
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        assert self.gate.wait(60)
        self.reading -= 1
        return super().open_read(path)


class Rights:
    """Of a sender that may read these topics."""

    def __init__(self, *topics: str) -> None:
        self.topics = topics
        self.asked: list[str] = []

    def may_read(self, topic: str) -> bool:
        self.asked.append(topic)
        return topic in self.topics

    topic_fault = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Stage:
    """A broker that keeps the evidence of one loss of partition 3 of the topic rain."""

    def __init__(self, disk: SimDisk | None = None, **settings: Any) -> None:
        self.disk = disk or a_disk()
        self.disk.mkdir("/data")
        log = open_log(self.disk)
        write(log, 1, 20)
        (self.receipt,) = cut_log(self.disk, log, cut(5))
        self.folder = ReceiptFolder(self.disk, DIRECTORY)
        self.threads = ThreadPoolExecutor(4)
        log_dir = SimpleNamespace(disk=self.disk, path="/data", strays=list)
        clock = SimpleNamespace(now_ms=lambda: 9_000, monotonic_ms=lambda: 0)
        self.keeper = LossKeeper(
            2, [cast(Any, log_dir)], OpenReplicas(), clock, self.threads, max_age_ms=-1, max_bytes=-1
        )
        self.budget = LoadBudget(settings.pop("limit_bytes", 1 << 20))
        settings = {"is_enabled": True, "max_response_bytes": 1 << 20} | settings
        self.reads = EvidenceReads(self.keeper, self.threads)
        self.fetch = EvidenceFetch(self.reads, self.budget, LoadPace(0, lambda: 0), **settings)

    def ask(self, **fields: Any) -> Peer:
        return Peer(self, **fields)

    async def read(self, **fields: Any) -> FetchedPartition:
        peer = self.ask(**fields)
        found = await peer.answered()
        peer.sent()
        return found

    def stored(self) -> list[bytes]:
        receipt = self.receipt
        return [bytes(content) for _, content in EvidenceReader(self.disk, receipt, receipt.evidence).batches()]


class Peer:
    """The connection of one request."""

    def __init__(
        self,
        stage: Stage,
        *,
        receipt: str | None = None,
        index: int = 3,
        offset: int = 0,
        max_bytes: int = 1 << 20,
        rights: Rights | None = None,
    ) -> None:
        self.frame: bytes | None = None
        self.let_go: Any = None
        self.is_answered = asyncio.Event()
        self.failures: list[str] = []
        context = RequestContext(VERSION, 7, "test", "peer", "host", "PLAINTEXT", rights=cast(Any, rights))
        name = PREFIX + (stage.receipt.id if receipt is None else receipt)
        request = a_request(FetchPartition(name, None, index, offset, max_bytes))
        assert is_of_evidence(VERSION, request)
        self.pending = stage.fetch.handle(context, request)
        self.pending.attach(cast(Any, self))

    def answer_pending(self, pending: PendingAnswer, buffers: Any, on_sent: Any = None) -> None:
        self.frame, self.let_go = b"".join(bytes(each) for each in buffers), on_sent
        self.is_answered.set()

    def fail_pending(self, pending: PendingAnswer, reason: str) -> None:
        self.failures.append(reason)
        self.is_answered.set()

    async def answered(self) -> FetchedPartition:
        await asyncio.wait_for(self.is_answered.wait(), 60)
        assert self.frame is not None, self.failures
        _, position = parse_response_header(ApiKey.FETCH, VERSION, self.frame[4:])
        response = parse_response(VERSION, memoryview(self.frame)[4 + position :])
        assert (response.error_code, response.session_id) == (0, 0)
        (found,) = response.partitions
        return found

    def sent(self) -> None:
        if self.let_go is not None:
            self.let_go()


def a_request(*partitions: FetchPartition, **fields: Any) -> FetchRequest:
    given = {"replica_id": -1, "session_id": 0, "session_epoch": -1} | fields
    return FetchRequest(
        cluster_id=None,
        replica_epoch=-1,
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        partitions=list(partitions),
        forgotten=[],
        rack_id="",
        **given,
    )


def batches_of(found: FetchedPartition) -> list[bytes]:
    content = memoryview(found.records or b"")
    return [bytes(content[each.position : each.position + each.size_bytes]) for each in iter_headers(content)]


@in_loop
async def test_evidence_is_read_to_its_end() -> None:
    stage = Stage()
    receipt = stage.receipt
    found: list[bytes] = []
    offset = receipt.start_offset
    while True:
        answer = await stage.read(offset=offset, max_bytes=300)
        assert (answer.error_code, answer.index, answer.topic) == (0, 3, PREFIX + receipt.id)
        assert (answer.log_start_offset, answer.high_watermark) == (receipt.start_offset, receipt.end_offset_exclusive)
        assert stage.budget.used_bytes == 0
        if not answer.records:
            break
        found += batches_of(answer)
        *_, last = iter_headers(memoryview(answer.records))
        offset = last.next_offset
    assert found == stage.stored()
    assert stage.keeper.fetched_evidence_bytes == sum(map(len, found))


@in_loop
async def test_memory_is_of_the_budget_until_the_answer_is_sent() -> None:
    stage = Stage()
    peer = stage.ask()
    answer = await peer.answered()
    assert stage.budget.used_bytes >= len(answer.records or b"") > 0
    peer.sent()
    assert stage.budget.used_bytes == 0


@pytest.mark.parametrize("settings", [{"max_response_bytes": 300}, {"limit_bytes": 300}])
@in_loop
async def test_limits_of_the_node(settings: dict[str, int]) -> None:
    stage = Stage(**settings)
    answer = await stage.read()
    assert 0 < len(answer.records or b"") <= 300


@in_loop
async def test_a_batch_above_the_limit_is_returned() -> None:
    stage = Stage()
    for limit in (-1, 0, 1):
        assert batches_of(await stage.read(max_bytes=limit)) == stage.stored()[:1]


@pytest.mark.parametrize(
    "receipt",
    [
        "",
        "..",
        "../" * 8,
        "/etc/passwd",
        "0" * 24,
        "0" * 23,
        "x" * 24,
        "../lost+found/0123456789ab",
        "*",
        "a" * 30_000,
        "\0" * 24,
        "\N{ARABIC-INDIC DIGIT ONE}" * 24,
    ],
)
@in_loop
async def test_bad_receipt_ids(receipt: str) -> None:
    stage = Stage()
    answer = await stage.read(receipt=receipt)
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not answer.records


@in_loop
async def test_forms_of_a_known_id_are_not_ids() -> None:
    stage = Stage()
    known = stage.receipt.id
    for receipt in (known.upper(), known[:12], known + "/", known + "\n", "/" + known, known + "/../" + known):
        if receipt != known:
            assert (await stage.read(receipt=receipt)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("odd", ["x/y", "0" * 25, "0" * 24 + "/y", "A" * 24, "0" * 23])
@in_loop
async def test_files_with_other_names_are_never_opened(odd: str) -> None:
    stage = Stage()
    directory, _, name = f"{stage.folder.path}/receipt-{odd}.due".rpartition("/")
    stage.disk.mkdir(directory)
    fd = stage.disk.open_append(f"{directory}/{name}")
    stage.disk.write(fd, encode(replace(stage.receipt, id=odd)))
    stage.disk.close(fd)
    assert stage.folder.find(odd) is not None
    assert (await stage.read(receipt=odd)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("index", [0, 2, 4, -1, 2**31 - 1])
@in_loop
async def test_another_partition(index: int) -> None:
    assert (await Stage().read(index=index)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@in_loop
async def test_evidence_that_was_deleted() -> None:
    stage = Stage()
    first = await stage.read(max_bytes=1)
    assert first.records
    stage.folder.mark_due(without_evidence(stage.receipt, BY_AGE))
    assert (await stage.read(offset=8)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@in_loop
async def test_evidence_that_was_deleted_before_its_receipt_says_so() -> None:
    stage = Stage()
    for path in stage.receipt.evidence:
        stage.disk.unlink(path)
    assert (await stage.read()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert stage.budget.used_bytes == 0


@in_loop
async def test_receipt_that_moves() -> None:
    """Where it was found before is no longer right."""
    stage = Stage()
    assert (await stage.read()).records
    stage.folder.drop(stage.receipt.id)
    log = open_log(stage.disk, "/data/wind-0", partition=0)
    write(log, 1, 1)
    elsewhere = ReceiptFolder(stage.disk, "/data/wind-0")
    elsewhere.mark_due(stage.receipt)
    assert (await stage.read()).records


@pytest.mark.parametrize(
    "evidence", ["/etc/passwd", "/data/../etc/passwd", "/database/x.log.0", "/data/rain-3/../../etc/x.log"]
)
@in_loop
async def test_paths_outside_the_data_directories_are_never_read(evidence: str) -> None:
    stage = Stage()
    directory = evidence.rpartition("/")[0]
    stage.disk.mkdir(directory)
    stage.disk.close(stage.disk.open_append(evidence))
    stage.folder.mark_due(replace(stage.receipt, evidence=(evidence,)))
    assert (await stage.read()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@in_loop
async def test_failing_disk() -> None:
    stage = Stage()
    stage.disk.fail("read", stage.receipt.evidence[0].rpartition("/")[2])
    assert (await stage.read()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert stage.budget.used_bytes == 0
    stage.disk.heal()
    assert (await stage.read()).records


@in_loop
async def test_disk_that_fails_after_the_first_look() -> None:
    stage = Stage()

    async def fail(*_: object) -> bytearray:
        raise OSError(5, "Input/output error")

    stage.reads.load = fail  # type: ignore[method-assign]
    assert (await stage.read()).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert stage.budget.used_bytes == 0


@in_loop
async def test_bug_closes_the_connection() -> None:
    stage = Stage()

    async def fail(*_: object) -> bytearray:
        raise ValueError

    stage.reads.load = fail  # type: ignore[method-assign]
    peer = stage.ask()
    await until(peer.is_answered.is_set)
    assert peer.failures == ["internal error, see the previous log message"]
    assert stage.budget.used_bytes == 0
    assert not stage.reads.turn.locked()


@in_loop
async def test_reads_are_logged_once_in_ten_seconds() -> None:
    stage = Stage()
    lines: list[dict[str, object]] = []
    before = redirect(lambda level, room, event, fields: lines.append({"event": event, **fields}))
    try:
        for offset in (0, stage.receipt.start_offset, stage.receipt.start_offset + 1):
            await stage.read(offset=offset)
    finally:
        redirect(before)
    (line,) = lines
    assert (line["event"], line["receipt"]) == ("evidence is read by a client", stage.receipt.id)
    assert (line["host"], line["principal"]) == ("host", "User:ANONYMOUS")


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ((EVIDENCE_RESOURCE, "rain"), ErrorCode.NONE),
        ((EVIDENCE_RESOURCE,), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        (("rain",), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
        ((), ErrorCode.TOPIC_AUTHORIZATION_FAILED),
    ],
)
@in_loop
async def test_both_rights_are_needed(topics: tuple[str, ...], code: ErrorCode) -> None:
    answer = await Stage().read(rights=Rights(*topics))
    assert answer.error_code == code
    assert bool(answer.records) is (code is ErrorCode.NONE)


@pytest.mark.parametrize("removed", [EVIDENCE_RESOURCE, "rain"])
@in_loop
async def test_right_that_is_removed_while_the_answer_waits(removed: str) -> None:
    stage = Stage()
    lease = await stage.budget.acquire(1 << 20)
    peer = stage.ask(rights=(rights := Rights(EVIDENCE_RESOURCE, "rain")))
    await until(lambda: stage.budget.waiting_count)
    rights.topics = tuple(topic for topic in rights.topics if topic != removed)
    lease.release()
    answer = await peer.answered()
    assert (answer.error_code, answer.records) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    assert stage.budget.used_bytes == 0


@in_loop
async def test_rights_that_are_not_known() -> None:
    rights = Rights()
    rights.topic_fault = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (await Stage().read(rights=rights)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_loop
async def test_nothing_is_looked_up_without_the_first_right() -> None:
    stage = Stage()
    rights = Rights("rain")
    for receipt in (stage.receipt.id, "0" * 24):
        assert (await stage.read(receipt=receipt, rights=rights)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert rights.asked == [EVIDENCE_RESOURCE] * 2


@in_loop
async def test_switched_off() -> None:
    stage = Stage(is_enabled=False)
    for receipt in (stage.receipt.id, "0" * 24):
        assert (await stage.read(receipt=receipt)).error_code == ErrorCode.POLICY_VIOLATION
    assert (await stage.read(rights=Rights())).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@in_loop
async def test_one_read_at_a_time_in_a_thread() -> None:
    disk = GatedDisk()
    stage = Stage(disk)
    disk.most_reading = 0
    disk.threads.clear()
    disk.gate.clear()
    peers = [stage.ask() for _ in range(8)]
    # The event loop runs meanwhile: this coroutine does.
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(peer.is_answered.is_set() for peer in peers)
    disk.gate.set()
    for peer in peers:
        assert (await peer.answered()).records
        peer.sent()
    assert disk.most_reading == 1
    assert threading.get_ident() not in disk.threads


@in_loop
async def test_peer_that_disconnects_does_not_hold_up_others() -> None:
    disk = GatedDisk()
    stage = Stage(disk)
    disk.gate.clear()
    first, second, third = stage.ask(), stage.ask(), stage.ask()
    await until(lambda: disk.reading)
    first.pending.abandon()
    second.pending.abandon()
    disk.gate.set()
    assert (await third.answered()).records
    third.sent()
    assert not second.is_answered.is_set()
    await until(lambda: not stage.budget.used_bytes and not stage.reads.turn.locked())


@in_loop
async def test_peer_that_disconnects_while_it_waits_for_memory() -> None:
    stage = Stage()
    lease = await stage.budget.acquire(1 << 20)
    peer = stage.ask()
    await until(lambda: stage.budget.waiting_count)
    peer.pending.abandon()
    await until(lambda: not stage.reads.turn.locked())
    assert not stage.budget.waiting_count
    lease.release()
    assert (await stage.read()).records


def test_ordinary_requests_are_not_of_evidence() -> None:
    named = FetchPartition(PREFIX + "0" * 24, None, 0, 0, 1)
    assert is_of_evidence(4, a_request(named))
    assert is_of_evidence(12, a_request(named))
    other = named._replace(topic=EVIDENCE_RESOURCE)
    for version, request in (
        (13, a_request(named._replace(topic=None, topic_id=bytes(16)))),
        (12, a_request(named, session_epoch=0)),
        (12, a_request(named, session_epoch=1, session_id=5)),
        (12, a_request(named, replica_id=1)),
        (12, a_request(named, named._replace(index=1))),
        (12, a_request(other)),
        (12, a_request(named._replace(topic=None))),
        (12, a_request()),
    ):
        assert not is_of_evidence(version, request)
