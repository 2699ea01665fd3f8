"""Brokers under measurement, CPU and memory readings, and result files. Owns how figures are recorded and written."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import psutil

from fenceline.testing.apache_kafka import KAFKA_VERSION, ApacheKafka
from fenceline.testing.node import EmbeddedNode

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
Side = Literal["fenceline", "kafka", "before"]
_BASE: Final = os.environ.get("BENCH_BASE", "")
OTHER_SIDE: Final[Side] = "before" if _BASE else "kafka"
SIDES: Final[tuple[Side, ...]] = ("fenceline", OTHER_SIDE)
"""If `BENCH_BASE` is set to a checkout of another commit, after `make setup`, its nodes run instead of Apache Kafka."""


class Subject(Protocol):
    """A broker under measurement."""

    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def close(self) -> None: ...


def start_fenceline(**options: Any) -> EmbeddedNode:
    node = EmbeddedNode(**options)
    node.start()
    return node


def start_kafka(**options: Any) -> ApacheKafka:
    kafka = ApacheKafka(**options)
    kafka.start()
    return kafka


def start_before(**options: Any) -> EmbeddedNode:
    return start_fenceline(environment=source_of("before"), **options)


def source_of(side: Side) -> dict[str, str]:
    """Environment variables with which a Python process runs the source of this side."""
    return {"PYTHONPATH": str(Path(_BASE).resolve() / "src")} if side == "before" else {}


_STARTERS: dict[Side, Callable[..., Any]] = {
    "fenceline": start_fenceline,
    "kafka": start_kafka,
    "before": start_before,
}
STARTERS: dict[Side, Callable[..., Any]] = {side: _STARTERS[side] for side in SIDES}


@contextmanager
def both(**options: Any) -> Iterator[dict[str, Subject]]:
    """Run both of `SIDES`, with the same broker properties in `overrides`."""
    running: dict[str, Subject] = {}
    try:
        for name, start in STARTERS.items():
            running[name] = start(**options)
        yield running
    finally:
        for subject in running.values():
            subject.close()


@dataclass(slots=True)
class Series:
    """Values of one figure on one side."""

    unit: str
    values: list[float] = field(default_factory=list)

    def add(self, value: float) -> None:
        self.values.append(value)

    def summary(self) -> dict[str, Any]:
        return {
            "unit": self.unit,
            "minimum": min(self.values),
            "median": statistics.median(self.values),
            "maximum": max(self.values),
            "runs": len(self.values),
        }


class Figures:
    """Figures of one benchmark: figure name -> side -> series."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.series: dict[str, dict[str, Series]] = {}
        self.notes: list[str] = []

    def add(self, figure: str, side: str, value: float, unit: str) -> None:
        self.series.setdefault(figure, {}).setdefault(side, Series(unit)).add(value)
        print(f"  {self.name}: {figure} [{side}] {value:,.4g} {unit}", flush=True)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"  {self.name}: {text}", flush=True)

    def as_json(self) -> dict[str, Any]:
        figures = {}
        for figure, sides in self.series.items():
            entry: dict[str, Any] = {side: series.summary() for side, series in sides.items()}
            medians = {side: series.summary()["median"] for side, series in sides.items()}
            reference = next(
                (s for s in ("kafka", "before", "connector", "confluent-kafka", "at least once") if s in medians), None
            )
            if "fenceline" in medians and reference is not None and medians[reference]:
                entry["ratio"] = round(medians["fenceline"] / medians[reference], 3)
            figures[figure] = entry
        return {"figures": figures, "notes": self.notes}


def cpu_seconds(pid: int) -> float:
    """User and system CPU seconds of a process and its descendants, including those that have ended.

    The time of an ended process is counted in the parent that reaped it, so the sum never decreases.
    """
    while True:
        try:
            tree = _tree(pid)
            total = sum(sum(each.cpu_times()[:4]) for each in tree)
            if _tree(pid) == tree:
                return total
        except psutil.NoSuchProcess:
            # A process ended meanwhile; if it was a descendant, its parent has its time now.
            if not psutil.pid_exists(pid):
                raise


def _tree(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def resident_mb(pid: int) -> float:
    return sum(each.memory_info().rss for each in _tree(pid)) / 1e6


@contextmanager
def cpu_of(pid: int) -> Iterator[Callable[[], float]]:
    """CPU seconds of the process since the start of the block."""
    before = cpu_seconds(pid)
    yield lambda: cpu_seconds(pid) - before


def cpu_in(pid: int, wait_s: float, *, sample_s: float = 0.5) -> float:
    """CPU seconds of a process and its descendants in the next `wait_s` seconds, sampled every `sample_s`.

    For mostly idle processes: unlike `cpu_of`, it never counts earlier time of a descendant that ends meanwhile and is
    reaped late (workers of PySpark's daemon). Time after the last sample of such a descendant is not counted.
    """

    def sample() -> dict[psutil.Process, float]:
        seconds = {}
        for each in _tree(pid):
            with suppress(psutil.NoSuchProcess):
                seconds[each] = sum(each.cpu_times()[:2])
        return seconds

    first = sample()
    last = dict(first)
    ends_s = time.monotonic() + wait_s
    while (left_s := ends_s - time.monotonic()) > 0:
        time.sleep(min(sample_s, left_s))
        last |= sample()
    return sum(seconds - first.get(each, 0.0) for each, seconds in last.items())


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fenceline-bench-") as path:
        yield Path(path)


def run_rows(figures: Figures, rows: Mapping[str, Callable[[], None]], *, parts: Collection[str] = ()) -> None:
    """Run the rows in `BENCH_ROWS` (comma-separated), or all except `parts`, which are parts of other rows. The figures
    of each row are written at its end. Raises RuntimeError if a row failed.
    """
    wanted = [name for name in os.environ.get("BENCH_ROWS", "").split(",") if name]
    wanted = wanted or [name for name in rows if name not in parts]
    if unknown := [name for name in wanted if name not in rows]:
        raise ValueError(f"Unknown rows in BENCH_ROWS: {', '.join(unknown)}; known rows: {', '.join(rows)}")
    failed = []
    for name in wanted:
        try:
            rows[name]()
        except Exception:
            traceback.print_exc()
            failed.append(name)
        finally:
            if figures.series:
                write_results({figures.name: figures})
    if failed:
        raise RuntimeError(f"rows of {figures.name} failed: {', '.join(failed)}")


def machine() -> dict[str, Any]:
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "kafka": KAFKA_VERSION,
    }


def commit(root: Path = ROOT) -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + ("-dirty" if git("status", "--porcelain", "--", "src") else "")


def write_results(results: Mapping[str, Figures]) -> Path:
    """Merge into `results/<date>-<commit>.json` and render it as a Markdown table."""
    RESULTS.mkdir(exist_ok=True)
    beside = f"-beside-{commit(Path(_BASE))}" if _BASE else ""
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}-{commit()}{beside}.json"
    known = json.loads(path.read_text()) if path.exists() else {"machine": machine(), "commit": commit(), "results": {}}
    known["measured"] = datetime.now(UTC).isoformat(timespec="seconds")
    for name, figures in results.items():
        found = figures.as_json()
        before = known["results"].get(name, {"figures": {}})
        # Rows may be measured in separate runs.
        known["results"][name] = {**found, "figures": {**before["figures"], **found["figures"]}}
    path.write_text(json.dumps(known, indent=2) + "\n")
    path.with_suffix(".md").write_text(render(known))
    return path


def render(known: Mapping[str, Any]) -> str:
    lines = [
        f"# Figures of commit {known['commit']}",
        "",
        ", ".join(f"{key} {value}" for key, value in known["machine"].items()),
        "",
        "Median (minimum to maximum); ratio is Fenceline over the other side.",
        "",
        "| Benchmark | Figure | Fenceline | Other side | Ratio |",
        "|---|---|---|---|---|",
    ]
    for name, result in known["results"].items():
        for figure, entry in result["figures"].items():
            sides = {key: value for key, value in entry.items() if key != "ratio"}
            ours = sides.pop("fenceline", None)
            others = "; ".join(f"{side}: {_cell(summary)}" for side, summary in sides.items())
            lines.append(f"| {name} | {figure} | {_cell(ours)} | {others or '-'} | {entry.get('ratio', '-')} |")
    for name, result in known["results"].items():
        lines += [f"\n{name}: {note}" for note in result["notes"]]
    return "\n".join(lines) + "\n"


def _cell(summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "-"
    return f"{summary['median']:,.4g} {summary['unit']} ({summary['minimum']:,.4g} to {summary['maximum']:,.4g})"
