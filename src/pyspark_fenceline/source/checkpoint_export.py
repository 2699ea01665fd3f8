"""Converts a checkpoint of `format("fenceline")` to one that Spark's own Kafka source can read.

Owns the conversion of Spark's offset log: each line of a Fenceline source becomes `{topic: {partition: offset}}`. The
rest of the checkpoint (query id, commits, state, other sources) is copied unchanged, so that sinks see the same query.
Topic ids and leader epochs are lost. Never changes the checkpoint that it reads, and never overwrites anything. Local
directories only: the copy is renamed to its target when it is complete.
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
from pyspark_fenceline.common.checkpoint_files import (
    FORMAT,
    NO_OFFSET,
    as_local,
    numbered,
    open_checkpoint,
    read_text,
    source_lines,
)
from pyspark_fenceline.common.offsets import SourceOffset, by_topic, decode

_RUN_ONCE_MORE: Final = (
    "Start the query with the source that wrote the checkpoint, stop it after the batch, and export again."
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
    """Write the checkpoint at `source` to `target` in the format of Spark's Kafka source. The query must not run.

    Raises `OperatorError` if `target` exists, if `source` is no checkpoint of a Fenceline source, and if its newest
    batch is uncommitted and follows a loss, which the other format cannot express.
    """
    held, made = _directory(source), _directory(target)
    if made.exists() and (not made.is_dir() or any(made.iterdir())):
        raise OperatorError(f"{made} already exists", "Name a directory that does not exist.")
    if made.resolve().is_relative_to(held.resolve()):
        raise OperatorError(f"{made} is inside the checkpoint {held}", "Name a directory outside of it.")
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
            f"The checkpoint cannot be written to {made}: {error}", "Check the directory and its free disk space."
        ) from None
    return ExportedCheckpoint(str(made), newest, positions)


def _directory(place: str | os.PathLike[str]) -> Path:
    text = as_local(os.fspath(place))
    if "://" in text:
        raise OperatorError(
            f"{text} is no local directory", "Copy the checkpoint to a local one, export it, and copy the result back."
        )
    return Path(text)


def _offset_log(held: Path) -> Callable[[str, list[str]], list[str]]:
    """For `copytree`: excludes the offset log."""
    return lambda folder, names: [name for name in names if Path(folder) == held and name == "offsets"]


def _translated(held: Path) -> tuple[dict[int, str], dict[TopicPartition, int], int]:
    """The converted entries of the offset log, the positions after the newest one, and its batch id."""
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
            raise OperatorError(f"{held}/offsets/{batch} is not in the supported format {FORMAT}")
        found = [_decoded(line) for line in lines]
        ours = [each for each in found if each is not None]
        if batch == newest > committed[-1] and any(each.losses for each in ours):
            raise OperatorError(
                f"Batch {batch} of the checkpoint {held} follows a loss and is not committed", _RUN_ONCE_MORE
            )
        head = text.strip().split("\n")[:2]
        own = [line if each is None else _kafka_form(each) for line, each in zip(lines, found, strict=True)]
        entries[batch] = "\n".join([*head, *own])
    if not ours:
        raise OperatorError(
            f"The checkpoint {held} has no source of format('fenceline')",
            "A checkpoint of Spark's own Kafka source can be used unchanged.",
        )
    positions = {tp: position.offset for each in ours for tp, position in each.positions.items()}
    return entries, positions, newest


def _decoded(line: str) -> SourceOffset | None:
    """The offset of a Fenceline source; None for another source."""
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
