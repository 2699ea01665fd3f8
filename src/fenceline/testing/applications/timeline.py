"""The story that a seed tells: faults, elections, the lives of applications, what the test itself notes.

Owns the lines, in order of virtual time, and how they are printed. Each line is an event of the trace as well, and so
part of the hash.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fenceline.metadata.image import MetadataImage
from fenceline.testing.applications.cluster import SimulatedCluster

_LOOKS_EVERY_S: Final = 0.1
_NO_IMAGE_OFFSET: Final = -2
_INTERNAL: Final = {"__consumer_offsets": "the group coordinator", "__transaction_state": "the transaction coordinator"}


class StoryLine(NamedTuple):
    """`at_s`: virtual seconds since the story began."""

    at_s: float
    text: str


class StoryTimeline:
    """See the module. Watches the metadata of the cluster from `watch` on."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._began_s = self._world.scheduler.now_s
        self.lines: list[StoryLine] = []
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        """By partition: leader and its epoch."""
        self._seen_offset = _NO_IMAGE_OFFSET

    @property
    def now_s(self) -> float:
        return self._world.scheduler.now_s - self._began_s

    def add(self, text: str) -> None:
        self.lines.append(StoryLine(self.now_s, text))
        self._world.trace.add(self._world.scheduler.now_s, "story", text)

    def watch(self) -> None:
        """Report elections from now on."""
        self._look()

    def _look(self) -> None:
        image = self._cluster.image()
        if image is not None and image.offset > self._seen_offset:
            self._compare(image, is_first=self._seen_offset == _NO_IMAGE_OFFSET)
            self._seen_offset = image.offset
        self._world.loop.call_later(_LOOKS_EVERY_S, self._look)

    def _compare(self, image: MetadataImage, *, is_first: bool) -> None:
        for name, topic in sorted(image.topics_by_name.items()):
            for index, partition in enumerate(topic.partitions):
                now = partition.leader, partition.leader_epoch
                before = self._leaders.get((name, index))
                if before == now:
                    continue
                self._leaders[name, index] = now
                if is_first or before is None:
                    continue
                what = _INTERNAL.get(name, f"the leader of {name}-{index}")
                if now[0] < 0:
                    self.add(f"{what} is lost: no replica can lead")
                elif before[0] != now[0]:
                    was = f"n{before[0]}" if before[0] >= 0 else "none"
                    self.add(f"{what} is n{now[0]} in epoch {now[1]}, it was {was}")


def numbered(lines: tuple[StoryLine, ...]) -> list[str]:
    """The lines as text."""
    return [f"{number:3}. {line.at_s:7.3f} s  {line.text}" for number, line in enumerate(lines, 1)]
