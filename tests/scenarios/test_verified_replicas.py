"""`fenceline verify` on directories of running brokers, Fenceline's and Kafka's, whose logs diverged in an unclean
election: it reports the divergent offset until the old leader has truncated its log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fenceline.cli.app import app
from fenceline.testing.mixed_cluster import MixedCluster
from fenceline.testing.waiting import eventually
from tests.scheduling import CLUSTERS
from tests.support.unclean_story import FIRST, KEPT, LOST, SECOND, WAIT_S, UncleanStory, cluster_of

pytestmark = pytest.mark.timeout(600)

ANEW = 20


@pytest.fixture(params=["fenceline", pytest.param("kafka", marks=[pytest.mark.kafka, pytest.mark.together(CLUSTERS)])])
def story(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UncleanStory]:
    with cluster_of(request.param, tmp_path) as cluster:
        cluster.wait_ready()
        cluster.wait_complete()
        yield UncleanStory(cluster)


def verified(*paths: Path) -> list[dict[str, Any]]:
    done = CliRunner().invoke(app, ["verify", "--deep", "--json", *map(str, paths)])
    reports: list[dict[str, Any]] = json.loads(done.stdout)
    assert done.exit_code == any(report["errors"] for report in reports), done.output
    return reports


def findings(reports: list[dict[str, Any]], topic: str | None = None) -> list[tuple[str, int | None]]:
    found = [each for report in reports if topic in (None, report["topic"]) for each in report["findings"]]
    return [(each["kind"], each["offset"]) for each in found]


def errors(reports: list[dict[str, Any]]) -> list[str]:
    return [
        f"{each['kind']} {each['path']}: {each['message']}"
        for report in reports
        for each in report["findings"]
        if each["severity"] == "error"
    ]


def folders(cluster: MixedCluster) -> list[Path]:
    return [node.log_dir for node in cluster.nodes]


@pytest.mark.long
def test_divergence_is_reported_until_the_old_leader_truncates_its_log(story: UncleanStory) -> None:
    topic, where = story.tp.topic, [story.cluster.node(number).log_dir for number in (FIRST, SECOND)]
    story.part()
    partition = [each / f"{topic}-0" for each in where]
    reports = verified(*partition)
    assert findings(reports) == []
    assert sorted(report["end_offset_exclusive"] for report in reports) == [KEPT, KEPT + LOST]

    story.lead_uncleanly(SECOND, instead_of=FIRST)
    story.write(ANEW, "new")
    reports = verified(*where)
    assert set(findings(reports, topic)) == {("divergence", KEPT)}
    assert [error for error in errors(reports) if topic not in error] == []
    reported = [each["message"] for report in reports if report["topic"] == topic for each in report["findings"]]
    epochs = {report["leader_epochs"][-1][0] for report in reports if report["topic"] == topic}
    assert len(epochs) == 2
    assert all(f"epoch {epoch}" in reported[0] for epoch in epochs), reported

    story.restart(FIRST)
    story.write(ANEW, "later")

    def is_whole() -> bool:
        found = verified(*folders(story.cluster))
        return not errors(found) and ("divergence", KEPT) not in findings(found, topic)

    eventually(is_whole, "the replicas agree, and nothing is wrong in any directory", wait_s=WAIT_S)
    evidence = partition[0] / "lost+found"
    ends = {report["end_offset_exclusive"] for report in verified(*partition) if str(evidence) not in report["path"]}
    assert ends == {KEPT + 2 * ANEW}
    assert evidence.exists() != story.is_kafka
    if not story.is_kafka:
        (report,) = [report for report in verified(evidence) if report["records"]]
        assert report["end_offset_exclusive"] == KEPT + LOST
        assert report["errors"] == 0
