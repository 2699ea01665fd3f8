"""Who led which partition when: what repeated looks at the cluster's metadata saw, as reigns for the page.

Owns the joining of what was seen with the logs' epochs, which know offsets but no times. Looks at nothing itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fenceline.demo.logs import epochs_in
from fenceline.demo.loss import NOBODY, Leader
from fenceline.demo.story import Reign
from pyspark_fenceline.log_matching import LogEpochs


class Leaders:
    """Takes what was seen, in the order of time."""

    def __init__(self) -> None:
        self._elections: dict[int, list[tuple[float, Leader]]] = {}

    def seen(self, at_s: float, leaders: Mapping[int, Leader]) -> None:
        """By partition. Older epochs are answers that came late, or from a node that does not know better."""
        for partition, leader in leaders.items():
            elections = self._elections.setdefault(partition, [])
            if leader.node != NOBODY and (not elections or elections[-1][1].epoch < leader.epoch):
                elections.append((at_s, leader))

    def reigns(self, logs: Mapping[int, LogEpochs], unclean: Collection[tuple[int, int]] = ()) -> list[Reign]:
        """Every reign, by partition and epoch. `unclean`: partition and epoch of those that began so."""
        reigns: list[Reign] = []
        for partition, elections in sorted(self._elections.items()):
            wrote = {epoch: (first, end) for epoch, first, end in epochs_in(logs[partition])}
            for number, (from_s, leader) in enumerate(elections):
                to_s = elections[number + 1][0] if number + 1 < len(elections) else None
                start, end = wrote.get(leader.epoch, (0, 0))
                is_unclean = (partition, leader.epoch) in unclean
                reigns.append(Reign(partition, leader.epoch, leader.node, from_s, to_s, start, end, is_unclean))
        return reigns
