"""Report cards of real programs: good ones, and ones with one mistake each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fenceline.errors import OperatorError
from fenceline.testing.client_check.check import CASES, check_program, chosen_cases
from fenceline.testing.client_check.stage import Patience
from fenceline.testing.client_check.verdicts import CaseVerdict
from fenceline.testing.lab.cluster import LabCluster
from tests.support.processes import is_alive

PROGRAMS = Path(__file__).parents[3] / "tools" / "clients"
PATIENCE = Patience(start_s=20, recover_s=2, restart_s=20, stop_s=2)
READS = """
import logging, os, time
from fenceline.client import Consumer
logging.disable()
def die_once():
    if not os.path.exists(__file__ + os.environ["KAFKA_GROUP"]):
        open(__file__ + os.environ["KAFKA_GROUP"], "w").close()
        os._exit(3)
settings = {
    "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
    "group.id": os.environ["KAFKA_GROUP"],
    "auto.offset.reset": "earliest",
    "on.truncation": "rewind",
    "session.timeout.ms": 1000,
    "heartbeat.interval.ms": 200,
}
seen = 0
with Consumer(settings) as consumer:
    consumer.subscribe([os.environ["KAFKA_TOPIC"]])
    while True:
        for record in consumer.poll(100):
            value = (record.value or b"").decode()
            seen += 1
            %s
"""
WRITES = """
import os, sys
from fenceline.client import Producer
with Producer(os.environ["KAFKA_BOOTSTRAP_SERVERS"]) as producer:
    for line in sys.stdin:
        value = line.strip()
        %s
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[LabCluster]:
    with LabCluster(3) as running:
        yield running


def check(cluster: LabCluster, tmp_path: Path, kind: str, program: str, case: str) -> CaseVerdict:
    path = tmp_path / "program.py"
    path.write_text(program)
    command = [sys.executable, str(path)]
    card = check_program(command, kind, cases=[case], patience=PATIENCE, cluster=cluster)  # type: ignore[arg-type]
    return card.verdicts[-1]


def test_a_good_consumer(cluster: LabCluster) -> None:
    seen: list[str] = []
    card = check_program(
        [sys.executable, str(PROGRAMS / "fenceline_consumer.py")],
        "consumer",
        name="mine",
        cases=["truncated-grown", "zombie-member", "damaged-batch"],
        patience=PATIENCE,
        on_verdict=lambda verdict, title: seen.append(title),
        cluster=cluster,
    )
    assert [verdict.summary() for verdict in card.verdicts] == [
        "recovered",
        "recovered, noticed",
        "recovered, noticed",
        "recovered, noticed",
    ]
    assert card.good == len(card.verdicts) == len(seen)
    grown = card.verdicts[1]
    assert len(grown.stale) == 20
    assert "unclean election done" in grown.timeline


def test_a_good_producer(cluster: LabCluster) -> None:
    command = [sys.executable, str(PROGRAMS / "fenceline_producer.py")]
    cases = ["lost-answers", "leader-killed", "topic-recreated"]
    card = check_program(command, "producer", cases=cases, patience=PATIENCE, cluster=cluster)
    assert {verdict.summary() for verdict in card.verdicts} <= {"recovered", "recovered, noticed"}


@pytest.mark.parametrize(
    ("does", "case", "words"),
    [
        ("print(value, flush=True)", "truncated", ["recovered", "silent"]),
        ("print(value, flush=True); print(value, flush=True)", "leader-moved", ["duplicated 40"]),
        ("print('' if value == 'r-25' else value, flush=True)", "leader-moved", ["lost 1"]),
        ("print(value, flush=True); time.sleep(100 if seen >= 20 else 0)", "leader-moved", ["hung"]),
        ("print(value, flush=True); value == 'r-25' and die_once()", "leader-moved", ["crashed", "noticed"]),
        ("value == 'r-25' and os._exit(3); print(value, flush=True)", "leader-moved", ["crashed for good", "noticed"]),
    ],
)
def test_a_consumer_with_a_mistake(cluster: LabCluster, tmp_path: Path, does: str, case: str, words: list[str]) -> None:
    verdict = check(cluster, tmp_path, "consumer", READS % does, case)
    # After a crash, what was not committed comes again; and after one for good, the rest is missing.
    if verdict.crashed:
        assert [word for word in verdict.words if word.startswith(("crashed", "noticed"))] == words
    else:
        assert verdict.words == words


@pytest.mark.parametrize(
    ("does", "case", "words"),
    [
        (
            "producer.send(os.environ['KAFKA_TOPIC'], value.encode()); print(value, flush=True)",
            "baseline",
            ["recovered"],
        ),
        (
            "value == 'r-3' or producer.send(os.environ['KAFKA_TOPIC'], value.encode()); print(value, flush=True)",
            "baseline",
            ["lost 1"],
        ),
        (
            "value == 'r-30' and os._exit(3); producer.send(os.environ['KAFKA_TOPIC'], value.encode()).result(5);"
            " print(value, flush=True)",
            "leader-moved",
            ["crashed", "noticed"],
        ),
        (
            "int(value[2:]) >= 30 and os._exit(3); producer.send(os.environ['KAFKA_TOPIC'], value.encode()).result(5);"
            " print(value, flush=True)",
            "leader-moved",
            ["crashed for good", "noticed"],
        ),
        (
            "[producer.send(os.environ['KAFKA_TOPIC'], value.encode()) for _ in 'ab']; print(value, flush=True)",
            "baseline",
            None,
        ),
    ],
)
def test_a_producer_with_a_mistake(
    cluster: LabCluster, tmp_path: Path, does: str, case: str, words: list[str] | None
) -> None:
    verdict = check(cluster, tmp_path, "producer", WRITES % does, case)
    if words is None:
        assert verdict.words[0].startswith("duplicated")
    else:
        assert verdict.words == words


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["true"], "ended with exit code 0 before it had processed a record"),
        (["sh", "-c", "echo no; exit 4"], "(?s)ended with exit code 4 .*no"),
        (["sleep", "100"], "runs and prints nothing"),
        (["sh", "-c", "trap '' TERM; echo hello; sleep 100"], "printed 0 of the first 20 values"),
        (["no-such-program"], "cannot be started"),
    ],
)
def test_a_program_that_cannot_be_judged(cluster: LabCluster, command: list[str], reason: str) -> None:
    with pytest.raises(OperatorError, match=reason) as error:
        check_program(command, "consumer", patience=Patience(start_s=1, stop_s=0.5), cluster=cluster)
    assert error.value.advice


def test_a_program_that_never_ends_is_killed_with_its_children(cluster: LabCluster, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 1000 & echo $! $$ > {pids}; while true; do sleep 1; done"
    with pytest.raises(OperatorError):
        check_program(["sh", "-c", script], "consumer", patience=Patience(start_s=1, stop_s=0.5), cluster=cluster)
    assert not any(is_alive(int(pid)) for pid in pids.read_text().split())


def test_cases_have_names_of_their_own() -> None:
    for kind, cases in CASES.items():
        assert len({case.name for case in cases}) == len(cases)
        assert chosen_cases(kind, []) == list(cases)  # type: ignore[arg-type]
    with pytest.raises(OperatorError, match="There is no case 'nothing' for a consumer"):
        chosen_cases("consumer", ["nothing"])
