"""Imports of every command: only modules that all commands need are loaded at the start."""

from __future__ import annotations

import json
import subprocess
import sys

CODE = "import fenceline.cli.app, json, sys; print(json.dumps(sorted(sys.modules)))"
ROOMS = ("client", "controller", "groups", "metadata", "node", "quorum", "replica", "testing", "wire")


def test_the_command_tree_loads_neither_client_nor_server() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout)
    assert "fenceline.cli.verify" in loaded
    assert "asyncio" not in loaded
    assert [name for name in loaded if name.startswith(tuple(f"fenceline.{room}" for room in ROOMS))] == []
