"""Whether a streaming query keeps state, as far as its source can know.

Owns the decision whether a stream may rewind: Spark's state (an aggregation, a join, deduplication) contains the
records that a log lost, and a source cannot remove them from it. A Python source sees neither the query's plan nor its
checkpoint location (`pyspark.md` S9). So the option `statefulQuery` states it, or the option `checkpointLocation` names
the checkpoint, which has a folder `state` once a stateful query has run a batch. A checkpoint counts only if its newest
entry contains exactly this query's offset, including the query's id: that of another query at the same position proves
nothing. An unknown query counts as stateful.

Never writes to a checkpoint, and never decides what a loss means (`policy`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark_fenceline.common.checkpoint_files import (
    FORMAT,
    has_files_below,
    numbered,
    open_checkpoint,
    read_text,
    source_lines,
)

_log = logging.getLogger("pyspark_fenceline")
QUERY: Final = "query"
"""Key in an offset's JSON: the id that the query chose at its start."""


@dataclass(frozen=True, slots=True)
class StateHint:
    """The options about state. `is_stateful`: the option `statefulQuery`, None if not given. `checkpoint`: the option
    `checkpointLocation`; `storage`: settings of its object store."""

    is_stateful: bool | None = None
    checkpoint: str | None = None
    storage: Mapping[str, str] | None = field(default=None, repr=False)


NO_HINT: Final = StateHint()


@dataclass(frozen=True, slots=True)
class Stateless:
    """The query keeps no state, or has not kept any so far."""


@dataclass(frozen=True, slots=True)
class Stateful:
    """The query keeps state. `because`: how this is known, as the start of a sentence."""

    because: str


@dataclass(frozen=True, slots=True)
class NotKnown:
    """`because`: why, as the start of a sentence."""

    because: str


QueryState = Stateless | Stateful | NotKnown


def query_state(hint: StateHint, offset: Mapping[str, Any]) -> QueryState:
    """Whether the query whose newest planned batch ends at `offset` (in its checkpoint form) keeps state."""
    found = _in_checkpoint(hint, offset) if hint.checkpoint else None
    match found, hint.is_stateful:
        case Stateful(), _:
            return found
        case _, True:
            return Stateful("The option statefulQuery says that the query keeps state")
        case _, False:
            return Stateless()
        case None, None:
            return NotKnown("It is not known whether the query keeps state")
    assert found is not None, "the other cases are above"
    return found


def _in_checkpoint(hint: StateHint, offset: Mapping[str, Any]) -> QueryState:
    assert hint.checkpoint is not None, "asked before"
    place = hint.checkpoint
    try:
        root = open_checkpoint(place, hint.storage)
        batches = numbered(root, "offsets")
        if not batches:
            return NotKnown(f"checkpointLocation {place} has no checkpoint that this source can read")
        lines = source_lines(read_text(root, f"offsets/{batches[-1]}"))
        if lines is None:
            return NotKnown(f"The checkpoint {place} is not in the supported format {FORMAT}")
        if not any(_is_same(line, offset) for line in lines):
            return NotKnown(f"checkpointLocation {place} is another query's checkpoint, or is out of date")
        if has_files_below(root, "state"):
            return Stateful(f"The query keeps state ({place}/state)")
        if QUERY not in offset:
            return NotKnown(f"The newest batch in {place} has no query id")
        return Stateless()
    except Exception as error:
        # An object store, credentials, a newer Spark: in each case the state is unknown.
        _log.info("the checkpoint %s cannot be read", place, exc_info=True)
        return NotKnown(f"checkpointLocation {place} cannot be read ({type(error).__name__}: {error})")


def _is_same(line: str, offset: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(line) == offset)
    except ValueError:
        return False


FIRST_BATCH: Final = (
    "It happened while the query's first batch was being read, before it is known whether the query keeps state. "
    "Nothing of the batch is committed: start the query again."
)
_ALTERNATIVES: Final = (
    "start it with a new checkpointLocation, an empty sink and includeRetractions, so that it retracts lost rows in "
    'future; or derive its result from the changes of a table. See "State" in docs/spark.md.'
)


def why_no_rewind(state: QueryState) -> str | None:
    """Why a query in that state must not rewind after a truncation, and what to do; None if it may."""
    match state:
        case Stateless():
            return None
        case Stateful(because):
            return (
                f"{because}, which includes the lost records and would stay wrong, so onTruncation=rewind does not "
                f"apply. Options: {_ALTERNATIVES}"
            )
        case NotKnown(because):
            return (
                f"{because}, and state would stay wrong, so onTruncation=rewind does not apply. If the query keeps no "
                'state, add the source option statefulQuery="false" and start it again: it rewinds. If it does, '
                f"{_ALTERNATIVES}"
            )
