"""A driver is killed in the batch that retracts lost rows; the next driver replays that batch."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.testing.node import EmbeddedNode
from tests.conftest import need_java
from tests.spark.conftest import Broker
from tests.spark.cut_log import cut, node_to_cut
from tests.spark.own_process import driver

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """With a topic `t` of 150 records, which a truncation cuts to 100."""
    with node_to_cut() as running:
        yield running


def test_a_replay_retracts_the_same_rows(node: EmbeddedNode, tmp_path: Path, checkpoint: str) -> None:
    need_java()
    given, evidence = tmp_path / "given", tmp_path / "evidence"
    given.mkdir()

    def run(end: str) -> int:
        with driver(
            "source.retracting_query", tmp_path / "spark", node.bootstrap, checkpoint, evidence, given, end
        ) as running:
            return running.wait()

    def given_to(batch: int, end: str) -> dict[str, int]:
        return dict(json.loads((given / f"{batch}-{end}.json").read_text()))

    assert run("first") == 0
    node.stop()
    shutil.copytree(node.log_dir, evidence)
    cut(node.log_dir, "t", 100)
    node.start()
    Broker("fenceline", node.bootstrap).produce("t", range(120, 200))
    assert run("killed") == -signal.SIGKILL
    (killed,) = given.glob("*-killed.json")
    batch = int(killed.name.split("-")[0])
    # Records 120 to 149 were lost and sent again; 100 to 119 were not.
    expected = {str(value): int(value >= 120) for value in range(100, 200)}
    assert given_to(batch, "killed") == expected
    Broker("fenceline", node.bootstrap).produce("t", [200])
    assert run("second") == 0
    assert given_to(batch, "second") == expected
    assert given_to(batch + 1, "second") == {"200": 1}
