"""The examples of docs/spark.md, "State": run unchanged, before and after two logs are truncated and grow again."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from deltalake import DeltaTable

from fenceline.testing.node import EmbeddedNode
from tests.spark.conftest import Broker
from tests.spark.cut_log import cut
from tests.spark.queries import keep_equal, tracked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(600)]
PAGE: Final = Path(__file__).parents[2] / "docs" / "spark.md"
OLD: Final = range(150)
FLIGHTS: Final = [*range(100), *range(120, 220)]
"""The final content of the log: 120 to 149 were lost and resent, 100 to 119 were not."""
GATES: Final = [0, 1, 2, 13]


def examples() -> list[str]:
    section = re.search(r"^## State\n(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    return re.findall(r"^```python\n(.*?)^```$", section[1], re.MULTILINE | re.DOTALL)


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode() as running:
        broker = Broker("fenceline", running.bootstrap)
        for topic, kept, lost in (("flights", OLD[:100], OLD[100:]), ("gates", range(3), range(3, 5))):
            broker.create(topic)
            broker.produce(topic, kept)
            broker.produce(topic, lost)
        yield running


def key(flight: int) -> str:
    return f"k{flight % 5}"


class Results:
    """The results of the examples' queries, as a sink would accumulate them."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"spark": spark, "brokers": bootstrap, "lake": str(folder / "lake")}
        for code in examples():
            exec(compile(code, str(PAGE), "exec"), self.names)
        self.newest: dict[str, dict[Any, int]] = {"per_minute": {}, "distinct": {}}
        self.pairs: Counter[tuple[int, int]] = Counter()

    def run(self) -> None:
        self._drain("counts", self.names["keep"])
        self._drain("per_minute", lambda rows, _: self._replace("per_minute", rows))
        self._drain("distinct", lambda rows, _: self._replace("distinct", rows))
        self._drain("seated", self._add_pairs, mode="append")

    def _drain(self, name: str, write: Any, mode: str = "update") -> None:
        writer = self.names[name].writeStream.outputMode(mode).foreachBatch(write).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / name)).start().awaitTermination()

    def _replace(self, name: str, rows: DataFrame) -> None:
        for row in rows.collect():
            *group, number = row
            self.newest[name][tuple(group)] = number

    def _add_pairs(self, rows: DataFrame, _: int) -> None:
        for row in rows.collect():
            self.pairs[int(row.flight), int(row.gate)] += row.change

    def assert_equal_to(self, flights: list[int], gates: list[int]) -> None:
        found = DeltaTable(f"{self.names['lake']}/counts").to_pyarrow_table().to_pylist()
        per_key = Counter(map(key, flights))
        assert {row["key"].decode(): row["flights"] for row in found if row["flights"]} == per_key
        windows = Counter(window.start.timestamp() // 60 for (window,), n in self._some("per_minute") for _ in range(n))
        assert windows == Counter(flight // 60 for flight in flights)
        copies = Counter(int(value) for (_, value), n in self._some("distinct") for _ in range(n))
        assert copies == Counter(flights)
        assert {pair: n for pair, n in self.pairs.items() if n} == {
            (flight, gate): 1 for flight in flights for gate in gates if key(flight) == key(gate)
        }

    def _some(self, name: str) -> list[tuple[Any, int]]:
        return [(group, n) for group, n in self.newest[name].items() if n]

    def changed_counts(self, first_version: int) -> Counter[str]:
        rows = self.names["changed_counts"](first_version).collect()
        return Counter({bytes(row.key).decode(): row.flights for row in rows})


def test_the_examples_are_correct_after_a_truncation(spark: SparkSession, node: EmbeddedNode, tmp_path: Path) -> None:
    def fill_tables() -> None:
        for topic in ("flights", "gates"):
            frame = tracked(spark, node.bootstrap, topic)
            keep_equal(frame, str(tmp_path / "lake" / topic), str(tmp_path / f"{topic}-table"), node.bootstrap)

    fill_tables()
    results = Results(spark, node.bootstrap, tmp_path)
    results.run()
    results.assert_equal_to([*OLD], [*range(5)])
    before = DeltaTable(str(tmp_path / "lake" / "flights")).version()
    counted = results.changed_counts(0)

    node.stop()
    cut(node.log_dir, "flights", 100)
    cut(node.log_dir, "gates", 3)
    node.start()
    broker = Broker("fenceline", node.bootstrap)
    broker.produce("flights", FLIGHTS[100:])
    broker.produce("gates", GATES[3:])
    # The tables are repaired first: the lost rows are only in removed files.
    fill_tables()
    results.run()
    results.assert_equal_to(FLIGHTS, GATES)
    counted.update(results.changed_counts(before + 1))
    assert counted == Counter(map(key, FLIGHTS))
