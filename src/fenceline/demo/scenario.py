"""The scenario of the demo: when each month of flights is sent, and when the loss happens.

Owns the thread that runs it. The first months are sent normally; one month goes to a leader without a follower
(`loss.py`); the next months go to its successor, at the same offsets; at the end the lost flights are sent again from
the evidence. Only polls the readers; never notifies them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fenceline.demo.cluster import DemoCluster
from fenceline.demo.feed import Feed
from fenceline.demo.ledger import lost_records, receipts
from fenceline.demo.loss import DemoLoss, LeaderAtLoss, run_loss
from fenceline.demo.timeline import Timeline
from fenceline.demo.worker import Worker
from fenceline.errors import FencelineError
from fenceline.losses.receipt import Receipt

_TIMEOUT_S: Final = 240.0
"""For each step of the loss, on a busy machine. One step waits until Spark has read everything."""


class BusyPartition:
    """`loss.PartitionControl` on the cluster and the feed.

    `readers_caught_up`: whether all readers have reached these end offsets (exclusive, by partition).
    """

    def __init__(
        self, cluster: DemoCluster, feed: Feed, readers_caught_up: Callable[[Mapping[int, int]], bool]
    ) -> None:
        self._cluster = cluster
        self._feed = feed
        self._readers_caught_up = readers_caught_up
        self.acknowledged = 0
        """Records that the isolated leader acknowledged."""
        self._epoch = -1
        self.receipts: list[Receipt] = []
        """Receipts of the records that were truncated here, as far as the ledger has them."""

    @property
    def name(self) -> str:
        return f"{self._cluster.topic}-{self._cluster.busy}"

    def ends(self) -> dict[int, int]:
        """End offsets of all partitions of the topic. Raises FencelineError."""
        return self._cluster.ends()

    def leader(self) -> LeaderAtLoss:
        return self._cluster.leader()

    def in_sync(self) -> frozenset[int]:
        return self._cluster.in_sync()

    def isolate_from_brokers(self, node: int) -> str:
        self._epoch = self.leader().epoch
        return self._cluster.isolate_from_brokers(node)

    def isolate(self, node: int) -> None:
        self._cluster.isolate(node)

    def reconnect(self, node: int) -> None:
        self._cluster.reconnect(node)

    def write_acks_one(self) -> int:
        self.acknowledged = self._feed.send_month_acks_one()
        return self.acknowledged

    def write_to_successor(self) -> int:
        sent = 0
        while sent <= self.acknowledged and (month := self._feed.send_month()) is not None:
            sent += month
        return sent

    def readers_caught_up(self) -> bool:
        try:
            ends = self._cluster.ends()
        except FencelineError:
            return False
        # Records above the high watermark cannot be read yet.
        return sum(ends.values()) == self._feed.produced and self._readers_caught_up(ends)

    def has_receipt(self) -> bool:
        """Whether the receipts cover all records that the isolated leader acknowledged."""
        try:
            found = receipts(self._cluster.admin, self._cluster.bootstrap)
        except FencelineError:
            return False
        self.receipts = [one for one in found if one.topic == self._cluster.topic and self._epoch in one.leader_epochs]
        return sum(one.records for one in self.receipts) >= self.acknowledged


class DemoScenario(Worker):
    """`before`: number of months before the loss. `pause_s`: pause between months."""

    def __init__(
        self,
        partition: BusyPartition,
        feed: Feed,
        timeline: Timeline,
        *,
        before: int,
        pause_s: float,
    ) -> None:
        super().__init__("scenario")
        self._partition = partition
        self._feed = feed
        self._timeline = timeline
        self._before = before
        self._pause_s = pause_s
        self.loss: DemoLoss | None = None
        self.ends_after: dict[int, int] = {}
        """End offsets after the loss."""
        self.resent = 0
        self.is_finished = False

    def work(self) -> None:
        for _ in range(self._before):
            self._feed.send_month()
            self.pause(self._pause_s)
        self.loss = run_loss(
            self._partition,
            name=self._partition.name,
            record=self._timeline.add,
            clock=self._timeline.now_s,
            sleep=self.pause,
            timeout_s=_TIMEOUT_S,
        )
        self.ends_after = self._partition.ends()
        while self._feed.send_month() is not None:
            self.pause(self._pause_s)
        self.resent = sum(self._feed.resend(lost_records(receipt)) for receipt in self._partition.receipts)
        self._timeline.add(f"The {self.resent:,} lost records are sent again, from the evidence")
        self.is_finished = True
