"""The flights and the loss as one play: what is sent when, and what each of its steps waits for.

Owns the thread that plays it. Some months are sent as ever; one goes to a leader that nobody follows any more
(`loss.py`); the following ones take its place under the next leader; at last the lost flights are sent again, out of
the evidence. Whoever reads is asked, never told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fenceline.demo.cluster import Cluster
from fenceline.demo.feed import Feed
from fenceline.demo.ledger import lost_records, receipts
from fenceline.demo.loss import Leader, Loss, lose
from fenceline.demo.narration import Narration
from fenceline.demo.worker import Worker
from fenceline.errors import FencelineError
from fenceline.losses.receipt import Receipt

_PATIENCE_S: Final = 240.0
"""For each step of the loss, on a machine that has other work. One waits for all that Spark has not read yet."""


class BusyPartition:
    """`loss.Stage`, with the cluster and the feed behind it. `have_read`: whether everybody who reads stands at these
    ends (exclusive, by partition).
    """

    def __init__(self, cluster: Cluster, feed: Feed, have_read: Callable[[Mapping[int, int]], bool]) -> None:
        self._cluster = cluster
        self._feed = feed
        self._have_read = have_read
        self.taken = 0
        """Records that the lonely leader acknowledged."""
        self._epoch = -1
        self.receipts: list[Receipt] = []
        """Of what was cut off here, as far as the cluster tells it."""

    @property
    def name(self) -> str:
        return f"{self._cluster.topic}-{self._cluster.busy}"

    def ends(self) -> dict[int, int]:
        """Of all logs of the topic. Raises FencelineError."""
        return self._cluster.ends()

    def leader(self) -> Leader:
        return self._cluster.leader()

    def in_sync(self) -> frozenset[int]:
        return self._cluster.in_sync()

    def cut_off(self, node: int) -> str:
        self._epoch = self.leader().epoch
        return self._cluster.cut_off(node)

    def take_away(self, node: int) -> None:
        self._cluster.take_away(node)

    def bring_back(self, node: int) -> None:
        self._cluster.bring_back(node)

    def write(self) -> int:
        self.taken = self._feed.month_to_one()
        return self.taken

    def go_on(self) -> int:
        sent = 0
        while sent <= self.taken and (month := self._feed.month()) is not None:
            sent += month
        return sent

    def have_read(self) -> bool:
        try:
            ends = self._cluster.ends()
        except FencelineError:
            return False
        # What is above the high watermark is not to be read yet.
        return sum(ends.values()) == self._feed.produced and self._have_read(ends)

    def has_receipt(self) -> bool:
        """All that was taken is told of."""
        try:
            found = receipts(self._cluster.admin, self._cluster.bootstrap)
        except FencelineError:
            return False
        self.receipts = [one for one in found if one.topic == self._cluster.topic and self._epoch in one.leader_epochs]
        return sum(one.records for one in self.receipts) >= self.taken


class Play(Worker):
    """`before`: months until the loss; `pause_s`: between months."""

    def __init__(
        self,
        stage: BusyPartition,
        feed: Feed,
        narration: Narration,
        *,
        before: int,
        pause_s: float,
    ) -> None:
        super().__init__("play")
        self._stage = stage
        self._feed = feed
        self._narration = narration
        self._before = before
        self._pause_s = pause_s
        self.loss: Loss | None = None
        self.ends_after: dict[int, int] = {}
        """Of the logs, when the loss was over."""
        self.sent_again = 0
        self.is_over = False

    def work(self) -> None:
        for _ in range(self._before):
            self._feed.month()
            self.pause(self._pause_s)
        self.loss = lose(
            self._stage,
            name=self._stage.name,
            tell=self._narration.tell,
            clock=self._narration.now_s,
            sleep=self.pause,
            patience_s=_PATIENCE_S,
        )
        self.ends_after = self._stage.ends()
        while self._feed.month() is not None:
            self.pause(self._pause_s)
        self.sent_again = sum(self._feed.again(lost_records(receipt)) for receipt in self._stage.receipts)
        self._narration.tell(f"the {self.sent_again:,} lost records are sent again, out of the kept evidence")
        self.is_over = True
