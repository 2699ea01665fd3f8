"""The fixtures of pytest, in test runs of their own: scopes, workers, reports, and what is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.testing.waiting import eventually
from tests.support.processes import is_alive

pytest_plugins = ["pytester"]

_OPTIONS = ("-p", "no:cacheprovider", "-q")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """A folder with a suite of its own, outside of this project's configuration."""
    pytester.makeini("[pytest]\n")
    return pytester


def run(suite: pytest.Pytester, *options: str) -> pytest.RunResult:
    return suite.runpytest_subprocess(*_OPTIONS, *options, timeout=100)


def test_brokers_topics_and_faults(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest

        seen = []

        def test_a_broker(kafka_broker):
            assert kafka_broker.bootstrap_servers.startswith("127.0.0.1:")
            seen.append(kafka_broker.bootstrap_servers)

        def test_the_same_broker(kafka_broker, kafka_topic):
            assert seen == [kafka_broker.bootstrap_servers]
            kafka_broker.produce(kafka_topic, 3)
            assert len(kafka_broker.read(kafka_topic, 3)) == 3
            seen.append(kafka_topic)

        def test_another_topic(kafka_broker, kafka_topic):
            assert seen[1] not in kafka_broker.admin.metadata().topics
            assert kafka_topic != seen[1]
            assert isinstance(kafka_topic, str)
            assert kafka_topic.bootstrap_servers == kafka_broker.bootstrap_servers

        def test_the_fixtures_know_the_cluster(kafka_topic, kafka_faults):
            assert kafka_topic.bootstrap_servers == kafka_faults.bootstrap_servers == seen[0]

        @pytest.mark.kafka_topic(partitions=4, configs={"retention.ms": 1000})
        def test_a_topic_with_options(kafka_broker, kafka_topic):
            assert len(kafka_broker.admin.metadata([kafka_topic]).topics[kafka_topic].partitions) == 4

        def test_a_fault(kafka_broker, kafka_topic, kafka_faults):
            fault = kafka_faults.fail_requests("Produce", "NOT_LEADER_OR_FOLLOWER", topic=kafka_topic, times=1)
            kafka_broker.produce(kafka_topic, 1)
            assert fault.hits == 1
            kafka_faults.fail_requests("Produce", "KAFKA_STORAGE_ERROR")
            kafka_faults.pause(1)

        def test_faults_have_ended(kafka_broker, kafka_topic):
            assert kafka_broker.faults.active == ()
            kafka_broker.produce(kafka_topic, 1)

        def test_situations_of_a_cluster(kafka_cluster, kafka_topic):
            made = kafka_cluster.situations.unclean_election(kafka_topic, lose=5)
            assert len(made.lost) == 5
            assert {receipt.records for receipt in kafka_cluster.losses(kafka_topic)} == {5}
        """
    )
    run(suite).assert_outcomes(passed=8)


def test_options_and_scopes(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nkafka_scope = module\n")
    suite.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def kafka_cluster_options():
            return {"nodes": 2, "security": True, "properties": {"num.partitions": 5}}
        """
    )
    for name in ("test_a", "test_b"):
        suite.makepyfile(
            **{
                name: """
        import pathlib

        def test_it(kafka_cluster):
            assert len(kafka_cluster.nodes) == 2
            assert kafka_cluster.admin.create_topics(["t"])["t"].num_partitions == 5
            with pathlib.Path("seen").open("a") as file:
                print(kafka_cluster.client_settings["sasl.password"], file=file)

        def test_it_again(kafka_cluster):
            assert "t" in kafka_cluster.admin.metadata().topics

        def test_one_of_its_own(kafka_cluster, new_kafka_cluster):
            own = new_kafka_cluster(1)
            assert own.bootstrap_servers not in kafka_cluster.bootstrap_servers
            assert own.admin.metadata().topics == {}
        """
            }
        )
    run(suite).assert_outcomes(passed=6)
    assert len(set((suite.path / "seen").read_text().split())) == 2


def test_a_scope_that_there_is_not(suite: pytest.Pytester) -> None:
    suite.makeini("[pytest]\nkafka_scope = forever\n")
    suite.makepyfile("def test_it(kafka_broker): pass")
    result = run(suite)
    assert result.ret != 0
    result.stdout.re_match_lines([".*kafka_scope = 'forever': choose one of session.*"])


def test_a_failing_test_reports_what_happened(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        def test_before(kafka_cluster, kafka_faults):
            kafka_faults.step_clock(2, 7)

        def test_it(kafka_cluster, kafka_topic, kafka_faults):
            kafka_cluster.situations.unclean_election(kafka_topic, lose=7)
            kafka_faults.kill(2)
            kafka_faults.undo_all()
            assert kafka_cluster.read(kafka_topic) == "everything"

        def test_setup_fails(kafka_cluster, missing_fixture):
            pass
        """
    )
    result = run(suite)
    result.assert_outcomes(passed=1, failed=1, errors=1)
    text = result.stdout.str()
    assert "faults, elections and ends of nodes during the test" in text
    assert re.search(r"leader elected .* unclean=True", text)
    assert "kill of node 2" in text
    assert "clock step" not in text
    assert re.search(r"lost records .*\n.*7 records, ", text)
    assert "log of node 2 during the test" in text
    assert "Fenceline is ready: node 2" in text


def test_tests_in_an_event_loop(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import asyncio

        async def story(cluster, topic):
            ticks = 0

            async def tick():
                nonlocal ticks
                while True:
                    ticks += 1
                    await asyncio.sleep(0.01)

            ticking = asyncio.create_task(tick())
            made = await cluster.aio.situations.unclean_election(topic, lose=3)
            assert len(made.lost) == 3
            assert len(await cluster.aio.produce(topic, 2)) == 2
            assert cluster.aio.bootstrap_servers == cluster.bootstrap_servers
            ticking.cancel()
            assert ticks > 10

        def test_it(kafka_cluster, kafka_topic):
            asyncio.run(story(kafka_cluster, kafka_topic))
        """
    )
    run(suite).assert_outcomes(passed=1)


_WORKERS = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(6))
def test_it(kafka_broker, kafka_topic, number):
    kafka_broker.produce(kafka_topic, [str(number)])
    assert [record.value for record in kafka_broker.read(kafka_topic)] == [str(number).encode()]
    with pathlib.Path("seen").open("a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], kafka_broker.bootstrap_servers, file=file)
"""


@pytest.mark.parametrize("shared", [False, True])
def test_workers_of_xdist(suite: pytest.Pytester, shared: bool) -> None:
    suite.makepyfile(_WORKERS)
    run(suite, "-n", "2", *(["--kafka-shared"] if shared else [])).assert_outcomes(passed=6)
    seen = {tuple(line.split()) for line in (suite.path / "seen").read_text().splitlines()}
    assert {worker for worker, _ in seen} == {"gw0", "gw1"}
    assert len({address for _, address in seen}) == (1 if shared else 2)


def test_a_shared_cluster_has_no_faults(suite: pytest.Pytester) -> None:
    suite.makepyfile("def test_it(kafka_broker, kafka_faults): pass")
    result = run(suite, "-n", "1", "--kafka-shared")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*is not this test run's own: it has no faults*"])


def test_a_cluster_that_somebody_else_runs(suite: pytest.Pytester) -> None:
    from fenceline.testing.node import EmbeddedNode

    suite.makepyfile(
        """
        def test_it(kafka_broker, kafka_topic):
            kafka_broker.produce(kafka_topic, 3)
            assert len(kafka_broker.read(kafka_topic)) == 3
        """
    )
    with EmbeddedNode() as node:
        run(suite, "--kafka-bootstrap-servers", node.bootstrap).assert_outcomes(passed=1)


def test_the_plugin_costs_nothing_without_its_fixtures(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import sys

        def test_it():
            loaded = [name for name in sys.modules if name.startswith("fenceline")]
            assert sorted(loaded) == ["fenceline", "fenceline.testing", "fenceline.testing.pytest_plugin"]
        """
    )
    run(suite).assert_outcomes(passed=1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_run_that_is_ended(suite: pytest.Pytester, how: signal.Signals) -> None:
    suite.makepyfile(
        """
        import pathlib, time

        def test_it(kafka_cluster):
            pids = [kafka_cluster.processes.running(node).pid for node in kafka_cluster.nodes]
            pathlib.Path("seen.new").write_text(" ".join([str(kafka_cluster.root), *map(str, pids)]))
            pathlib.Path("seen.new").rename("seen")
            time.sleep(100)
        """
    )
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *_OPTIONS],
        cwd=suite.path,
        env=environment,
        stdout=subprocess.DEVNULL,
        # A background job of a script ignores SIGINT.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    ) as process:
        eventually((suite.path / "seen").exists, wait_s=60)
        root, *pids = (suite.path / "seen").read_text().split()
        process.send_signal(how)
        process.wait()
    eventually(lambda: not any(is_alive(int(pid)) for pid in pids), "the nodes end", wait_s=30)
    eventually(lambda: not Path(root).exists(), "the folder is removed", wait_s=30)
