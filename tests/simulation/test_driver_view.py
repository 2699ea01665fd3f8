"""The state of a node that checks see during disk work: none that a power failure could revert before another node has
seen it, and all that other nodes may have seen."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fenceline.quorum.roles import Follower, Leader
from fenceline.testing.sim_disk import SimDisk
from fenceline.testing.simulation.controller_of_one import DriverView


def _node() -> Any:
    """The parts of a node that a view reads; the node leads epoch 3."""
    quorum = SimpleNamespace(role=Leader(3, 1, 0), in_touch=False, high_watermark=5, voters=())
    log = SimpleNamespace(is_changing=False, start_offset=0, end_offset=7, snapshots=[(0, 0)])
    return SimpleNamespace(
        quorum=quorum,
        log=log,
        driver=SimpleNamespace(is_waiting=False, is_persisting=False),
        image=SimpleNamespace(offset=4),
        high_watermark=5,
        has_failed=False,
    )


def _view(node: Any) -> DriverView:
    return DriverView(cast(Any, node), SimDisk())


def test_an_election_counts_when_it_is_durable() -> None:
    node = _node()
    view = _view(node)
    assert view.has_changed()
    node.quorum.role, node.quorum.in_touch = Follower(4, 2), True
    node.driver.is_waiting = node.driver.is_persisting = True
    assert not view.has_changed()
    assert view.state()[:3] == (3, 1, True)
    assert not view.state().in_touch
    node.driver.is_waiting = node.driver.is_persisting = False
    assert view.has_changed()
    assert view.state()[:3] == (4, 2, False)
    assert view.state().in_touch


def test_the_state_before_a_durable_election_is_checked() -> None:
    """A record committed in the same step, an image, a snapshot."""
    node = _node()
    view = _view(node)
    assert view.has_changed()
    node.quorum.role = Follower(4, 2)
    node.driver.is_waiting = node.driver.is_persisting = True
    node.quorum.high_watermark = node.high_watermark = 6
    assert view.has_changed()
    assert (view.state().epoch, view.state().high_watermark) == (3, 6)
    node.image.offset = 5
    assert view.has_changed()
    node.log.snapshots.append((6, 3))
    assert view.has_changed()
    assert view.state().snapshots == ((0, 0), (6, 3))


def test_a_restarted_node_has_no_state_before_its_first_durable_election() -> None:
    node = _node()
    node.driver.is_waiting = node.driver.is_persisting = True
    assert not _view(node).has_changed()


def test_a_log_is_checked_before_and_after_a_thread_truncates_it() -> None:
    node = _node()
    view = _view(node)
    node.driver.is_waiting = True
    assert view.has_changed()
    node.log.is_changing, node.log.end_offset = True, 5
    assert not view.has_changed()
    node.log.is_changing = False
    assert view.has_changed()
    assert view.state().log_end == 5
