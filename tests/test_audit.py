"""`make audit`: what it says of a database of vulnerabilities that is here, and of one that cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import unavailable

SCRIPT = Path(__file__).parents[1] / "tools" / "audit.py"
FOUND = {"id": "PYSEC-2020-1", "modified": "2020-01-01T00:00:00Z"}


class Database(HTTPServer):
    """Answers as OSV does; `vulnerable` is the name of a package."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.vulnerable = ""
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Database

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["content-length"])))["queries"]
        self.server.asked += [(each["package"]["name"], each["version"]) for each in queries]
        self._answer(
            {
                "results": [
                    {"vulns": [FOUND]} if each["package"]["name"] == self.server.vulnerable else {} for each in queries
                ]
            }
        )

    def do_GET(self) -> None:
        self._answer({**FOUND, "summary": "a weakness", "affected": []})

    def _answer(self, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Not on the terminal."""


@pytest.fixture
def database() -> Iterator[Database]:
    with Database() as found:
        serving = threading.Thread(target=found.serve_forever)
        serving.start()
        try:
            yield found
        finally:
            found.shutdown()
            serving.join()


def audit(url: str, *arguments: str, strict: bool = False) -> tuple[int, str]:
    if not Path(sys.executable).with_name("uv").exists():
        unavailable("uv is not in the environment")
    environment = {**os.environ, "UV_HTTP_RETRIES": "0", "NO_PROXY": "127.0.0.1", "AUDIT_STRICT": "1" if strict else ""}
    command = [sys.executable, str(SCRIPT), "--service-url", url, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=100)
    return ended.returncode, ended.stdout


def test_every_locked_package_is_asked_about(database: Database) -> None:
    code, text = audit(database.url)
    assert (code, "no known vulnerabilities" in text) == (0, True)
    assert {name for name, _ in database.asked} >= {"cryptography", "joserfc", "pyspark", "uvloop", "ruff"}
    assert sorted(version.rpartition(".")[0] for name, version in database.asked if name == "pyspark") == ["4.2", "4.3"]


def test_a_vulnerability_is_a_failure_unless_it_is_ignored(database: Database) -> None:
    database.vulnerable = "joserfc"
    code, text = audit(database.url)
    assert (code, "joserfc" in text, FOUND["id"] in text) == (1, True, True)
    assert audit(database.url, "--ignore", FOUND["id"])[0] == 0


@pytest.mark.parametrize("strict", [False, True])
def test_without_a_network_nothing_is_checked_and_that_is_said(strict: bool) -> None:
    code, text = audit("http://127.0.0.1:1", strict=strict)
    assert "packages were not checked" in text
    assert (code != 0) is strict
