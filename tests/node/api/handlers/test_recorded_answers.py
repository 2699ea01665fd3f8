"""The admin APIs against recorded answers of Kafka 4.3.1 (tests/kafka compares with a live one)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fenceline.testing.node import EmbeddedNode
from tests.kafka.conftest import SAME_SETTINGS
from tests.support.admin_scripts import SCRIPTS, run_script
from tests.support.raw import RawConnection
from tests.support.recorded import recorded_answers


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(overrides=SAME_SETTINGS) as node:
        yield node


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_match_recorded_answers_of_kafka(name: str, node: EmbeddedNode) -> None:
    with RawConnection(node.port) as connection:
        answers = run_script(connection, SCRIPTS[name])
    for step, theirs, ours in zip(SCRIPTS[name], recorded_answers()[name], answers, strict=True):
        assert ours == theirs, f"{step.api.name} v{step.version} {step.fields}"
