"""Any requests to the controller in any order: the invariants hold after each response (`world`)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.controller.world import ACTIONS, World, run_history


class AnyWorld(RuleBasedStateMachine):
    """The actions of a world as rules; Hypothesis can shrink the choices of each."""

    @initialize(
        level=st.sampled_from([30, 30, 23, 22, 16, 11]), elr=st.booleans(), rng=st.randoms(use_true_random=False)
    )
    def begin(self, level: int, elr: bool, rng: Random) -> None:
        self.world = World(elr=elr and level >= 23, metadata_version=level)
        for _ in range(4):
            self.world.register(rng)
        for _ in range(6):
            self.world.heartbeat(rng)
        self.world.create(rng)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.check_history()


def _rule(action: Callable[[World, Random], None]) -> Any:
    def step(self: AnyWorld, rng: Random) -> None:
        action(self.world, rng)

    return rule(rng=st.randoms(use_true_random=False))(step)


for _weight, _action in ACTIONS:
    setattr(AnyWorld, _action.__name__, _rule(_action))

TestAnyWorld = AnyWorld.TestCase
TestAnyWorld.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, derandomize=True)


def test_histories_with_brokers_reported_as_gone() -> None:
    """Also: brokers that are reported as ended are fenced, whether they live or not."""
    for seed in range(40):
        run_history(seed, more=((6, World.lose),))


@pytest.mark.parametrize("first", range(0, 160, 40))
def test_long_histories(first: int) -> None:
    """Longer than Hypothesis's, and the same each time."""
    for seed in range(first, first + 40):
        run_history(seed)
