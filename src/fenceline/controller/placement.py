"""Replica placement of new partitions.

Owns the automatic placement (C23): replicas of a partition go to different racks if possible, and to unfenced brokers
before fenced ones; the first replica goes only to an unfenced one. Racks and brokers are used round-robin from a random
start. Brokers whose log directories are all cordoned (`since_4_0.md K25`) or that are shutting down get no new replica.

A request costs what it places, not what the cluster has: `PlaceableBrokers` is made once for a set of brokers, and of a
random order only the part is drawn that is used. In small clusters the whole order is drawn at once, which is as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat
from math import lcm
from typing import Final, Generic, TypeVar

from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import BrokerImage
from fenceline.rng import Rng

_DRAWN_AT_ONCE: Final = 64
"""Brokers; in larger clusters orders are drawn as far as they are used."""

_T = TypeVar("_T")


class _Rack:
    """Brokers of one rack, by id."""

    __slots__ = ("fenced", "unfenced")

    def __init__(self) -> None:
        self.unfenced: list[int] = []
        self.fenced: list[int] = []


class PlaceableBrokers:
    """The brokers of a cluster that get new replicas, by rack. Immutable."""

    __slots__ = ("all_racks_lead", "racks", "unfenced", "usable")

    def __init__(self, brokers: Iterable[BrokerImage]) -> None:
        racks: dict[str | None, _Rack] = {}
        self.usable = self.unfenced = 0
        for broker in sorted(brokers, key=lambda one: one.id):
            if not broker.takes_new_replicas or (broker.in_controlled_shutdown and not broker.fenced):
                continue
            self.usable += 1
            rack = racks.get(broker.rack)
            if rack is None:
                rack = racks[broker.rack] = _Rack()
            if broker.fenced:
                rack.fenced.append(broker.id)
            else:
                self.unfenced += 1
                rack.unfenced.append(broker.id)
        self.racks = tuple(racks.values())
        self.all_racks_lead = all(rack.unfenced for rack in self.racks)
        """Whether every rack has an unfenced broker."""


class _Drawn(Generic[_T]):
    """Items in a random order, of which only the beginning is drawn that is asked for."""

    __slots__ = ("_items", "_moved", "_order", "_rng")

    def __init__(self, items: Sequence[_T], rng: Rng) -> None:
        self._items = items
        self._rng = rng
        self._order: list[_T] = []
        self._moved: dict[int, int] = {}
        """By position: the item that lies there instead of its own."""

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, position: int) -> _T:
        order, moved, items = self._order, self._moved, self._items
        while len(order) <= position:
            first = len(order)
            drawn = first + self._rng.randrange(len(items) - first)
            order.append(items[moved.get(drawn, drawn)])
            moved[drawn] = moved.get(first, first)
        return order[position]

    def __iter__(self) -> Iterator[_T]:
        return (self[position] for position in range(len(self)))


class _Turns:
    """The brokers of a rack in one request, used round-robin: each partition starts one broker after the previous."""

    __slots__ = ("_begin", "_fenced", "_partition", "_turn", "_unfenced")

    def __init__(self, rack: _Rack, rng: Rng, *, at_once: bool) -> None:
        self._unfenced: Sequence[int] | _Drawn[int]
        self._fenced: Sequence[int] | _Drawn[int]
        if at_once:
            self._unfenced, self._fenced = list(rack.unfenced), list(rack.fenced)
            rng.shuffle(self._unfenced)
            rng.shuffle(self._fenced)
            self._begin = rng.randrange(max(1, len(rack.unfenced)))
        else:
            # The order is random from its beginning.
            self._unfenced, self._fenced, self._begin = _Drawn(rack.unfenced, rng), _Drawn(rack.fenced, rng), -1
        self._partition = self._turn = -1

    def _next(self, partition: int) -> int:
        if partition != self._partition:
            self._partition, self._turn = partition, self._begin + partition
        self._turn += 1
        return self._turn

    def leader(self, partition: int) -> int:
        return self._unfenced[self._next(partition) % len(self._unfenced)]

    def follower(self, partition: int, taken: list[int]) -> int | None:
        turn, size = self._next(partition), len(self._unfenced)
        unfenced = (self._unfenced[(turn + step) % size] for step in range(size))
        return next((broker for broker in chain(unfenced, self._fenced) if broker not in taken), None)


def place_replicas(
    brokers: PlaceableBrokers, partition_count: int, replication_factor: int, rng: Rng, *, distinct_racks: bool = False
) -> list[tuple[int, ...]]:
    """Replicas of each of `partition_count` new partitions, the preferred leader first.

    Raises PeerError(INVALID_REPLICATION_FACTOR) if there are too few brokers, or with `distinct_racks` too few racks;
    `message` is the reason alone.
    """
    if replication_factor <= 0:
        raise _refused(f"Invalid replication factor {replication_factor}: the replication factor must be positive.")
    if brokers.unfenced == 0:
        raise _refused("All brokers are currently fenced or have all their log directories cordoned.")
    if replication_factor > brokers.usable:
        raise _refused(
            f"The target replication factor of {replication_factor} cannot be reached because only {brokers.usable} "
            "broker(s) are registered or some brokers have all their log directories cordoned."
        )
    if distinct_racks and replication_factor > len(brokers.racks):
        raise _refused(
            f"{replication_factor} replicas need as many racks (broker.rack; fenceline start --nodes sets it to the"
            f" host), and the brokers are in {len(brokers.racks)}. fenceline.placement.distinct.racks=false allows it."
        )
    placing = _Placing(brokers, rng)
    period = min(placing.period or partition_count, partition_count)
    placed = [placing.replicas(index, replication_factor) for index in range(period)]
    return [*chain.from_iterable(repeat(placed, partition_count // period)), *placed[: partition_count % period]]


class _Placing:
    """One request."""

    __slots__ = ("_at_once", "_leading", "_order", "_rng", "_start", "_turns", "period")

    def __init__(self, brokers: PlaceableBrokers, rng: Rng) -> None:
        self._rng = rng
        self._at_once = brokers.usable <= _DRAWN_AT_ONCE
        self._turns: dict[int, _Turns] = {}
        self._order: Sequence[_Rack] | _Drawn[_Rack]
        if self._at_once:
            self._order = list(brokers.racks)
            rng.shuffle(self._order)
            for position in range(len(self._order)):
                self._turns_at(position)
        else:
            self._order = _Drawn(brokers.racks, rng)
        self._leading: Sequence[int] = range(len(self._order))
        """Positions of racks in which a broker can lead."""
        if not brokers.all_racks_lead:
            self._leading = [position for position, rack in enumerate(self._order) if rack.unfenced]
        self._start = rng.randrange(len(self._leading)) if self._at_once else 0
        self.period: int | None = None
        """After so many partitions the turns begin again; None: not computed in a large cluster."""
        if self._at_once:
            self.period = lcm(len(self._leading), *(len(rack.unfenced) or 1 for rack in brokers.racks))

    def _turns_at(self, position: int) -> _Turns:
        turns = self._turns.get(position)
        if turns is None:
            turns = self._turns[position] = _Turns(self._order[position], self._rng, at_once=self._at_once)
        return turns

    def replicas(self, partition: int, replication_factor: int) -> tuple[int, ...]:
        position = self._leading[(self._start + partition) % len(self._leading)]
        replicas = [self._turns_at(position).leader(partition)]
        while len(replicas) < replication_factor:
            position += 1
            broker = self._turns_at(position % len(self._order)).follower(partition, replicas)
            if broker is not None:
                replicas.append(broker)
        return tuple(replicas)


def _refused(reason: str) -> PeerError:
    return PeerError(ErrorCode.INVALID_REPLICATION_FACTOR, reason)
