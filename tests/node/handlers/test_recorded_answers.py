"""The admin APIs against what Kafka 4.3.1 was recorded to answer (tests/kafka does it against a live one)."""

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
def test_answers_as_kafka_did(name: str, node: EmbeddedNode) -> None:
    with RawConnection(node.port) as connection:
        answers = run_script(connection, SCRIPTS[name])
    for step, theirs, ours in zip(SCRIPTS[name], recorded_answers()[name], answers, strict=True):
        assert ours == theirs, f"{step.api.name} v{step.version} {step.fields}"
