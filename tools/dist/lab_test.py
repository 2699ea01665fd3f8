"""`fenceline lab` of an installation; run by its pytest, with no other file of this project."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen


def test_a_cluster_by_http() -> None:
    command = [str(Path(sys.executable).with_name("fenceline")), "lab", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lab:
        try:
            assert lab.stdout is not None
            url = json.loads(lab.stdout.readline())["url"]

            def ask(method: str, path: str, fields: dict[str, Any] | None = None) -> Any:
                body = None if fields is None else json.dumps(fields).encode()
                headers = {"Content-Type": "application/json"}
                with urlopen(Request(url + path, body, headers, method=method), timeout=60) as answer:
                    text = answer.read()
                return json.loads(text) if text else None

            cluster = "/v1/clusters/" + ask("POST", "/v1/clusters", {"nodes": 3})["id"]
            ask("POST", f"{cluster}/topics", {"name": "orders"})
            made = ask("POST", f"{cluster}/situations/unclean_election", {"topic": "orders", "lose": 20})
            assert len(made["lost"]) == 20
            ask("DELETE", cluster)
        finally:
            lab.terminate()
    assert lab.returncode == 0
