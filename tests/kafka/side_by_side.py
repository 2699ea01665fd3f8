"""Two clusters of three nodes, Kafka and Fenceline, and Kafka's tools run with the same arguments on both.

Owns the values that differ between any two clusters (addresses, ids, folders, times) and removes them from the output.

In a command's arguments `@brokers` and `@controllers` stand for the addresses of a cluster, `@broker1` for that of one
node, `@dir1` for its data directory, `@id1` for the id of its directory, `@config1` for its properties, and `@root` for
the cluster's folder.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from difflib import ndiff
from pathlib import Path
from typing import Final

from fenceline.client.admin.admin import Admin
from fenceline.testing.mixed_cluster import CLUSTER_ID, COMBINED, CONTROLLER, MixedCluster
from fenceline.testing.waiting import eventually
from tests.kafka.tool_jvm import Told, ToolJvm

_READS: Final = frozenset({"--describe", "--list", "describe", "list-endpoints"})
"""Words of commands that change nothing, and may be asked again until all nodes know what was changed."""
_PATIENCE_S: Final = 10.0
_OF_OURS: Final = (
    "fenceline.",
    "leader.imbalance.per.broker.percentage=",
    "metadata.snapshot.min.changed_records.ratio=",
    "metadata.start.offset.lag.time.max.ms=",
)
"""How lines about settings begin that Kafka does not have."""

VOTERS: Final = 3
LATE: Final = 4
"""A controller that is formatted to join, and not started."""

_SETTINGS: Final = {"metadata.log.max.record.bytes.between.snapshots": "3000"}
"""So small that there are snapshots to look at."""

_SAME: Final = (
    (re.compile(r"^\s+at .*\n", re.MULTILINE), ""),
    (re.compile(r"\b\d{13}\b"), "TIME"),
    (re.compile(r"(TopicId: )\S{22}"), r"\1TOPIC-ID"),
    (re.compile(r"[ \t]+"), " "),
)


@dataclass(eq=False)
class Side:
    """One cluster, and the JVM that runs the tools."""

    cluster: MixedCluster
    jvm: ToolJvm

    @property
    def words(self) -> Mapping[str, str]:
        """The values of the placeholders with an `@`."""
        nodes = self.cluster.nodes
        found = {
            "@brokers": ",".join(node.bootstrap for node in nodes[:VOTERS]),
            "@controllers": ",".join(node.controller for node in nodes[:VOTERS]),
            "@cluster": CLUSTER_ID,
            "@root": str(self.cluster.root),
        }
        for node in nodes:
            found |= {
                f"@broker{node.node_id}": node.bootstrap,
                f"@controller{node.node_id}": node.controller,
                f"@dir{node.node_id}": str(node.log_dir),
                f"@id{node.node_id}": node.directory_id,
                f"@config{node.node_id}": str(node.properties_file),
            }
        return found

    def fill(self, text: str) -> str:
        """The text with this side's placeholder values."""
        words = self.words
        return re.sub(r"@[a-z]+\d*", lambda found: words.get(found[0], found[0]), text)

    def run(self, name: str, *arguments: str) -> Told:
        """Runs a tool with unchanged output."""
        return self.jvm.run(name, *map(self.fill, arguments))

    def same(self, printed: str) -> list[str]:
        """The lines without cluster-specific values, sorted, since the tools print in no fixed order."""
        for node in self.cluster.nodes:
            for value, name in (
                (str(node.log_dir), "DIR"),
                (str(node.root), "FOLDER"),
                (node.bootstrap, "BROKER"),
                (node.controller, "CONTROLLER"),
                (node.directory_id, "DIRECTORY"),
                (f" {node.port} ", " PORT"),
            ):
                printed = printed.replace(value, f"{name}-{node.node_id}")
        printed = printed.replace(str(self.cluster.root), "ROOT")
        for pattern, replacement in _SAME:
            printed = pattern.sub(replacement, printed)
        lines = (line.strip() for line in printed.splitlines())
        return sorted(line for line in lines if line and not line.startswith(_OF_OURS))

    def settle(self) -> None:
        """Wait until every broker has applied all committed metadata.

        For Kafka that is the high watermark, which it advances twice a second. For Fenceline it is the leader node's
        metadata: it applies a change before it responds, and brokers do not count voter records.
        """

        def look() -> tuple[int, int]:
            leader = self.cluster.leader()
            return leader.node_id, int(leader.describe_quorum().high_watermark)

        leader_id, committed = eventually(look, f"a leader of {self.cluster.root.name} with a high watermark")

        def all_know() -> bool:
            self.cluster.check_running()
            with Admin(self.words["@brokers"]) as admin:
                known = {node_id: node.finalized_epoch for node_id, node in admin.describe_features().items()}
            wanted = committed - 1 if self.cluster.nodes[0].is_kafka else known[leader_id]
            lagging = len(known) < VOTERS or min(known.values()) < wanted
            assert not lagging, f"known are {known}, wanted {wanted}"
            return True

        eventually(all_know, f"every broker of {self.cluster.root.name} knows the metadata up to {committed}")

    def write(self, name: str, text: str) -> None:
        """Writes a file into the cluster's folder, with placeholders replaced."""
        (self.cluster.root / name).write_text(self.fill(text))


@dataclass(eq=False)
class Both:
    """`run` runs a command on both sides, records differences, and returns Fenceline's output."""

    theirs: Side
    ours: Side
    threads: ThreadPoolExecutor
    differences: list[str] = field(default_factory=list)

    def each(self, name: str, *arguments: str) -> tuple[Told, Told]:
        """The result of each cluster, Kafka's first."""
        theirs, ours = self.threads.map(lambda side: side.run(name, *arguments), self.sides)
        return theirs, ours

    def run(self, name: str, *arguments: str, leave_out: str = "", code: int = 0) -> str:
        """Runs a command that exits with `code` on both. Matches of the pattern `leave_out` are not compared."""
        reported, shown = self._ask(name, arguments, leave_out)
        deadline = time.monotonic() + _PATIENCE_S
        is_read = not _READS.isdisjoint(arguments)
        while is_read and shown[0] != shown[1] and time.monotonic() < deadline:
            reported, shown = self._ask(name, arguments, leave_out)
        if not is_read:
            list(self.threads.map(Side.settle, self.sides))
        codes = [each.code for each in reported]
        if shown[0] != shown[1] or codes != [code, code]:
            differing = "\n".join(each for each in ndiff(shown[0], shown[1]) if each[0] in "+-") or "\n".join(shown[1])
            command = f"{name} {' '.join(arguments)}"
            self.differences.append(
                f"=== {command}\n- Kafka's (exit code {codes[0]}), + ours (exit code {codes[1]}):\n{differing}\n"
            )
        return reported[1].printed

    def _ask(self, name: str, arguments: tuple[str, ...], leave_out: str) -> tuple[tuple[Told, Told], list[list[str]]]:
        """The outputs of both, unchanged and as compared."""
        reported = self.each(name, *arguments)
        shown = [side.same(each.printed) for side, each in zip(self.sides, reported, strict=True)]
        if leave_out:
            shown = [sorted(re.sub(leave_out, "...", line) for line in lines) for lines in shown]
        return reported, shown

    def refuse(self, name: str, *arguments: str, leave_out: str = "") -> str:
        """Runs a command that both reject."""
        return self.run(name, *arguments, leave_out=leave_out, code=1)

    def write(self, name: str, text: str) -> None:
        """A file `@root/<name>` on both sides."""
        for side in self.sides:
            side.write(name, text)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.theirs, self.ours

    def check(self) -> None:
        """Raises AssertionError with all differences since the last call."""
        found, self.differences = self.differences, []
        assert not found, "\n".join(found)


@contextmanager
def both_clusters(root: Path, settings: Mapping[str, str] | None = None) -> Iterator[Both]:
    """Started and ready, with a fourth controller that is only formatted on each side. `settings`: properties of all
    nodes."""
    settings = {**_SETTINGS, **(settings or {})}
    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(2))

        def start(kind: str) -> Side:
            jvm = stack.enter_context(ToolJvm())
            prefix = "kafka:" if kind == "kafka" else ""
            kinds = [f"{prefix}{COMBINED}"] * VOTERS + [f"{prefix}{CONTROLLER}"]
            folder = root / kind
            folder.mkdir()
            cluster = MixedCluster(folder, kinds, voters=VOTERS, late=[LATE], settings=settings)
            return Side(stack.enter_context(cluster), jvm)

        theirs, ours = threads.map(start, ("kafka", "ours"))
        for side in (theirs, ours):
            side.cluster.wait_ready()
            side.cluster.wait_complete()
        yield Both(theirs, ours, threads)
