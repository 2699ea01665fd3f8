"""A checkpoint of `format("fenceline")` written anew as one that Spark's own Kafka source can read.

Owns the translation of Spark's offset log: each line of a Fenceline source becomes `{topic: {partition: offset}}`. What
else is in the checkpoint (the query's id, commits, state, other sources) is copied unchanged, so that the query stays
the same one to its sinks. Topic ids and leader epochs are lost by that. Never changes the checkpoint that it reads,
never writes over anything. Local directories only: the copy takes its name when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition
from pyspark_fenceline.checkpoint_files import (
    FORMAT,
    NO_OFFSET,
    as_local,
    numbered,
    open_checkpoint,
    read_text,
    source_lines,
)
from pyspark_fenceline.offsets import SourceOffset, by_topic, decode

_RUN_ONCE_MORE: Final = (
    "Start the query with the source that wrote the checkpoint, let the batch end, and stop it. Then export."
)


@dataclass(frozen=True, slots=True)
class ExportedCheckpoint:
    """`batch_id`: the newest batch in it. `positions`: the next offset of each partition after that batch."""

    target: str
    batch_id: int
    positions: Mapping[TopicPartition, int]

    def sentence(self) -> str:
        count = len(self.positions)
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        return f"{self.target} has the positions of {partitions} after batch {self.batch_id}, for Spark's Kafka source."


def export_checkpoint(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> ExportedCheckpoint:
    """Write the checkpoint at `source` to `target` in the form of Spark's Kafka source. The query must not run.

    Raises `OperatorError` where `target` is there already, where `source` is no checkpoint of a Fenceline source, and
    where its newest batch is not committed and went back behind a loss, which the other form has no words for.
    """
    held, made = _directory(source), _directory(target)
    if made.exists() and (not made.is_dir() or any(made.iterdir())):
        raise OperatorError(f"{made} is there already", "Name a directory that does not exist.")
    if made.resolve().is_relative_to(held.resolve()):
        raise OperatorError(f"{made} lies inside of the checkpoint {held}", "Name a directory outside of it.")
    entries, positions, newest = _translated(held)
    staged = made.with_name(f".{made.name}.{os.getpid()}")
    try:
        shutil.copytree(held, staged, ignore=_offset_log(held))
        (staged / "offsets").mkdir()
        for batch, text in entries.items():
            (staged / "offsets" / str(batch)).write_text(text)
        staged.rename(made)
    except OSError as error:
        shutil.rmtree(staged, ignore_errors=True)
        raise OperatorError(
            f"The checkpoint can not be written to {made}: {error}", "Check the directory and the room on its disk."
        ) from None
    return ExportedCheckpoint(str(made), newest, positions)


def _directory(place: str | os.PathLike[str]) -> Path:
    text = as_local(os.fspath(place))
    if "://" in text:
        raise OperatorError(
            f"{text} is no local directory", "Copy the checkpoint to one, export it there, and copy the result back."
        )
    return Path(text)


def _offset_log(held: Path) -> Callable[[str, list[str]], list[str]]:
    """For `copytree`: leaves the offset log out."""
    return lambda folder, names: [name for name in names if Path(folder) == held and name == "offsets"]


def _translated(held: Path) -> tuple[dict[int, str], dict[TopicPartition, int], int]:
    """The entries of the offset log in the other form, the positions after the newest one, and its batch's id."""
    root = open_checkpoint(str(held))
    batches, committed = numbered(root, "offsets"), numbered(root, "commits")
    if not batches or not (held / "metadata").is_file():
        raise OperatorError(f"{held} is no checkpoint of a streaming query", "Name the query's checkpointLocation.")
    if not committed:
        raise OperatorError(f"No batch of the checkpoint {held} is committed", _RUN_ONCE_MORE)
    newest = batches[-1]
    entries: dict[int, str] = {}
    ours: list[SourceOffset] = []
    for batch in batches:
        text = read_text(root, f"offsets/{batch}")
        lines = source_lines(text)
        if lines is None:
            raise OperatorError(f"{held}/offsets/{batch} is not of the format {FORMAT}, the only one that is known")
        found = [_decoded(line) for line in lines]
        ours = [each for each in found if each is not None]
        if batch == newest > committed[-1] and any(each.losses for each in ours):
            raise OperatorError(
                f"Batch {batch} of the checkpoint {held} is not committed, and goes back behind a loss", _RUN_ONCE_MORE
            )
        head = text.strip().split("\n")[:2]
        own = [line if each is None else _kafka_form(each) for line, each in zip(lines, found, strict=True)]
        entries[batch] = "\n".join([*head, *own])
    if not ours:
        raise OperatorError(
            f"The checkpoint {held} is of no query of format('fenceline')",
            "One of Spark's own Kafka source can be used as it is.",
        )
    positions = {tp: position.offset for each in ours for tp, position in each.positions.items()}
    return entries, positions, newest


def _decoded(line: str) -> SourceOffset | None:
    """The offset of a Fenceline source; None for a line of another one."""
    if line == NO_OFFSET:
        return None
    try:
        found = decode(json.loads(line))
    except (OperatorError, ValueError):
        return None
    return None if not isinstance(found, SourceOffset) or found.is_of_connector else found


def _kafka_form(offset: SourceOffset) -> str:
    topics = {
        topic: {str(index): offset.positions[TopicPartition(topic, index)].offset for index in indexes}
        for topic, indexes in by_topic(offset.positions).items()
    }
    return json.dumps(topics, separators=(",", ":"))
