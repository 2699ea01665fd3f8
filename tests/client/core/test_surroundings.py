"""The clock and the random numbers of a client come from outside."""

from __future__ import annotations

import ast
import random
import time
from pathlib import Path
from typing import Final

from fenceline.client.core.deadline import backoff_ms
from fenceline.client.core.surroundings import CURRENT, MACHINE, Surroundings, surroundings
from fenceline.client.producer.partitioner import StickyPartitioner

CLIENT: Final = Path(__file__).parents[3] / "src" / "fenceline" / "client"
OF_A_THREAD: Final = {"core/surroundings.py", "core/login.py", "consumer/consumer.py", "producer/delivery.py"}
"""The module itself, a request in a thread, and calls of blocking clients, which wait in the caller's thread."""


def test_the_machine_is_the_default() -> None:
    assert surroundings() is MACHINE
    assert abs(surroundings().wall_ms() / 1000 - time.time()) < 60
    assert surroundings().rng is random


def test_a_client_draws_from_its_surroundings() -> None:
    before = CURRENT.set(Surroundings(lambda: 7.0, lambda: 1.0, random.Random(5)))
    try:
        assert surroundings().wall_ms() == 7000
        drawn = backoff_ms(1, 100, 1000), StickyPartitioner().current("t", range(1000))
    finally:
        CURRENT.reset(before)
    expected = random.Random(5)
    assert drawn == (100 * expected.uniform(0.8, 1.2), expected.choice(range(1000)))


def test_no_other_module_reads_the_clock_or_draws() -> None:
    found = {
        str(path.relative_to(CLIENT))
        for path in CLIENT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import) and {each.name for each in node.names} & {"time", "random", "secrets"}
    }
    assert found == OF_A_THREAD
