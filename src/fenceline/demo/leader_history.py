"""The leader of each partition over time, from repeated metadata requests.

Owns the join of the observed leaders, which have times, with the epochs of the logs, which have offsets. Sends no
requests itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fenceline.demo.logs import epochs_in
from fenceline.demo.loss import NO_LEADER, LeaderAtLoss
from fenceline.demo.report import LeadershipPeriod
from pyspark_fenceline.common.log_matching import LogEpochs


class LeaderHistory:
    """Observed leaders, recorded in the order of time."""

    def __init__(self) -> None:
        self._elections: dict[int, list[tuple[float, LeaderAtLoss]]] = {}

    def record(self, at_s: float, leaders: Mapping[int, LeaderAtLoss]) -> None:
        """Record the leaders by partition. Older epochs are ignored: they are late or stale responses."""
        for partition, leader in leaders.items():
            elections = self._elections.setdefault(partition, [])
            if leader.node != NO_LEADER and (not elections or elections[-1][1].epoch < leader.epoch):
                elections.append((at_s, leader))

    def periods(
        self, logs: Mapping[int, LogEpochs], unclean: Collection[tuple[int, int]] = ()
    ) -> list[LeadershipPeriod]:
        """Every period, by partition and epoch. `unclean`: partition and epoch of the unclean elections."""
        periods: list[LeadershipPeriod] = []
        for partition, elections in sorted(self._elections.items()):
            ranges = {epoch: (first, end) for epoch, first, end in epochs_in(logs[partition])}
            for number, (from_s, leader) in enumerate(elections):
                to_s = elections[number + 1][0] if number + 1 < len(elections) else None
                start, end = ranges.get(leader.epoch, (0, 0))
                is_unclean = (partition, leader.epoch) in unclean
                periods.append(
                    LeadershipPeriod(partition, leader.epoch, leader.node, from_s, to_s, start, end, is_unclean)
                )
        return periods
