"""Chaos for a local cluster of real processes: one thread injects faults, others change topics and record the
responses.

`Ledger` holds the possible states of every topic after the responses to its client. A change that was rejected for good
or acknowledged leaves one possible state; one without a response leaves two, and its topic is not changed again: a
request in the socket of a frozen node may be applied much later. This module asserts nothing; `test_chaos.py` does.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient as LibrdkafkaAdmin
from confluent_kafka.admin import NewTopic as LibrdkafkaTopic

from fenceline.client.admin.admin import Admin
from fenceline.client.admin.async_admin import NewTopic
from fenceline.errors import ErrorCode, FencelineError, PeerError
from fenceline.local_cluster.cluster import LocalCluster
from fenceline.testing.waiting import eventually

KEY: Final = "retention.ms"
ANSWER_WAIT_MS: Final = 4000
KINDS: Final = ("kill", "kill", "pause", "isolate", "isolate", "inbound", "outbound", "from", "restart")
"""Of trouble; what is there twice comes twice as often."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The properties of a topic that are changed."""

    partitions: int
    retention_ms: int | None = None


Outcome = bool | None
"""Done, certainly not done, or unknown."""


class OwnClient:
    """Changes topics with Fenceline's client."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = Admin({"bootstrap.servers": bootstrap, "default.api.timeout.ms": ANSWER_WAIT_MS})

    def create(self, name: str, partitions: int) -> Outcome:
        return self._outcome(
            lambda: self._admin.create_topics([NewTopic(name, partitions, 1)]), ErrorCode.TOPIC_ALREADY_EXISTS
        )

    def delete(self, name: str) -> Outcome:
        return self._outcome(lambda: self._admin.delete_topics([name]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def retain(self, name: str, retention_ms: int) -> Outcome:
        change = {("topic", name): {KEY: str(retention_ms)}}
        return self._outcome(lambda: self._admin.alter_configs(change), None)

    def grow(self, name: str, partitions: int) -> Outcome:
        return self._outcome(lambda: self._admin.create_partitions({name: partitions}), ErrorCode.INVALID_PARTITIONS)

    def close(self) -> None:
        self._admin.close()

    @staticmethod
    def _outcome(change: Callable[[], object], done_before: ErrorCode | None) -> Outcome:
        """`done_before` is the error if an earlier attempt was applied: the client retries after a lost connection."""
        try:
            change()
        except PeerError as error:
            return True if error.code is done_before else None
        except FencelineError:
            return None
        return True


class Librdkafka:
    """Changes topics with confluent-kafka. It sends a change once, so an error is about this request."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = LibrdkafkaAdmin({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 10_000})
        self._waits = {"request_timeout": ANSWER_WAIT_MS / 1000, "operation_timeout": ANSWER_WAIT_MS / 1000}

    def create(self, name: str, partitions: int) -> Outcome:
        made = self._admin.create_topics([LibrdkafkaTopic(name, partitions, 1)], **self._waits)
        return self._outcome(made[name], KafkaError.TOPIC_ALREADY_EXISTS)

    def delete(self, name: str) -> Outcome:
        return self._outcome(self._admin.delete_topics([name], **self._waits)[name], KafkaError.UNKNOWN_TOPIC_OR_PART)

    def close(self) -> None:
        """Its threads end when it is collected."""

    @staticmethod
    def _outcome(future: Future[object], done_before: int) -> Outcome:
        try:
            future.result()
        except KafkaException as error:
            return True if error.args[0].code() == done_before else None
        return True


@dataclass(slots=True)
class Ledger:
    """The possible states of each topic; None: there is no such topic."""

    may_be: dict[str, set[Topic | None]] = field(default_factory=dict)
    changes: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0

    def note(self, name: str, what: str, after: Topic | None, outcome: Outcome, took_s: float) -> bool:
        """Record the outcome of a change; returns whether the topic may be changed again."""
        before = self.may_be.get(name, {None})
        self.may_be[name] = {True: {after}, False: before, None: before | {after}}[outcome]
        self.changes[f"{what} {'unknown' if outcome is None else 'done'}"] += 1
        if outcome:
            self.longest_s = max(self.longest_s, took_s)
        return outcome is not None


class Changes(threading.Thread):
    """One client that creates, configures, extends and deletes topics of its own until it is stopped."""

    def __init__(self, client: OwnClient | Librdkafka, prefix: str, rng: random.Random) -> None:
        super().__init__(name=prefix)
        self.ledger = Ledger()
        self.failure: BaseException | None = None
        self._client, self._prefix, self._rng = client, prefix, rng
        self._is_over = threading.Event()

    def end(self) -> Ledger:
        self._is_over.set()
        self.join()
        self._client.close()
        if self.failure is not None:
            raise self.failure
        return self.ledger

    def run(self) -> None:
        try:
            number = 0
            while not self._is_over.is_set():
                self._life_of(f"{self._prefix}-{number}")
                number += 1
        except BaseException as error:
            self.failure = error

    def _life_of(self, name: str) -> None:
        topic = Topic(self._rng.randint(1, 3))
        if not self._do(name, "create", topic, lambda: self._client.create(name, topic.partitions)):
            return
        if isinstance(self._client, OwnClient):
            client = self._client
            if self._rng.random() < 0.5:
                topic = set_topic = Topic(topic.partitions, self._rng.randint(10**6, 10**9))
                retention_ms = set_topic.retention_ms or 0
                if not self._do(name, "set", topic, lambda: client.retain(name, retention_ms)):
                    return
            if self._rng.random() < 0.3:
                topic = Topic(topic.partitions + 1, topic.retention_ms)
                count = topic.partitions
                if not self._do(name, "grow", topic, lambda: client.grow(name, count)):
                    return
        # Few topics are kept, so that the size of the cluster does not depend on the length of the run.
        if self._rng.random() < 0.9:
            self._do(name, "delete", None, lambda: self._client.delete(name))
        self._is_over.wait(self._rng.random() * 0.02)

    def _do(self, name: str, what: str, after: Topic | None, change: Callable[[], Outcome]) -> bool:
        begin = time.monotonic()
        outcome = change()
        return self.ledger.note(name, what, after, outcome, time.monotonic() - begin)


class Trouble:
    """Injects faults into random nodes, mostly one at a time, sometimes into a majority, and repairs each."""

    def __init__(
        self, cluster: LocalCluster, rng: random.Random, *, longest_s: float, kinds: Sequence[str] = KINDS
    ) -> None:
        self._cluster, self._rng, self._longest_s, self._kinds = cluster, rng, longest_s, kinds
        self._nodes = [node.node_id for node in cluster.layout.nodes]
        self._busy: dict[int, Future[None]] = {}
        self._pool = ThreadPoolExecutor(len(self._nodes))
        self.done: Counter[str] = Counter()
        self.story: list[str] = []
        self._begin = time.monotonic()

    def run(self, *, until: Callable[[], bool]) -> None:
        """Inject faults until `until` returns True; afterwards repair all and wait until all nodes are registered."""
        while not until():
            at_once = 2 if self._rng.random() < 0.2 else 1
            free = [node for node in self._nodes if node not in self._busy]
            if len(self._busy) < at_once and free:
                self._break(self._rng.choice(free))
            self._wait()
        while self._busy:
            self._wait()
        self._pool.shutdown()
        self.mend_all()
        self._cluster.wait_until_ready()

    def mend_all(self) -> None:
        """Repair what is still broken after all faults; nothing here."""

    def _wait(self) -> None:
        time.sleep(0.05 + self._rng.random() * 0.3)
        for node, task in list(self._busy.items()):
            if task.done():
                task.result()
                del self._busy[node]

    def _break(self, node: int) -> None:
        kind = self._rng.choice(self._kinds)
        lasts_s = self._rng.random() ** 2 * self._longest_s
        peer = self._rng.choice([each for each in self._nodes if each != node])
        self.done[kind] += 1
        self.story.append(f"{time.monotonic() - self._begin:.1f} {kind} {node} for {lasts_s:.1f} s")
        self._busy[node] = self._pool.submit(self._break_and_mend, kind, node, peer, lasts_s)

    def _break_and_mend(self, kind: str, node: int, peer: int, lasts_s: float) -> None:
        cluster = self._cluster
        match kind:
            case "kill":
                cluster.kill(node)
                time.sleep(lasts_s)
                cluster.restart(node)
            case "restart":
                cluster.restart(node)
            case "pause":
                cluster.pause(node)
                time.sleep(lasts_s)
                cluster.resume(node)
            case _:
                cluster.isolate(
                    node,
                    peers=[peer] if kind == "from" else [],
                    inbound=kind != "outbound",
                    outbound=kind != "inbound",
                )
                time.sleep(lasts_s)
                cluster.heal(node)
        self.story.append(f"{time.monotonic() - self._begin:.1f} {kind} {node} over")


def end_of_agreement(cluster: LocalCluster) -> int:
    """The last committed offset, once every voter has it. Raises TimeoutError."""

    def everywhere() -> int | None:
        with Admin({"bootstrap.servers": cluster.bootstrap}) as admin:
            found = admin.describe_quorum()
        # A follower may lack records that a majority has committed and a client has seen.
        ends = [voter.log_end_offset for voter in found.voters]
        return found.high_watermark if ends and min(ends) >= found.high_watermark > 0 else None

    return eventually(everywhere, "every voter has what is committed") - 1
