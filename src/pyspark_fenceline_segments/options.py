"""Options of the segments source. Owns their names and checks; pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fenceline.errors import OperatorError
from pyspark_fenceline.common.given_options import GivenOptions


class Mode(StrEnum):
    """What a row is."""

    BATCHES = "batches"
    RECORDS = "records"
    FINDINGS = "findings"


_KNOWN: Final = (
    "path",
    "paths",
    "mode",
    "topics",
    "verify",
    "evidence",
    "includeHeaders",
    "failOnDamage",
    "deep",
    "allowGaps",
    "compare",
    "maxPartitions",
)


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    paths: tuple[str, ...]
    mode: Mode = Mode.BATCHES
    topics: frozenset[str] = frozenset()
    """Empty: all."""
    verify: bool = True
    evidence: bool = True
    include_headers: bool = False
    fail_on_damage: bool = True
    deep: bool = False
    allow_gaps: bool = False
    compare: bool = True
    max_partitions: int | None = None


def segment_options(options: Mapping[str, str]) -> SegmentOptions:
    """Parse and check. Raises `OperatorError` with the option's name."""
    given = GivenOptions(options)
    known = {name.lower() for name in _KNOWN}
    unknown = sorted(set(given.names()) - known)
    if unknown:
        raise OperatorError(
            f"Unknown option '{unknown[0]}' of format('fenceline_segments')", f"Its options are {', '.join(_KNOWN)}."
        )
    return SegmentOptions(
        paths=_paths(given),
        mode=mode_of(options),
        topics=frozenset(name.strip() for name in (given.text("topics") or "").split(",") if name.strip()),
        verify=given.boolean("verify", True),
        evidence=given.boolean("evidence", True),
        include_headers=given.boolean("includeHeaders"),
        fail_on_damage=given.boolean("failOnDamage", True),
        deep=given.boolean("deep"),
        allow_gaps=given.boolean("allowGaps"),
        compare=given.boolean("compare", True),
        max_partitions=given.positive("maxPartitions", 1_000_000),
    )


def mode_of(options: Mapping[str, str]) -> Mode:
    text = (GivenOptions(options).text("mode") or Mode.BATCHES.value).strip().lower()
    try:
        return Mode(text)
    except ValueError:
        raise OperatorError(f"Option 'mode' must be batches, records or findings, not '{text}'") from None


def _paths(given: GivenOptions) -> tuple[str, ...]:
    """From `.load(path)`, or `.load([path, ...])`, which Spark passes as JSON."""
    found = []
    if (one := (given.text("path") or "").strip()) != "":
        found.append(one)
    if (text := given.text("paths")) is not None:
        try:
            several = json.loads(text)
        except ValueError:
            several = None
        if not isinstance(several, list) or not all(isinstance(path, str) for path in several):
            raise OperatorError("Option 'paths' must be a JSON array of strings", "Or use .load([path, ...]).")
        found += several
    if not found:
        raise OperatorError(
            "format('fenceline_segments') needs the paths of log directories", "Use .load(path) or .load([path, ...])."
        )
    return tuple(map(_local, found))


def _local(path: str) -> str:
    if path.startswith("file:"):
        return "/" + path[len("file:") :].lstrip("/")
    if "://" in path:
        raise OperatorError(
            f"'{path}' is not a local path",
            "Logs are read as plain files: mount the directory on the driver and workers.",
        )
    return path
