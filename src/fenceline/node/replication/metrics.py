"""The metrics of replication, computed when they are scraped: lag, under-replicated partitions, open transactions.

Owns only the sums. Runs in the scraper's thread, so it takes snapshots and never changes anything. Names are documented
in `docs/metrics.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fenceline.node.metric_families import counters, gauge_by, gauges
from fenceline.replica.follower import FollowerPhase
from fenceline.replica.progress import UNKNOWN_OFFSET

_LATE_TRANSACTION_MS: Final = 5 * 60_000
"""What a transaction may last beyond its timeout: its coordinator ends it within seconds."""

_LONG_MS: Final = 5
_REST: Final = 10
_PHASES: Final = (
    FollowerPhase.FETCHING,
    FollowerPhase.FLUSHING,
    FollowerPhase.CUTTING,
    FollowerPhase.LOOKING,
    FollowerPhase.WAITING,
)

if TYPE_CHECKING:
    from fenceline.metadata.image import MetadataImage, TopicImage
    from fenceline.node.clock import Clock
    from fenceline.node.replication.open_replicas import OpenReplicas
    from fenceline.node.replication.replica import Replica
    from fenceline.node.replication.replication import Replication
    from fenceline.replica.leader import LeaderState


class ReplicationCollector:
    """Yields a broker's replication metrics to prometheus-client."""

    def __init__(
        self,
        in_service: OpenReplicas,
        replication: Replication,
        clock: Clock,
        *,
        image: Callable[[], MetadataImage],
        min_in_sync: Callable[[str], int],
        max_transaction_ms: int,
    ) -> None:
        """`min_in_sync`: `min.insync.replicas` of a topic; `max_transaction_ms`: `transaction.max.timeout.ms`."""
        self._in_service = in_service
        self._replication = replication
        self._image = image
        self._min_in_sync = min_in_sync
        self._clock = clock
        self._late_ms = max_transaction_ms + _LATE_TRANSACTION_MS
        self._sums: ReplicaSums | None = None
        self._sums_until_ms = 0

    def collect(self) -> Iterator[Any]:
        sums = self._summed()
        yield from gauges(
            ("fenceline_led_partitions", "Partitions that this broker leads", sums.led),
            ("fenceline_under_replicated_partitions", "Led, with a replica out of sync", sums.under_replicated),
            ("fenceline_at_min_isr_partitions", "Led, with exactly min.insync.replicas in sync", sums.at_min_isr),
            ("fenceline_under_min_isr_partitions", "Led, with too few in sync for acks=all", sums.under_min_isr),
            (
                "fenceline_end_offset_hidden_partitions",
                "Led, with an end offset not returned yet (KIP-207)",
                sums.hidden,
            ),
            (
                "fenceline_late_transactions_partitions",
                "Led, with a transaction open longer than transaction.max.timeout.ms and 5 minutes",
                sums.late_transactions,
            ),
            (
                "fenceline_last_stable_offset_lag_records",
                "Largest distance of the last stable offset to the high watermark in a partition led here",
                sums.stable_lag_records,
            ),
            ("fenceline_producer_ids", "Producer ids that the open partitions know", sums.producer_ids),
        )
        yield gauge_by(
            "broker",
            "fenceline_follower_lag_records",
            "Largest lag of a follower in a partition led here",
            {str(broker_id): records for broker_id, records in sorted(sums.lag_records.items())},
        )
        yield gauge_by(
            "broker",
            "fenceline_follower_lag_seconds",
            "Longest time since a follower had caught up",
            {str(broker_id): lag_ms / 1000 for broker_id, lag_ms in sorted(sums.lag_ms.items())},
        )
        replication = self._replication
        phases = Counter(replication.fetchers.phases())
        yield gauge_by(
            "state",
            "fenceline_followed_partitions",
            "Partitions that this broker follows, by state",
            {phase.value: phases[phase] for phase in _PHASES},
        )
        changes = replication.isr_changes
        yield from counters(
            ("fenceline_isr_expands", "Replicas that joined the ISR of a partition led here", changes.expands),
            ("fenceline_isr_shrinks", "Replicas that left the ISR of a partition led here", changes.shrinks),
            ("fenceline_isr_update_failures", "ISR changes that the controller rejected", changes.failures),
            (
                "fenceline_replicated_bytes",
                "Bytes fetched from leaders",
                replication.fetchers.appended_bytes,
            ),
        )

    def _summed(self) -> ReplicaSums:
        """Sums over thousands of partitions hold up the event loop, so they are not computed for each of many scrapes
        in a row: they may be old by ten times what they took."""
        now_ms = self._clock.monotonic_ms()
        if self._sums is not None and now_ms < self._sums_until_ms:
            return self._sums
        late_before_ms = self._clock.now_ms() - self._late_ms
        sums = ReplicaSums()
        node_id = self._replication.node_id
        for topic in self._image().topics_by_id.values():
            sums.add_led(topic, node_id, self._min_in_sync)
        for replica in self._in_service:
            leader = replica.leader
            is_used = replica.log.log_end_offset > 0
            if is_used:
                sums.producer_ids += len(replica.log.producers)
            if leader is not None:
                sums.add(replica, leader, now_ms)
                if is_used:
                    sums.add_transactions(replica, late_before_ms)
        took_ms = self._clock.monotonic_ms() - now_ms
        self._sums, self._sums_until_ms = sums, now_ms + took_ms * _REST if took_ms >= _LONG_MS else 0
        return sums


class ReplicaSums:
    """Over all partitions that this broker leads. Those without records may have no replica object: what the metadata
    tells is counted there."""

    def __init__(self) -> None:
        self.led = 0
        self.under_replicated = 0
        self.at_min_isr = 0
        self.under_min_isr = 0
        self.hidden = 0
        self.late_transactions = 0
        self.stable_lag_records = 0
        """The maximum over partitions."""
        self.producer_ids = 0
        """Also of partitions that it follows."""
        self.lag_records: dict[int, int] = {}
        """By follower: the maximum over partitions."""
        self.lag_ms: dict[int, int] = {}

    def add_led(self, topic: TopicImage, node_id: int, min_in_sync: Callable[[str], int]) -> None:
        """Those of one topic. Most equal ones share an image, which is looked at once."""
        led = [each for each in topic.partitions if each.leader == node_id]
        if not led:
            return
        counts, configured = Counter(map(id, led)), min_in_sync(topic.name)
        for partition in {id(each): each for each in led}.values():
            count = counts[id(partition)]
            least = min(configured, len(partition.replicas))
            in_sync = len(partition.isr)
            self.led += count
            self.under_replicated += count * (in_sync < len(partition.replicas))
            self.at_min_isr += count * (in_sync == least)
            self.under_min_isr += count * (in_sync < least)

    def add(self, replica: Replica, leader: LeaderState, now_ms: int) -> None:
        """An open one."""
        self.hidden += leader.high_watermark < leader.epoch_start_offset
        end_offset = replica.log.log_end_offset
        for broker_id, progress in leader.followers.items():
            has = progress.log_end_offset
            records = end_offset - (replica.log.log_start_offset if has == UNKNOWN_OFFSET else has)
            if broker_id not in self.lag_records:
                self.lag_records[broker_id] = self.lag_ms[broker_id] = 0
            if records > 0:
                behind_ms = now_ms - (progress.last_caught_up_ms or 0)
                self.lag_records[broker_id] = max(records, self.lag_records[broker_id])
                self.lag_ms[broker_id] = max(behind_ms, self.lag_ms[broker_id])

    def add_transactions(self, replica: Replica, late_before_ms: int) -> None:
        """Late transactions are counted and never ended by the leader (transactions.md X46)."""
        log = replica.log
        self.stable_lag_records = max(self.stable_lag_records, log.high_watermark - log.last_stable_offset)
        opened = log.producers.oldest_open
        self.late_transactions += opened is not None and opened.last_timestamp_ms < late_before_ms
