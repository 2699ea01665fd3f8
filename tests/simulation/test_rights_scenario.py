"""Rights of clients in simulated clusters, while nodes are cut off and frozen. Rules: security.md A48 to A50."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from unittest.mock import PropertyMock, patch

import pytest

from fenceline.config import authorizer
from fenceline.errors import ErrorCode
from fenceline.security.acls import AclAuthorizer
from fenceline.security.rights import RequestRights
from fenceline.testing.simulation.rights_scenario import RightsScenario
from fenceline.testing.simulation.stage import play


@pytest.fixture
def checked() -> Iterator[list[int]]:
    """The number of answers that each run has compared."""
    counts: list[int] = []
    ended = RightsScenario.end

    def end(scenario: RightsScenario) -> tuple[int, int]:
        counts.append(scenario.rights.checked)
        return ended(scenario)

    with patch.object(RightsScenario, "end", end):
        yield counts


@pytest.mark.parametrize(
    "seed",
    [
        0,
        2,
        6,
        11,
    ],
)
def test_rights_are_gone_when_they_are_removed(seed: int, checked: list[int]) -> None:
    outcome = play(seed, "rights")
    assert outcome.failure is None, outcome.report()
    assert sum(checked) > 10


def test_a_node_that_is_cut_off_must_not_rely_on_its_rules() -> None:
    """Two seeds of a thousand find it; which ones changes with the timing of the nodes."""
    settings = {**RightsScenario.more_config, authorizer.MAX_LAG: "0"}
    with patch.object(RightsScenario, "more_config", MappingProxyType(settings)):
        assert any("is allowed WRITE" in str(play(seed, "rights").failure) for seed in (670, 707, 910, 2326, 2474))


def test_a_right_that_stays_is_found() -> None:
    with patch.object(AclAuthorizer, "remove", lambda self, rule: None):
        outcome = play(5, "rights")
    assert "is allowed" in str(outcome.failure)


def test_a_node_that_denies_what_it_does_not_know_is_found() -> None:
    denied = PropertyMock(return_value=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with patch.object(RequestRights, "topic_fault", denied):
        outcome = play(0, "rights")
    assert "is denied WRITE" in str(outcome.failure)
