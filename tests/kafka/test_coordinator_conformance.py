"""The transaction coordinator against a real Kafka 4.3.1: the same requests, the same answers, field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fenceline.testing.apache_kafka import ApacheKafka
from fenceline.testing.node import EmbeddedNode
from tests.support.coordinator_scripts import SCRIPTS
from tests.support.data_session import DataSession, differences
from tests.support.recorded import Answer, as_recorded


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_same_answers(script: Callable[[DataSession], None], answer: Answer, fenceline_node: EmbeddedNode) -> None:
    def seen(node: ApacheKafka | EmbeddedNode) -> list[Any]:
        with DataSession(node.port) as session:
            script(session)
        return session.seen

    theirs, ours = answer("apache_kafka", seen), as_recorded(seen(fenceline_node))
    found = [
        f"{number} {their[0]}{difference}"
        for number, (their, our) in enumerate(zip(theirs, ours, strict=True))
        for difference in differences(their[1], our[1])
    ]
    assert not found, "\n".join(found[:30])
