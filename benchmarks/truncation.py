"""A polling consumer and an unclean election: from the new leader's metadata to the report of the truncation.

Three nodes. The leader is the only replica in the ISR, accepts records with acks=1, which the consumer reads, and is
killed; a replica that lacks them is elected. The clock starts when the consumer's metadata has that leader, and stops
when `poll` raises LogTruncationError. The same run measures the round trip of the epoch request to that leader, which
has just started, and of a later Fetch to it, over an open and over a new connection: the consumer has no connection to
a broker that was down. The requests about the position are counted; there must be one.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.clusters import PATIENCE_S, SHORT_SESSIONS, ClusterUnderTest
from benchmarks.harness import SIDES, Figures, Side, scratch
from benchmarks.replication_probe import create_replicated, wait_left_in_sync
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.core.cluster import Purpose
from fenceline.client.core.connection import open_connection
from fenceline.client.core.errors import LogTruncationError
from fenceline.client.core.fetch_wire import PartitionFetch, fetch_once
from fenceline.client.producer.producer import Producer
from fenceline.ids import TopicPartition
from fenceline.wire.apis import ApiKey

KEPT_RECORDS: Final = 1_000
CUT_RECORDS: Final = 10_000
NEW_RECORDS: Final = 1_000
RECORD_BYTES: Final = 100
FETCHES: Final = 50
ALONE: Final = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
EVIDENCE_MS: Final = {"told": 0, "told with loss receipts": 500}
"""`truncation.evidence.timeout.ms`: unless it is 0, the ledger is read before the error is raised."""
ABOUT_POSITIONS: Final = (ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH)


def run(figures: Figures, repeats: int) -> None:
    with scratch() as root:
        for side in SIDES:
            _measure(figures, root, side, repeats)
    figures.note(
        "From the moment when the consumer's metadata has the new leader until `poll` raises LogTruncationError;"
        " Kafka has no loss receipts. A round trip is one Fetch to that leader by the same consumer."
    )


def _measure(figures: Figures, root: Path, side: Side, repeats: int) -> None:
    with ClusterUnderTest(side, root / f"truncation-{side}", settings=SHORT_SESSIONS) as cluster:
        cluster.start_voters()
        for number in range(repeats):
            for what, evidence_ms in EVIDENCE_MS.items():
                if side != "kafka" or not evidence_ms:
                    _cut(figures, cluster, f"cut-{number}-{evidence_ms}", what, evidence_ms)


def _cut(figures: Figures, cluster: ClusterUnderTest, topic: str, what: str, evidence_ms: int) -> None:
    cluster.wait_complete()
    cluster.wait_caught_up()
    controller, tp = cluster.leader(), TopicPartition(topic, 0)
    ahead, behind = (node for node in cluster.nodes if node is not controller)
    both = (ahead.node_id, behind.node_id)
    create_replicated(controller.bootstrap, topic, first=ahead.node_id, brokers=both, config=ALONE)
    _write(controller.bootstrap, tp, KEPT_RECORDS, "all")
    behind.kill()
    wait_left_in_sync(controller.bootstrap, topic, 1)
    _write(controller.bootstrap, tp, CUT_RECORDS, "1")
    settings = {"auto.offset.reset": "none", "truncation.evidence.timeout.ms": evidence_ms}
    with Consumer(controller.bootstrap, **settings) as consumer:
        consumer.assign([tp])
        consumer.seek(tp, 0)
        read = 0
        while read < KEPT_RECORDS + CUT_RECORDS:
            read += len(consumer.poll(1_000))
        watch = _Watch(consumer, tp, behind.node_id)
        ahead.kill()
        behind.start()
        error, raised_s = _await_truncation(consumer)
        if (error.truncated_from, error.divergent_offset) != (read, KEPT_RECORDS):
            raise ValueError(f"{read} records were read and {KEPT_RECORDS} are left, but the error is: {error}")
        asked = watch.asked()
        if len(asked) != 1:
            raise ValueError(f"one request was expected: {asked}")
        _write(controller.bootstrap, tp, NEW_RECORDS, "1")
        round_trip_s, connecting_s = consumer._loop_thread.run(_round_trips(consumer, tp, behind.node_id))
    side = cluster.side
    figures.add(f"from the new leader's metadata until it is {what}", side, (raised_s - watch.learned_s) * 1000, "ms")
    figures.add("of that, the round trip of the question", side, watch.question_s * 1000, "ms")
    figures.add("questions to the new leader until then", side, len(asked), "requests")
    figures.add("one Fetch to it, connecting first", side, connecting_s * 1000, "ms")
    figures.add("one Fetch to it", side, round_trip_s * 1000, "ms")
    ahead.start()


def _write(bootstrap: str, tp: TopicPartition, count: int, acks: str) -> None:
    with Producer(bootstrap, **{"acks": acks, "enable.idempotence": False}) as producer:
        sent = [producer.send(tp.topic, bytes(RECORD_BYTES), partition=tp.partition) for _ in range(count)]
        for delivery in sent:
            delivery.result(PATIENCE_S)


def _await_truncation(consumer: Consumer) -> tuple[LogTruncationError, float]:
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        try:
            consumer.poll(1_000)
        except LogTruncationError as error:
            return error, time.perf_counter()
    raise TimeoutError("no truncation was reported")


class _Watch:
    """The time at which a consumer's metadata first has `leader`, and its requests about the position since then."""

    def __init__(self, consumer: Consumer, tp: TopicPartition, leader: int) -> None:
        self._consumer = consumer
        self._tp = tp
        self._leader = leader
        self._asked: list[tuple[ApiKey, int | None]] = []
        self.learned_s = 0.0
        self.question_s = 0.0
        """Round trip of the epoch request."""
        consumer._on_loop(self._install)

    def _install(self) -> None:
        cluster = self._consumer._async.cluster
        link, call = cluster.link, cluster.call

        def watched_link(node_id: int, purpose: Purpose = Purpose.CONTROL) -> Any:
            if purpose is Purpose.FETCH:
                self._record(ApiKey.FETCH, node_id)
            return link(node_id, purpose)

        async def watched_call(node_id: int | None, api_key: ApiKey, *given: Any, **named: Any) -> Any:
            self._record(api_key, node_id)
            started = time.perf_counter()
            answer = await call(node_id, api_key, *given, **named)
            if api_key is ApiKey.OFFSET_FOR_LEADER_EPOCH:
                self.question_s = time.perf_counter() - started
            return answer

        cluster.link = watched_link  # type: ignore[method-assign]
        cluster.call = watched_call  # type: ignore[method-assign]
        for name in ("apply", "accept_hint", "note_epoch"):
            setattr(cluster.metadata, name, self._watched(getattr(cluster.metadata, name)))

    def _record(self, api_key: ApiKey, node_id: int | None) -> None:
        # After the truncation is known, Fetch requests read receipts from another topic.
        state = self._consumer._async.positions.get(self._tp)
        if api_key in ABOUT_POSITIONS and self.learned_s and (state is None or not state.is_lost):
            self._asked.append((api_key, node_id))

    def _watched(self, change: Any) -> Any:
        def watched(*given: Any, **named: Any) -> Any:
            answer = change(*given, **named)
            if not self.learned_s and self._consumer._async.cluster.metadata.leader(self._tp).leader == self._leader:
                self.learned_s = time.perf_counter()
            return answer

        return watched

    def asked(self) -> list[tuple[ApiKey, int | None]]:
        return list(self._asked)


async def _round_trips(consumer: Consumer, tp: TopicPartition, node_id: int) -> tuple[float, float]:
    """Median seconds of one Fetch with records, over an open connection and over a new one."""
    cluster = consumer._async.cluster
    link = cluster.link(node_id, Purpose.FETCH)
    wanted = [PartitionFetch(tp, KEPT_RECORDS, -1, cluster.metadata.leader(tp).epoch, 1)]
    opened: list[float] = []
    connected: list[float] = []
    connection = await link.connection()
    for _ in range(FETCHES):
        started = time.perf_counter()
        await fetch_once(cluster, connection, wanted, consumer.config)
        opened.append(time.perf_counter() - started)
        started = time.perf_counter()
        made = await open_connection(link.host, link.port, consumer.config, None)
        await fetch_once(cluster, made, wanted, consumer.config)
        connected.append(time.perf_counter() - started)
        made.close()
    return statistics.median(opened), statistics.median(connected)
