"""What Spark's Python processes do in a micro-batch, and when: spans that they append to files of a directory.

Owns the files of the option `timelineDirectory`: one for each process (`planner-PID.jsonl`, `worker-PID.jsonl`), one
line for each span. Without the option nothing is recorded. A span that cannot be written is dropped: a full disk must
not end a query that reads well. `source.timeline` reads the files.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_log = logging.getLogger("pyspark_fenceline")
PLANNER: Final = "planner"
WORKER: Final = "worker"
_MAX_FILE_BYTES: Final = 16 * 1024 * 1024
"""A process records nothing more in a file of this size (about 150,000 spans)."""


@dataclass(frozen=True, slots=True)
class Span:
    """`begin_ms`, `end_ms`: of the system's clock, with fractions."""

    process: str
    name: str
    begin_ms: float
    end_ms: float

    @property
    def duration_ms(self) -> float:
        return self.end_ms - self.begin_ms


class SpanRecorder:
    """Records spans of one process. `directory` None: records nothing."""

    def __init__(self, directory: str | None, kind: str) -> None:
        self._path = None if directory is None else Path(directory) / f"{kind}-{os.getpid()}.jsonl"

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        if self._path is None:
            yield
            return
        begin_ms = time.time() * 1000
        try:
            yield
        finally:
            self.add(name, begin_ms)

    def add(self, name: str, begin_ms: float) -> None:
        """A span that ends now."""
        if self._path is None:
            return
        line = json.dumps({"name": name, "begin_ms": begin_ms, "end_ms": time.time() * 1000})
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as file:
                if file.tell() < _MAX_FILE_BYTES:
                    file.write(line + "\n")
        except OSError as error:
            self._path = None
            _log.warning("timelineDirectory: nothing more is recorded by this process: %s", error)


def recorded_spans(directory: str | Path) -> list[Span]:
    """All spans of a directory by their begin. Incomplete last lines are ignored."""
    found: list[Span] = []
    for path in sorted(Path(directory).glob("*.jsonl")):
        for line in path.read_text().splitlines():
            try:
                content = json.loads(line)
                found.append(
                    Span(path.stem, str(content["name"]), float(content["begin_ms"]), float(content["end_ms"]))
                )
            except (ValueError, KeyError, TypeError):
                continue
    return sorted(found, key=lambda span: (span.begin_ms, -span.end_ms))
