"""Kafka's own command line tools: their output for a Fenceline node equals that for Kafka.

Each step runs a command on both servers at the same time; outputs are compared without values that differ between any
two servers (addresses, ids, times, file sizes).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fenceline.local_cluster import reaper
from fenceline.testing.apache_kafka import ApacheKafka, java_command, tool_options
from fenceline.testing.node import EmbeddedNode

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]

_TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
}


_PATIENT = {
    "producer": ("--request-timeout-ms", "60000"),
    "consumer-groups": ("--timeout", "60000"),
    "consumer-perf": ("--timeout", "120000"),
}
"""Their own defaults are a few seconds, which a busy machine takes."""


def tool(name: str, *arguments: str, stdin: str = "") -> str:
    """Run a tool to its end; a nonzero exit code is added in the first line."""
    command = java_command(_TOOLS[name], *arguments, heap="256m", jvm_options=tool_options())
    code, printed = reaper.run(command, stdin=stdin, timeout_s=200)
    out = "\n".join(line for line in printed.splitlines() if not line.startswith("SLF4J"))
    return out if code == 0 else f"exit code {code}\n{out}"


_SAME = (
    (re.compile(r"(127\.0\.0\.1|localhost|[a-z0-9-]+):\d{4,5}"), "HOST:PORT"),
    (re.compile(r"\b127\.0\.0\.1\b|\blocalhost\b"), "HOST"),
    (re.compile(r"\b(port|PORT)=?\s*\d{4,5}"), "PORT"),
    (re.compile(r"TopicId: \S{22}"), "TopicId: ID"),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "UUID"),
    (re.compile(r"/\S*/data\b"), "DIR"),
    (re.compile(r"(Cluster ID: )\S+"), r"\1ID"),
    (re.compile(r"Epoch: \d+"), "Epoch: N"),
    (re.compile(r'"size":\d+'), '"size":N'),
    (re.compile(r" +"), " "),
)


def same(printed: str) -> list[str]:
    for pattern, replacement in _SAME:
        printed = pattern.sub(replacement, printed)
    return sorted(line.strip() for line in printed.splitlines() if line.strip())


@dataclass
class Both:
    """A Kafka and a node; `run` runs a command on both, records differences, and returns the node's output."""

    kafka: ApacheKafka
    node: EmbeddedNode
    threads: ThreadPoolExecutor
    differences: list[str] = field(default_factory=list)

    def run(self, name: str, *arguments: str, stdin: str = "", compare: bool = True) -> str:
        def one(bootstrap: str) -> str:
            return tool(name, "--bootstrap-server", bootstrap, *_PATIENT.get(name, ()), *arguments, stdin=stdin)

        theirs, ours = self.threads.map(one, (self.kafka.bootstrap, self.node.bootstrap))
        if compare and same(theirs) != same(ours):
            self.differences.append(f"--- {name} {' '.join(arguments)}\nKafka:\n{theirs}\nwe:\n{ours}")
        return ours

    def check(self) -> None:
        assert not self.differences, "\n".join(self.differences)


@pytest.fixture
def both(apache_kafka: ApacheKafka, fenceline_node: EmbeddedNode) -> Iterator[Both]:
    with ThreadPoolExecutor(2) as threads:
        yield Both(apache_kafka, fenceline_node, threads)


def test_topics_and_configs(both: Both) -> None:
    run = both.run
    run("topics", "--create", "--topic", "jt", "--partitions", "3", "--config", "retention.ms=3600000")
    run("topics", "--create", "--topic", "jt")
    run("topics", "--alter", "--topic", "jt", "--partitions", "4")
    run("topics", "--alter", "--topic", "jt", "--partitions", "2")
    assert "PartitionCount: 4" in run("topics", "--describe", "--topic", "jt")
    run("topics", "--describe", "--topic", "not-there")
    entity = ("--entity-type", "topics", "--entity-name", "jt")
    run("configs", "--alter", *entity, "--add-config", "max.message.bytes=2000,cleanup.policy=[compact,delete]")
    run("configs", "--alter", *entity, "--delete-config", "retention.ms")
    run("configs", "--alter", *entity, "--add-config", "no.such=1")
    assert "max.message.bytes=2000" in run("configs", "--describe", *entity)
    run("topics", "--delete", "--topic", "jt")
    both.check()


def test_records_groups_and_offsets(both: Both, tmp_path: Path) -> None:
    run = both.run
    run("topics", "--create", "--topic", "jr", "--partitions", "1")
    lines = "".join(f"k{n}\tvalue {n}\n" for n in range(50))
    for codec in ("none", "zstd"):
        run(
            "producer",
            *("--topic", "jr", "--compression-codec", codec, "--reader-property", "parse.key=true"),
            stdin=lines,
        )
    read = run(
        "consumer",
        *("--topic", "jr", "--group", "jg", "--from-beginning", "--max-messages", "80"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
    )
    assert "Processed a total of 80 messages" in read
    assert "Offset:79\tk29\tvalue 29" in read
    assert re.search(r"jg +jr +0 +80 +100 +20", run("consumer-groups", "--describe", "--group", "jg"))
    run("consumer-groups", "--describe", "--group", "jg", "--state")
    run("consumer-groups", "--describe", "--group", "no-such-group")
    reset = ("--reset-offsets", "--group", "jg", "--topic", "jr")
    run("consumer-groups", *reset, "--to-offset", "10", "--execute")
    run("consumer-groups", "--delete-offsets", "--group", "jg", "--topic", "jr")
    run("consumer-groups", "--delete", "--group", "jg")
    for at in ("-1", "-2", "0"):
        run("get-offsets", "--topic", "jr", "--time", at)
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps({"version": 1, "partitions": [{"topic": "jr", "partition": 0, "offset": 30}]}))
    assert "low_watermark: 30" in run("delete-records", "--offset-json-file", str(path))
    run("transactions", "describe-producers", "--topic", "jr", "--partition", "0", compare=False)
    both.check()


def test_the_cluster(both: Both) -> None:
    run = both.run
    run("cluster", "cluster-id", compare=False)
    run("cluster", "list-endpoints")
    run("features", "describe")
    run("topics", "--create", "--topic", "jc", "--partitions", "2")
    run("log-dirs", "--describe", "--topic-list", "jc")
    spoken = run("broker-api-versions", compare=False)
    assert "Produce(0): 0 to 13 [usable: 13]" in spoken
    both.check()


def test_performance_tools(both: Both) -> None:
    run = both.run
    run("topics", "--create", "--topic", "jp", "--partitions", "2")
    done = run(
        "producer-perf",
        *("--topic", "jp", "--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
        compare=False,
    )
    assert "20000 records sent" in done
    read = run("consumer-perf", "--topic", "jp", "--num-records", "20000", compare=False)
    figures = read.splitlines()[-1].split(", ")
    assert int(figures[4]) >= 20000, read
    both.check()


def test_segment_dumps_are_equal(both: Both) -> None:
    """The same batches were written by the tools to both; DumpLogSegments prints the same and finds no error."""
    run = both.run
    run("topics", "--create", "--topic", "jd", "--partitions", "1")
    run("producer", "--topic", "jd", "--sync", stdin="".join(f"line {n}\n" for n in range(5)))
    shown = []
    for server in (both.kafka, both.node):
        directory = server.log_dir / "jd-0"
        files: Sequence[str] = [str(path) for path in sorted(directory.glob("*.log"))]
        shown.append(tool("dump-log", "--deep-iteration", "--print-data-log", "--files", ",".join(files)))
    theirs, ours = ([re.sub(r"(crc|producerId|size|position): \d+", r"\1", line) for line in same(s)] for s in shown)
    assert "isvalid: false" not in shown[1]
    assert ours == theirs
