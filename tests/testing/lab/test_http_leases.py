"""A cluster ends with its lease, on a clock of the test."""

from __future__ import annotations

from typing import Any

import pytest

from fenceline.errors import OperatorError
from fenceline.testing.lab.http.leases import LeasedCluster, LeasedClusters, UnknownIdError
from fenceline.testing.waiting import eventually


class FakeCluster:
    def __init__(self, **options: Any) -> None:
        self.options = options
        self.is_running = False

    def start(self) -> FakeCluster:
        self.is_running = True
        return self

    def close(self) -> None:
        self.is_running = False


class World:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.clusters = LeasedClusters(FakeCluster, lambda: self.now_s)  # type: ignore[arg-type]

    def create(self, lease_s: float = 10) -> LeasedCluster:
        return self.clusters.create({}, lease_s)

    def expire(self) -> float | None:
        return self.clusters.end_expired()


def is_running(leased: LeasedCluster) -> bool:
    found: Any = leased.cluster
    return bool(found.is_running)


@pytest.fixture
def world() -> World:
    return World()


def test_a_lease_ends_the_cluster(world: World) -> None:
    leased = world.create(10)
    world.now_s = 9.9
    world.expire()
    assert is_running(leased)
    world.now_s = 10
    world.expire()
    eventually(lambda: not is_running(leased), "it ends")
    with pytest.raises(UnknownIdError, match="no request about it for 10 s"), world.clusters.use(leased.id):
        pass


def test_a_request_renews_it_and_none_is_interrupted(world: World) -> None:
    leased = world.create(10)
    world.now_s = 5
    with world.clusters.use(leased.id):
        world.now_s = 100
        world.expire()
        assert is_running(leased)
    world.now_s = 109
    assert world.expire() == 1
    assert is_running(leased)
    world.now_s = 110
    world.expire()
    eventually(lambda: not is_running(leased), "it ends")


def test_a_held_lease_does_not_end_and_its_release_ends_it(world: World) -> None:
    leased = world.create(10)
    world.clusters.hold(leased.id)
    world.now_s = 1000
    world.expire()
    assert is_running(leased)
    world.clusters.release(leased)
    eventually(lambda: not is_running(leased), "it ends")
    with pytest.raises(UnknownIdError, match="held its lease"):
        world.clusters.hold(leased.id)


def test_the_end_of_all_is_final(world: World) -> None:
    made = [world.create() for _ in range(3)]
    ended: list[str] = []
    made[0].at_end(lambda: ended.append(made[0].id))
    world.clusters.close_all()
    assert not any(map(is_running, made))
    assert ended == [made[0].id]
    with pytest.raises(OperatorError, match="is ending"):
        world.create()


def test_a_cluster_that_was_starting_at_the_end_does_not_stay(world: World) -> None:
    started: list[FakeCluster] = []

    class Slow(FakeCluster):
        def start(self) -> FakeCluster:
            clusters.close_all()
            started.append(self)
            return super().start()

    clusters = LeasedClusters(Slow)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="is ending"):
        clusters.create({})
    assert [each.is_running for each in started] == [False]
