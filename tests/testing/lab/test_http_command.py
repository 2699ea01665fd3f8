"""`fenceline lab` as a process: its port, its end, and the end of what clients leave behind."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2 as httpx
import pytest

from fenceline.errors import OperatorError
from fenceline.testing.lab.http.page import first_minute
from fenceline.testing.lab.http.server import listen
from fenceline.testing.waiting import eventually
from tests.support.laboratory import FENCELINE, Laboratory, laboratory
from tests.support.processes import is_alive

_HOLDS = """
import sys, httpx2
with httpx2.stream("GET", sys.argv[1], timeout=None) as held:
    for line in held.iter_lines():
        print(line, flush=True)
"""


@pytest.fixture(scope="module")
def running() -> Iterator[Laboratory]:
    with laboratory() as found:
        yield found


def refused(*options: str) -> str:
    ended = subprocess.run([*FENCELINE, "lab", *options], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


def test_a_second_laboratory_needs_another_port(running: Laboratory) -> None:
    port = running.url.rpartition(":")[2]
    message = refused("--port", port)
    assert f"Port {port} of 127.0.0.1 is taken" in message
    assert "--port 8091" in message
    with laboratory() as second:
        assert second.url != running.url
        assert httpx.get(f"{second.url}/v1/clusters").json() == []


def test_the_first_minute(running: Laboratory) -> None:
    """The commands that the page and docs/lab.md show, as they stand there."""
    page = (Path(__file__).parents[3] / "docs" / "lab.md").read_text()
    assert textwrap.indent(first_minute("http://127.0.0.1:8090"), "    ") in page
    if shutil.which("curl") is None or "--json" not in _output("curl", "--help", "all"):
        pytest.skip("no curl that knows --json")
    printed = _output("bash", "-ec", first_minute(running.url))
    assert '"records":20' in printed, "a loss receipt"
    assert "unclean election done" in printed
    assert httpx.get(f"{running.url}/v1/clusters").json() == []


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    ("host", "says"),
    [("0.0.0.0", "can be reached by other"), ("::", "can be reached by other"), ("nowhere.invalid", "no address")],
)
def test_only_loopback_addresses(host: str, says: str) -> None:
    with pytest.raises(OperatorError, match=says) as error:
        listen(host, 0)
    assert error.value.advice


def test_other_addresses_if_that_was_asked_for() -> None:
    with listen("0.0.0.0", 0, allow_remote=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_a_killed_client_takes_its_cluster_along(running: Laboratory) -> None:
    path, pid, folder = running.create()
    with subprocess.Popen([sys.executable, "-c", _HOLDS, f"{path}/lease"], stdout=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == "held\n"
        assert httpx.get(path).json()["is_held"]
        client.kill()
    eventually(lambda: httpx.get(path).status_code == 404, "the cluster is gone", wait_s=30)
    eventually(lambda: not is_alive(pid) and not folder.exists(), "nothing is left", wait_s=30)
    assert "held its lease" in httpx.get(path).json()["message"]


def test_a_held_lease_ends_with_its_cluster(running: Laboratory) -> None:
    path, _, _ = running.create()
    with httpx.stream("GET", f"{path}/lease", timeout=60) as held:
        lines = held.iter_lines()
        assert next(lines) == "held"
        assert httpx.delete(path, timeout=60).status_code == 204
        assert list(lines) == []


@pytest.mark.parametrize("how", ["delete", "stop"])
def test_requests_end_with_their_cluster(how: str) -> None:
    with laboratory() as found, ThreadPoolExecutor() as threads:
        path, pid, folder = found.create()
        topic = httpx.post(f"{path}/topics").json()["name"]
        fault = httpx.post(f"{path}/faults", json={"kind": "hang_requests", "api": "Produce"}).json()["id"]
        hit = threads.submit(httpx.get, f"{path}/faults/{fault}?hits=1", timeout=60)
        requests = [
            threads.submit(httpx.post, f"{path}/topics/{topic}/records", json={"values": 1}, timeout=600),
            threads.submit(httpx.get, f"{path}/faults/{fault}?hits=1000&wait_s=600", timeout=600),
            threads.submit(httpx.get, f"{path}/losses?wait_s=600", timeout=600),
            threads.submit(httpx.post, f"{path}/waits/group", json={"group": "g", "wait_s": 600}, timeout=600),
        ]
        assert hit.result().json()["hits"] == 1
        if how == "delete":
            assert httpx.delete(path, timeout=60).status_code == 204
        else:
            found.process.terminate()
            assert found.process.wait(60) == 0
        for request in requests:
            assert request.result(60).status_code == 404
            assert "has ended" in request.result().json()["message"]
        eventually(lambda: not is_alive(pid) and not folder.exists(), "nothing is left", wait_s=30)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_the_laboratory(how: signal.Signals) -> None:
    with laboratory() as found:
        path, pid, folder = found.create()
        assert folder.is_dir()
        with httpx.stream("GET", f"{path}/lease", timeout=60):
            found.process.send_signal(how)
            assert found.process.wait(60) == (-how if how == signal.SIGKILL else 0)
        eventually(lambda: not is_alive(pid) and not folder.exists(), "nothing is left", wait_s=30)
