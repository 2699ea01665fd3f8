"""Passwords and tokens are in no plan, log, error, checkpoint, event log, table or process list.

A driver runs every source, sink, audit and command against a secured cluster (`secret_steps.py`), with Spark's event
log, its log at INFO and the clients' at DEBUG. Then everything that it has written is searched, and while it runs the
command lines of all processes. Spark's own redaction does not recognize such passwords.

Rules: security.md A64, A69, A71.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from fenceline.client import Admin, NewTopic, Producer
from fenceline.config.properties import read_properties
from fenceline.local_cluster import LocalCluster
from tests.conftest import need_java
from tests.spark.own_process import driver
from tests.spark.secret_steps import COUNT, FAIL

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.together("spark secrets"), pytest.mark.timeout(900)]
OWN: Final = ("driver.properties", "driver.own.properties", "driver.jaas.properties")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    need_java()
    with LocalCluster(1, data_dir=tmp_path_factory.mktemp("cluster"), secure=True) as running:
        yield running


class ProcessList:
    """Looks at the command lines of all processes until it is stopped."""

    def __init__(self, secrets: list[bytes]) -> None:
        self.found: set[str] = set()
        self.looked = 0
        self._secrets = secrets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.05):
            self.looked += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes()
                except OSError:
                    continue
                if any(secret in line for secret in self._secrets):
                    self.found.add(line.replace(b"\0", b" ").decode(errors="replace")[:300])


def forms(secret: str) -> list[bytes]:
    """As it is, and as it would stand in JSON, base64 and hexadecimal text."""
    raw = secret.encode()
    return [raw, json.dumps(secret)[1:-1].encode(), base64.b64encode(raw).rstrip(b"="), raw.hex().encode()]


def prepared(client: dict[str, str], topic: str) -> None:
    with Admin(client) as admin, Producer(client) as producer:
        admin.create_topics([NewTopic(name, 2, 1) for name in (topic, f"{topic}-copy")])
        for number in range(COUNT):
            producer.send(topic, str(number).encode())
        producer.flush()


def assert_readable_events(folder: Path) -> None:
    """So that a search in them finds what they contain."""
    events = b"".join(path.read_bytes() for path in (folder / "events").rglob("events_*"))
    assert events.count(b"SparkListenerSQLExecutionStart") > 1
    assert b"fenceline" in events


@pytest.mark.parametrize("login", ["own", "jaas", "token"])
def test_no_secret_leaves_its_place(cluster: LocalCluster, tmp_path: Path, topic: str, login: str) -> None:
    security = cluster.layout.root / "security"
    properties = security / "librdkafka.properties"
    client = read_properties(properties)
    prepared(client, topic)
    folder = tmp_path / "driver"
    folder.mkdir()
    passwords = json.loads((security / "users.json").read_text())
    secrets = {name: forms(password) for name, password in passwords.items()}
    secrets["signs tokens"] = forms((security / "tokens.secret").read_text())
    with ProcessList([form for each in secrets.values() for form in each]) as processes:
        with driver("secret_steps", folder, properties, login, topic) as running:
            running.await_success(800)
        printed = running.printed
    assert "--- done" in printed
    for step in FAIL:
        assert f"{step.__name__} has not failed" not in printed
    with Admin(client) as admin:
        tokens = admin.describe_delegation_tokens()
    assert bool(tokens) == (login == "token")
    secrets |= {token.token_id: [*forms(token.password), token.hmac.hex().encode()] for token in tokens}
    searched: list[str] = []
    for path in [*tmp_path.rglob("*"), *cluster.layout.root.rglob("*.log")]:
        if path.is_file() and path.name not in OWN:
            searched.append(str(path))
            content = path.read_bytes()
            for name, each in secrets.items():
                assert not any(form in content for form in each), f"the secret of {name} is in {path}"
    assert_readable_events(folder)
    for place in ("/events/", "/checkpoints/to_delta/offsets/", "/table/_delta_log/", "/driver.log", "/node-1/"):
        assert any(place in path for path in searched), f"nothing was written to {place}"
    assert processes.looked > 100
    assert not processes.found


def test_spark_connect_writes_options_to_its_event_log(cluster: LocalCluster, tmp_path: Path, topic: str) -> None:
    """Spark does, not this project. With a config provider they name the password's place."""
    pytest.importorskip("grpc")
    properties = cluster.layout.root / "security" / "librdkafka.properties"
    client = read_properties(properties)
    prepared(client, topic)
    with driver("secret_connect", tmp_path, properties, topic) as running:
        running.await_success(300)
    assert "--- done" in running.printed
    assert_readable_events(tmp_path)
    contents = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"kafka.sasl.password" in content for content in contents)
    assert not any(form in content for content in contents for form in forms(client["sasl.password"]))
