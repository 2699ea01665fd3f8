"""Fixtures for pytest: brokers, clusters, topics and faults, from `pip install fenceline[testing]`.

Owns the fixtures, their scope, what a failing test's report says of its clusters, and that faults end with each test.
Loaded by pytest in every session in which Fenceline is installed: it must import nothing before a fixture is used.

| Fixture | Is |
|---|---|
| `kafka_broker` | one broker (`LabCluster`) |
| `kafka_cluster` | three brokers; `kafka_cluster_options` says otherwise |
| `kafka_topic` | a topic of this test, on the cluster that it uses |
| `kafka_faults` | the faults of the cluster that it uses; all faults end with the test, whether or not it uses this |
| `new_kafka_cluster` | makes clusters for this test only |

Brokers and clusters live for the session, or for what `kafka_scope` says (pytest.ini). Options of `kafka_broker` and
`kafka_cluster` are the fixtures `kafka_broker_options` and `kafka_cluster_options`, which a conftest.py overrides.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from fenceline.testing.connected import ConnectedCluster
    from fenceline.testing.kafka_helpers import KafkaHelpers, KafkaTopic
    from fenceline.testing.lab.cluster import LabCluster
    from fenceline.testing.lab.faults import ClusterFaults

_FIXTURES: Final = ("kafka_broker", "kafka_cluster", "new_kafka_cluster")
_SCOPES: Final = ("session", "package", "module", "class", "function")
_LOG_LINES: Final = 40
_MARKER: Final = "kafka_topic(partitions=1, configs={}): how the fixture kafka_topic creates the topic of this test"


# --- options ----------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(
        "kafka_scope", "how long kafka_broker and kafka_cluster live: session, module, function", default="session"
    )
    group = parser.getgroup("kafka", "Kafka for tests (fenceline)")
    group.addoption(
        "--kafka-shared",
        action="store_true",
        help="all workers of pytest-xdist share one cluster, without faults; otherwise each has its own",
    )
    group.addoption(
        "--kafka-bootstrap-servers",
        metavar="HOST:PORT",
        help="use this cluster, which may be Apache Kafka, instead of starting one; without faults",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)
    config.pluginmanager.register(_Clusters(config), _PLUGIN)


_PLUGIN: Final = "fenceline-clusters"


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    scope = str(config.getini("kafka_scope"))
    if scope not in _SCOPES:
        raise pytest.UsageError(f"kafka_scope = {scope!r}: choose one of {', '.join(_SCOPES)}")
    return scope


# --- fixtures ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def kafka_broker_options() -> dict[str, Any]:
    """Arguments of `LabCluster` for `kafka_broker`; override it to change them."""
    return {}


@pytest.fixture(scope="session")
def kafka_cluster_options() -> dict[str, Any]:
    """Arguments of `LabCluster` for `kafka_cluster`, such as `{"nodes": 5, "security": True}`; override it."""
    return {}


@pytest.fixture(scope=_scope)
def kafka_broker(
    request: pytest.FixtureRequest, kafka_broker_options: dict[str, Any]
) -> Iterator[LabCluster | ConnectedCluster]:
    """One broker, with `bootstrap_servers`."""
    yield from _clusters(request.config).use({"nodes": 1, **kafka_broker_options})


@pytest.fixture(scope=_scope)
def kafka_cluster(
    request: pytest.FixtureRequest, kafka_cluster_options: dict[str, Any]
) -> Iterator[LabCluster | ConnectedCluster]:
    """Three brokers, with `bootstrap_servers`."""
    yield from _clusters(request.config).use({"nodes": 3, **kafka_cluster_options})


@pytest.fixture
def new_kafka_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[..., LabCluster]]:
    """Makes clusters that end with the test: `new_kafka_cluster(3, properties={"num.partitions": 6})`."""
    clusters = _clusters(request.config)
    made: list[LabCluster] = []

    def make(nodes: int = 3, **options: Any) -> LabCluster:
        cluster = clusters.start({"nodes": nodes, **options})
        made.append(cluster)
        return cluster

    try:
        yield make
    finally:
        for cluster in made:
            clusters.end(cluster)


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest) -> Iterator[KafkaTopic]:
    """The name of a topic of this test only, which is deleted afterwards: on `kafka_cluster` if the test uses it,
    otherwise on `kafka_broker`. The marker `kafka_topic` has options of `create_topic`."""
    from fenceline.testing.kafka_helpers import KafkaTopic

    cluster = _cluster_of(request)
    marker = request.node.get_closest_marker("kafka_topic")
    topic = cluster.create_topic(**({} if marker is None else marker.kwargs))
    yield KafkaTopic(topic, cluster.bootstrap_servers)
    _delete(cluster, topic)


@pytest.fixture
def kafka_faults(request: pytest.FixtureRequest) -> ClusterFaults:
    """The faults of the cluster that the test uses; they end with the test."""
    return _cluster_of(request).faults  # type: ignore[attr-defined, no-any-return]


def _cluster_of(request: pytest.FixtureRequest) -> KafkaHelpers:
    name = next((each for each in ("kafka_cluster", "kafka_broker") if each in request.fixturenames), "kafka_broker")
    cluster: KafkaHelpers = request.getfixturevalue(name)
    return cluster


def _delete(cluster: KafkaHelpers, topic: str) -> None:
    from fenceline.errors import ErrorCode, PeerError

    try:
        cluster.delete_topic(topic)
    except PeerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise


# --- clusters of the session ------------------------------------------------------------------------------------------


def _clusters(config: pytest.Config) -> _Clusters:
    found = config.pluginmanager.get_plugin(_PLUGIN)
    assert isinstance(found, _Clusters)
    return found


class _Clusters:
    """The running clusters, and what has happened to them since the present test began."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._running: list[LabCluster] = []
        self._marks: dict[LabCluster, tuple[int, dict[int, int]]] = {}
        """The mark of the timeline and the sizes of the logs at the beginning of the test."""
        self._shared: LabCluster | None = None

    # --- their lives

    def use(self, options: dict[str, Any]) -> Iterator[LabCluster | ConnectedCluster]:
        """A cluster for a fixture."""
        external = self._config.getoption("--kafka-bootstrap-servers") or self._shared_address()
        if external:
            from fenceline.testing.connected import ConnectedCluster

            connected = ConnectedCluster(external)
            yield connected
            connected.close()
            return
        cluster = self.start(options)
        try:
            yield cluster
        finally:
            self.end(cluster)

    def start(self, options: dict[str, Any]) -> LabCluster:
        from fenceline.testing.lab.cluster import LabCluster

        cluster = LabCluster(**options).start()
        self._running.append(cluster)
        self._mark(cluster)
        return cluster

    def end(self, cluster: LabCluster) -> None:
        self._running.remove(cluster)
        self._marks.pop(cluster, None)
        cluster.close()

    # --- workers of pytest-xdist

    def _shared_address(self) -> str | None:
        given = getattr(self._config, "workerinput", {}).get("kafka_bootstrap_servers")
        return None if given is None else str(given)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker of pytest-xdist begins."""
        if self._config.getoption("--kafka-shared"):
            if self._shared is None:
                from fenceline.testing.lab.cluster import LabCluster

                self._shared = LabCluster(3).start()
            node.workerinput["kafka_bootstrap_servers"] = self._shared.bootstrap_servers

    def pytest_unconfigure(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    # --- tests

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The first cluster starts sooner if its preparation begins now."""
        names = {name for item in session.items for name in getattr(item, "fixturenames", ())}
        if names.isdisjoint(_FIXTURES) or session.config.option.collectonly:
            return
        if not (self._config.getoption("--kafka-bootstrap-servers") or self._shared_address()):
            from fenceline.testing.lab import forking

            forking.prepare()

    def pytest_runtest_setup(self) -> None:
        for cluster in self._running:
            self._mark(cluster)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Faults end with the test, before its fixtures, whose clients want to close. A cluster that cannot be mended
        fails the teardown."""
        for cluster in self._running:
            cluster.faults.undo_all()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        """The report of a failing test says what happened to its clusters."""
        outcome: Any = yield
        report: pytest.TestReport = outcome.get_result()
        if report.failed and not {"kafka_topic", "kafka_faults", *_FIXTURES}.isdisjoint(
            getattr(item, "fixturenames", ())
        ):
            for number, cluster in enumerate(self._running, 1):
                which = f" {number}" if len(self._running) > 1 else ""
                report.sections += _sections(cluster, which, *self._marks[cluster])

    def _mark(self, cluster: LabCluster) -> None:
        sizes = {place.node_id: place.log_file.stat().st_size for place in cluster.processes.layout.nodes}
        self._marks[cluster] = (cluster.timeline.mark(), sizes)


def _sections(cluster: LabCluster, which: str, mark: int, sizes: dict[int, int]) -> list[tuple[str, str]]:
    """What a report says of a cluster: the timeline, the losses, the last lines of the logs."""
    sections = []
    timeline = cluster.timeline.text(mark)
    if timeline:
        sections.append((f"Kafka{which}: faults, elections and ends of nodes during the test", timeline))
    losses = _losses(cluster)
    if losses:
        sections.append((f"Kafka{which}: lost records (all tests)", losses))
    for node, start in sizes.items():
        lines = cluster.log(node, start=start).splitlines()
        if lines:
            shown = "\n".join(_readable(line) for line in lines[-_LOG_LINES:])
            sections.append((f"Kafka{which}: log of node {node} during the test (last {_LOG_LINES} lines)", shown))
    return sections


def _readable(line: str) -> str:
    """A log line of JSON as text."""
    try:
        fields: dict[str, Any] = json.loads(line)
        head = f"{fields.pop('timestamp')[11:23]} {fields.pop('level')} {fields.pop('room')}: {fields.pop('event')}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return line
    return "  ".join([head, *(f"{name}={value}" for name, value in fields.items())])


def _losses(cluster: LabCluster) -> str:
    from fenceline.errors import FencelineError

    if not any(cluster.processes.status_of(node).state == "running" for node in cluster.broker_ids):
        return "not known: no broker runs"
    try:
        return "\n".join(f"{each.topic}-{each.partition}: {each}" for each in cluster.losses(timeout_s=2))
    except (FencelineError, TimeoutError, OSError) as error:
        return f"not known: {error}"
