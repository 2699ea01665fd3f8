"""Whether a streaming query keeps state, as far as its source can know.

Owns the one question that decides whether a stream may go back: state that Spark keeps (an aggregation, a join,
deduplication) has taken in the records that a log lost, and a source cannot take them out again. A Python source sees
neither the query's plan nor the place of its checkpoint (`pyspark.md` S9). So the option `statefulQuery` says it, or
the option `checkpointLocation` names the checkpoint, where Spark has a folder `state` as soon as a stateful query has
run a batch. A checkpoint counts only if its newest entry holds the very offset of this query, with the id that a query
gives its offsets: another query's, which may stand at the same place, says nothing. What is not known counts as state.

Never writes to a checkpoint, and never decides what a loss means (`policy`).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark_fenceline.checkpoint_files import (
    FORMAT,
    has_files_below,
    numbered,
    open_checkpoint,
    read_text,
    source_lines,
)

_log = logging.getLogger("pyspark_fenceline")
QUERY: Final = "query"
"""Of an offset's JSON: the id that the query gave itself when it began."""


@dataclass(frozen=True, slots=True)
class StateHint:
    """What the options say. `is_stateful`: the option `statefulQuery`, None where it is not given. `checkpoint`: the
    option `checkpointLocation`; `storage`: settings of the object store that it is in."""

    is_stateful: bool | None = None
    checkpoint: str | None = None
    storage: Mapping[str, str] | None = None


SAYS_NOTHING: Final = StateHint()


@dataclass(frozen=True, slots=True)
class Stateless:
    """The query keeps no state, or has not kept any until now."""


@dataclass(frozen=True, slots=True)
class Stateful:
    """The query keeps state. `because`: how that is known, as the beginning of a sentence."""

    because: str


@dataclass(frozen=True, slots=True)
class NotKnown:
    """`because`: why, as the beginning of a sentence."""

    because: str


QueryState = Stateless | Stateful | NotKnown


def query_state(hint: StateHint, offset: Mapping[str, Any]) -> QueryState:
    """Whether the query whose newest planned batch ends at `offset` (as the checkpoint has it) keeps state."""
    found = _in_checkpoint(hint, offset) if hint.checkpoint else None
    match found, hint.is_stateful:
        case Stateful(), _:
            return found
        case _, True:
            return Stateful("The option statefulQuery says that the query keeps state")
        case _, False:
            return Stateless()
        case None, None:
            return NotKnown("Whether the query keeps state is not known")
    assert found is not None, "the other cases are above"
    return found


def _in_checkpoint(hint: StateHint, offset: Mapping[str, Any]) -> QueryState:
    assert hint.checkpoint is not None, "asked before"
    place = hint.checkpoint
    try:
        root = open_checkpoint(place, hint.storage)
        batches = numbered(root, "offsets")
        if not batches:
            return NotKnown(f"checkpointLocation {place} holds no checkpoint that this source can read")
        lines = source_lines(read_text(root, f"offsets/{batches[-1]}"))
        if lines is None:
            return NotKnown(f"The checkpoint {place} is not of the format {FORMAT}, the only one that is known")
        if not any(_is_same(line, offset) for line in lines):
            return NotKnown(f"checkpointLocation {place} is another query's checkpoint, or is not up to date")
        if has_files_below(root, "state"):
            return Stateful(f"The query keeps state ({place}/state)")
        if QUERY not in offset:
            return NotKnown(f"The newest batch in {place} is of a source that writes no id of the query")
        return Stateless()
    except Exception as error:
        # An object store, credentials, a newer Spark: whatever it is, the checkpoint says nothing.
        _log.info("the checkpoint %s cannot be read", place, exc_info=True)
        return NotKnown(f"checkpointLocation {place} cannot be read ({type(error).__name__}: {error})")


def _is_same(line: str, offset: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads(line) == offset)
    except ValueError:
        return False


FIRST_BATCH: Final = (
    "It happened while the query's first batch read it, before it is known whether the query keeps state. Nothing of "
    "the batch is committed: start the query again."
)
_WAYS_OUT: Final = (
    "start it with a new checkpointLocation and an empty sink, and with includeRetractions, so that it takes lost rows "
    'back the next time; or derive its result from the changes of a table. See "State" in docs/spark.md.'
)


def refusal_to_rewind(state: QueryState) -> str | None:
    """Why a query in that state may not go back behind a truncation, and the ways out; None where it may."""
    match state:
        case Stateless():
            return None
        case Stateful(because):
            return (
                f"{because}, which has taken the lost records in and would stay wrong, so onTruncation=rewind does not "
                f"apply. Ways out: {_WAYS_OUT}"
            )
        case NotKnown(because):
            return (
                f"{because}, and state would stay wrong, so onTruncation=rewind does not apply. If the query keeps no "
                'state, add the source option statefulQuery="false" and start it again: it goes back. If it does, '
                f"{_WAYS_OUT}"
            )
