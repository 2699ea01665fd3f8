"""The examples of examples/lab with their own toolchains, where these are there.

What they download and compile is kept in .cache/examples; later runs need no network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import httpx2
import pytest

from fenceline.local_cluster import reaper
from tests.conftest import need_java, unavailable
from tests.spark.conftest import CONNECTOR
from tests.support.laboratory import laboratory

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

ROOT: Final = Path(__file__).parents[3]
EXAMPLES: Final = ROOT / "examples" / "lab"
CACHE: Final = ROOT / ".cache" / "examples"
_RUN_S: Final = 1100


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with laboratory() as running:
        yield running.url
        # Each example has ended its clusters itself.
        assert httpx2.get(f"{running.url}/v1/clusters").json() == []


def need(*tools: str) -> None:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if missing:
        unavailable(f"{', '.join(missing)} is missing")


def run(folder: Path, *command: str, **environment: str) -> str:
    """Run a command to its end, in a process group that ends with the tests; what it printed."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    code, printed = reaper.run(["env", "-C", str(folder), *settings, "setsid", *command], timeout_s=_RUN_S)
    assert code == 0, printed
    return printed


def once(folder: Path, files: list[Path], prepare: Callable[[], object]) -> bool:
    """Call `prepare` unless it was called for these contents; whether it was before."""
    digest = hashlib.sha256(b"".join(each.read_bytes() for each in files)).hexdigest()
    stamp = folder / ".prepared"
    if stamp.exists() and stamp.read_text() == digest:
        return True
    folder.mkdir(parents=True, exist_ok=True)
    prepare()
    stamp.write_text(digest)
    return False


def test_junit(address: str, tmp_path: Path) -> None:
    need_java()
    need("mvn")
    repository = CACHE / "m2"
    options = ("mvn", "-B", "-ntp", f"-Dmaven.repo.local={repository}", f"-Dlab.build={tmp_path}")

    def test(*more: str) -> str:
        return run(EXAMPLES / "junit5", *options, *more, "test", FENCELINE_LAB=address)

    printed = [""]
    if once(repository, [EXAMPLES / "junit5" / "pom.xml"], lambda: printed.append(test())):
        printed.append(test("-o"))
    assert re.search(r"Tests run: 2, Failures: 0, Errors: 0, Skipped: 0", printed[-1]), printed[-1]


def test_go(address: str) -> None:
    need("go")
    cache = CACHE / "go"
    settings: Mapping[str, str] = {
        "GOMODCACHE": str(cache / "mod"),
        "GOCACHE": str(cache / "build"),
        "GOFLAGS": "-modcacherw -mod=readonly -buildvcs=false",
        "FENCELINE_LAB": address,
    }
    folder = EXAMPLES / "go"
    once(cache, [folder / "go.mod", folder / "go.sum"], lambda: run(folder, "go", "mod", "download", **settings))
    printed = run(folder, "go", "test", "-count=1", "-v", "./...", **settings, GOPROXY="off")
    assert printed.count("--- PASS") == 2, printed


def test_node(address: str) -> None:
    need("node", "npm")
    folder, cache = EXAMPLES / "node", CACHE / "node"

    def install() -> None:
        for name in ("package.json", "package-lock.json", ".npmrc"):
            shutil.copy(folder / name, cache)
        settings = {}
        if Path("/usr/include/node/node.h").exists():
            # Without the download of a compiled librdkafka: its releases cannot be reached from every machine.
            need("make", "g++")
            settings = {"CKJS_LINKING": "dynamic", "npm_config_nodedir": "/usr"}
        run(cache, "npm", "ci", **settings)

    once(cache, [folder / "package.json", folder / "package-lock.json"], install)
    for source in folder.glob("*.js"):
        shutil.copy(source, cache)
    printed = run(cache, "npm", "test", FENCELINE_LAB=address)
    assert re.search(r"^# pass 2$", printed, re.MULTILINE), printed


@pytest.mark.spark
def test_pyspark(tmp_path: Path) -> None:
    need_java()
    if not list(CONNECTOR.glob("*.jar")):
        unavailable("Spark's Kafka connector is missing: run `make jars`")
    copy = shutil.copytree(EXAMPLES / "pyspark", tmp_path / "pyspark", ignore=shutil.ignore_patterns("__pycache__"))
    pytest_command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=0", str(copy))
    environment = {
        "SPARK_KAFKA_JARS": str(CONNECTOR),
        "PYTHONPATH": os.pathsep.join(str(each) for each in (ROOT / "src",)),
        "TMPDIR": str(tmp_path),
    }
    printed = run(copy, *pytest_command, **environment)
    assert re.search(r"^3 passed", printed, re.MULTILINE), printed
