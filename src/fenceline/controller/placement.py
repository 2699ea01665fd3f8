"""Replica placement of new partitions.

Owns the automatic placement (C23): replicas of a partition go to different racks if possible, and to unfenced brokers
before fenced ones; the first replica goes only to an unfenced one. Racks and brokers are used round-robin from a random
start. Brokers whose log directories are all cordoned (`since_4_0.md K25`) or that are shutting down get no new replica.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import BrokerImage
from fenceline.rng import Rng


class _Rack:
    """Brokers of one rack, used round-robin: each partition starts one broker after the previous one."""

    __slots__ = ("_first", "_turn", "fenced", "unfenced")

    def __init__(self) -> None:
        self.unfenced: list[int] = []
        self.fenced: list[int] = []
        self._first = self._turn = 0

    def shuffle(self, rng: Rng) -> None:
        rng.shuffle(self.unfenced)
        rng.shuffle(self.fenced)
        self._first = rng.randrange(max(1, len(self.unfenced)))

    def next_partition(self) -> None:
        self._first += 1
        self._turn = self._first - 1

    def leader(self) -> int:
        self._turn += 1
        return self.unfenced[self._turn % len(self.unfenced)]

    def follower(self, taken: list[int]) -> int | None:
        self._turn += 1
        turn = self._turn
        size = len(self.unfenced)
        unfenced = (self.unfenced[(turn + step) % size] for step in range(size))
        return next((broker for broker in chain(unfenced, self.fenced) if broker not in taken), None)


def place_replicas(
    brokers: Iterable[BrokerImage], partition_count: int, replication_factor: int, rng: Rng
) -> list[tuple[int, ...]]:
    """Replicas of each of `partition_count` new partitions, the preferred leader first.

    Raises PeerError(INVALID_REPLICATION_FACTOR) if there are too few brokers; `message` is the reason alone.
    """
    racks: dict[str | None, _Rack] = {}
    usable = unfenced = 0
    for broker in sorted(brokers, key=lambda one: one.id):
        if not broker.takes_new_replicas or (broker.in_controlled_shutdown and not broker.fenced):
            continue
        usable += 1
        rack = racks.get(broker.rack)
        if rack is None:
            rack = racks[broker.rack] = _Rack()
        if broker.fenced:
            rack.fenced.append(broker.id)
        else:
            unfenced += 1
            rack.unfenced.append(broker.id)
    if replication_factor <= 0:
        raise _refused(f"Invalid replication factor {replication_factor}: the replication factor must be positive.")
    if unfenced == 0:
        raise _refused("All brokers are currently fenced or have all their log directories cordoned.")
    if replication_factor > usable:
        raise _refused(
            f"The target replication factor of {replication_factor} cannot be reached because only {usable} "
            "broker(s) are registered or some brokers have all their log directories cordoned."
        )
    order = list(racks.values())
    rng.shuffle(order)
    for rack in order:
        rack.shuffle(rng)
    leading = [position for position, rack in enumerate(order) if rack.unfenced]
    start = rng.randrange(len(leading))
    return [
        _one(order, leading[(start + index) % len(leading)], replication_factor) for index in range(partition_count)
    ]


def _one(order: list[_Rack], first: int, replication_factor: int) -> tuple[int, ...]:
    for rack in order:
        rack.next_partition()
    replicas = [order[first].leader()]
    position = first
    while len(replicas) < replication_factor:
        position += 1
        broker = order[position % len(order)].follower(replicas)
        if broker is not None:
            replicas.append(broker)
    return tuple(replicas)


def _refused(reason: str) -> PeerError:
    return PeerError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
