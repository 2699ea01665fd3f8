"""Automatic placement (controller.md C23, since_4_0.md K25)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fenceline.controller.placement import PlaceableBrokers, _Placing, place_replicas
from fenceline.errors import PeerError
from fenceline.metadata.image import BrokerImage


def _broker(
    broker: int, rack: str | None = None, fenced: bool = False, cordoned: tuple[UUID, ...] | None = None
) -> BrokerImage:
    return BrokerImage(broker, 1, UUID(int=1), (), {}, rack, fenced, False, (UUID(int=200 + broker),), cordoned)


@given(
    brokers=st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9),
    count=st.integers(1, 30),
    factor=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_invariants_of_every_placement(
    brokers: list[tuple[str | None, bool]], count: int, factor: int, seed: int
) -> None:
    images = {number: _broker(number, rack, fenced) for number, (rack, fenced) in enumerate(brokers)}
    unfenced = {number for number, broker in images.items() if not broker.fenced}
    if not unfenced or factor > len(images):
        with pytest.raises(PeerError):
            place_replicas(PlaceableBrokers(images.values()), count, factor, Random(seed))
        return
    placed = place_replicas(PlaceableBrokers(images.values()), count, factor, Random(seed))
    assert len(placed) == count
    racks = {broker.rack for broker in images.values()}
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] in unfenced
        assert len({images[replica].rack for replica in replicas}) == min(factor, len(racks)), "racks come first"


@given(
    brokers=st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.booleans()), min_size=1, max_size=9),
    factor=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_turns_that_begin_again_are_not_taken_again(
    brokers: list[tuple[str | None, bool]], factor: int, seed: int
) -> None:
    placeable = PlaceableBrokers(_broker(number, rack, fenced) for number, (rack, fenced) in enumerate(brokers))
    if placeable.unfenced and factor <= placeable.usable:
        placing = _Placing(placeable, Random(seed))
        each = [placing.replicas(partition, factor) for partition in range(200)]
        assert place_replicas(placeable, 200, factor, Random(seed)) == each


def test_leaders_rotate() -> None:
    placed = place_replicas(PlaceableBrokers([_broker(number) for number in range(5)]), 50, 3, Random(1))
    assert set(Counter(replicas[0] for replicas in placed).values()) == {10}


def test_a_broker_with_all_directories_cordoned_gets_no_replicas() -> None:
    full = _broker(1, cordoned=(UUID(int=201),))
    assert set(place_replicas(PlaceableBrokers([full, _broker(2)]), 20, 1, Random(1))) == {(2,)}
    with pytest.raises(PeerError):
        place_replicas(PlaceableBrokers([full, _broker(2)]), 1, 2, Random(1))


def test_a_broker_in_shutdown_gets_no_new_replicas() -> None:
    """When fenced it counts as any fenced broker: it may return."""
    leaving = replace(_broker(2), in_controlled_shutdown=True)
    assert place_replicas(PlaceableBrokers([_broker(1), leaving]), 4, 1, Random(0)) == [(1,)] * 4
    with pytest.raises(PeerError):
        place_replicas(PlaceableBrokers([_broker(1), leaving]), 1, 2, Random(0))
    assert place_replicas(PlaceableBrokers([_broker(1), replace(leaving, fenced=True)]), 1, 2, Random(0)) == [(1, 2)]


def test_leaders_rotate_also_if_every_broker_holds_every_partition() -> None:
    """Three replicas on three brokers: each leads a third of the partitions."""
    found = place_replicas(PlaceableBrokers([_broker(number) for number in (1, 2, 3)]), 6, 3, Random(4))
    assert sorted(Counter(replicas[0] for replicas in found).values()) == [2, 2, 2]
    assert all(sorted(replicas) == [1, 2, 3] for replicas in found)


@given(
    brokers=st.integers(65, 150),
    racks=st.sampled_from([1, 3, 10, 150]),
    fenced=st.integers(2, 9),
    count=st.integers(1, 30),
    factor=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_invariants_of_placements_in_large_clusters(
    brokers: int, racks: int, fenced: int, count: int, factor: int, seed: int
) -> None:
    """Their orders are drawn as far as they are used."""
    images = {number: _broker(number, f"rack-{number % racks}", number % fenced == 0) for number in range(brokers)}
    for replicas in place_replicas(PlaceableBrokers(images.values()), count, factor, Random(seed)):
        assert len(set(replicas)) == len(replicas) == factor
        assert not images[replicas[0]].fenced
        assert len({images[replica].rack for replica in replicas}) == min(factor, racks), "racks come first"


def test_all_brokers_of_a_large_cluster_get_replicas() -> None:
    placed = place_replicas(PlaceableBrokers([_broker(number) for number in range(100)]), 300, 3, Random(1))
    assert set(Counter(replicas[0] for replicas in placed).values()) == {3}
    assert set(Counter(chain.from_iterable(placed)).values()) == {9}


def test_orders_of_a_large_cluster_are_random() -> None:
    brokers = PlaceableBrokers([_broker(number) for number in range(100)])
    first = Counter(place_replicas(brokers, 1, 1, Random(seed))[0][0] for seed in range(2_000))
    assert len(first) == 100
    assert max(first.values()) < 60


def test_racks_that_must_be_distinct_are_not_used_again() -> None:
    brokers = PlaceableBrokers([_broker(number, f"host-{number % 2}") for number in range(8)])
    assert len(place_replicas(brokers, 4, 3, Random(1))) == 4
    with pytest.raises(PeerError, match="3 replicas need as many racks"):
        place_replicas(brokers, 4, 3, Random(1), distinct_racks=True)
    for replicas in place_replicas(brokers, 16, 2, Random(1), distinct_racks=True):
        assert {replica % 2 for replica in replicas} == {0, 1}
