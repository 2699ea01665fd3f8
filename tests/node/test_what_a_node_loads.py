"""A node starts and serves without the libraries of the pipeline: no pyarrow, no PySpark, no pandas. Without TLS, it
does not load the library of it either, which is a quarter of its memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fenceline.client.admin.admin import Admin
from fenceline.client.consumer.consumer import Consumer
from fenceline.client.producer.producer import Producer
from fenceline.testing.node import EmbeddedNode

HEAVY = ("pyarrow", "pyspark", "py4j", "pandas", "numpy", "deltalake")
OF_TLS = "cryptography"


def test_no_module_of_a_node_imports_them() -> None:
    program = f"""
import importlib, pkgutil, sys
import fenceline.cli.app, fenceline.cli.start, fenceline.node
for found in pkgutil.walk_packages(fenceline.node.__path__, "fenceline.node."):
    importlib.import_module(found.name)
print(sorted({{name.split(".")[0] for name in sys.modules}} & set({HEAVY!r})))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what a process has loaded")
def test_a_serving_node_has_not_loaded_them(node: EmbeddedNode) -> None:
    with Admin(node.bootstrap) as admin, Producer(node.bootstrap) as producer:
        admin.create_topics(["loads"])
        producer.send("loads", b"value").result(60)
    with Consumer(node.bootstrap, **{"group.id": "loads", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["loads"])
        found = []
        while not found:
            found = consumer.poll(1_000)
        consumer.commit()
    mapped = Path(f"/proc/{node.pid}/maps").read_text()
    assert "python" in mapped
    assert [name for name in (*HEAVY, OF_TLS) if f"/{name}/" in mapped] == []
