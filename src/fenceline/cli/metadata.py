"""`fenceline metadata`: reads the metadata log of a node from its files. Reads Kafka's files as well."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import AsJson, examples, print_json, readable_errors, show

if TYPE_CHECKING:
    from fenceline.cli.metadata_files import LoadedMetadata, MetadataEntry
    from fenceline.metadata.image_tree import Folder

metadata = typer.Typer(
    no_args_is_help=True,
    help="Read the metadata log of a node from its files; the node need not run.",
    epilog=examples(
        ("fenceline metadata shell ./data", "interactive shell with ls, cat and Tab completion"),
        ("fenceline metadata shell ./data cat /topics/hello/0", "a single command"),
        ("fenceline metadata dump ./data --from 100", "records from offset 100 on"),
        ("fenceline metadata at-offset 100 ./data --json", "the complete metadata image at this offset"),
    ),
)

_Path = Annotated[Path, typer.Argument(help="a node's data directory, or a *.checkpoint file")]
_At = Annotated[
    int | None, typer.Option("--at", help="show the image after the record at this offset [default: the newest]")
]


@metadata.command(context_settings={"ignore_unknown_options": True})
def shell(
    path: _Path,
    command: Annotated[
        list[str] | None, typer.Argument(help="a command, such as `ls /topics` [default: interactive]")
    ] = None,
    at: _At = None,
    as_json: AsJson = False,
) -> None:
    """Browse the metadata image as a tree: ls, cat, cd, find, tree, pwd, help, exit.

    The paths are those of Kafka's metadata shell (`/image/topics/byName/...`); `/topics`, `/brokers`, `/configs` and
    others are short forms.
    """
    from fenceline.cli.metadata_files import MetadataFiles
    from fenceline.cli.metadata_shell import Shell

    with readable_errors():
        loaded = load(str(path), None) if at is None else MetadataFiles.at(path).image_at(at)
        print_problems(loaded)
        session = Shell(tree_of_loaded(loaded), as_json=as_json)
        if command:
            if not session.run(command):
                raise typer.Exit(1)
        else:
            session.interact(f"{loaded.image.offset + 1} records, {len(loaded.image.topics_by_id)} topics")


@metadata.command()
def dump(
    path: Annotated[Path, typer.Argument(help="a node's data directory, or a *.checkpoint file")],
    from_offset: Annotated[int, typer.Option("--from", help="start at this offset")] = 0,
    limit: Annotated[int, typer.Option(help="stop after this many records; 0: no limit")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the records of the metadata log, including control records; unknown types by their number."""
    from fenceline.cli.metadata_files import MetadataFiles, snapshot_entries

    with readable_errors():
        entries = snapshot_entries(path) if path.is_file() else MetadataFiles.at(path).log_entries(from_offset)
        show_entries((each for each in entries if each.offset >= from_offset), limit=limit, as_json=as_json)


@metadata.command("at-offset")
def at_offset(
    offset: Annotated[int, typer.Argument(help="the offset of the last record to apply")],
    path: Annotated[Path, typer.Argument(help="a node's data directory")],
    as_json: AsJson = False,
) -> None:
    """Show the metadata image after the record at an offset: the complete image with --json, else a summary."""
    from fenceline.cli.metadata_files import MetadataFiles
    from fenceline.metadata.image_tree import nested

    with readable_errors():
        loaded = MetadataFiles.at(path).image_at(offset)
        print_problems(loaded)
        if as_json:
            print_json(nested(tree_of_loaded(loaded)))
        else:
            show([_facts(loaded)], as_json=False, title=f"After offset {offset}")


def load(name: str, directory: Path | None) -> LoadedMetadata:
    """Load an image from a snapshot file, a directory (the newest image), or an offset. Raises OperatorError."""
    from fenceline.cli.metadata_files import MetadataFiles, load_snapshot
    from fenceline.errors import OperatorError

    path = Path(name)
    if path.is_file():
        return load_snapshot(path)
    if path.is_dir():
        return MetadataFiles.at(path).image_at()
    if directory is None:
        advice = "Specify a *.checkpoint file or a data directory; an offset needs --dir."
        raise OperatorError(f"{name} does not exist", advice)
    files = MetadataFiles.at(directory)
    if (files.directory / name).is_file():
        return load_snapshot(files.directory / name)
    if not name.isdecimal():
        raise OperatorError(
            f"{name} is neither a snapshot of {files.directory} nor an offset", "See: fenceline snapshot list"
        )
    return files.image_at(int(name))


def tree_of_loaded(loaded: LoadedMetadata) -> Folder:
    from fenceline.metadata.image_tree import tree_of

    return tree_of(loaded.image, kraft_version=loaded.kraft_version, voters=loaded.voters, show_config=show_config)


def show_config(name: str, value: str) -> str:
    """Redact passwords."""
    from fenceline.config.broker import ALL_CONFIGS, without_listener
    from fenceline.config.definitions import ConfigType
    from fenceline.metadata.image_tree import REDACTED

    key = without_listener(name)
    known = ALL_CONFIGS.get(key)
    is_secret = key != name if known is None else known.type is ConfigType.PASSWORD
    return REDACTED if "password" in name or is_secret else value


def print_problems(loaded: LoadedMetadata) -> None:
    """Print skipped records and snapshots to standard error."""
    for problem in loaded.problems:
        print(f"fenceline: skipped: {problem}", file=sys.stderr)


def show_entries(entries: Iterable[MetadataEntry], *, limit: int, as_json: bool) -> None:
    """Print the records; those before the damage of a damaged file, then raise OperatorError."""
    from fenceline.errors import OperatorError

    rows: list[dict[str, Any]] = []
    damage: OperatorError | None = None
    try:
        for entry in entries:
            rows.append(_row(entry))
            if limit and len(rows) >= limit:
                break
    except OperatorError as error:
        damage = error
    if as_json:
        print_json(rows)
    else:
        show(
            [{**row, "record": json.dumps(row["record"])} for row in rows], as_json=False, empty="There are no records."
        )
    if damage is not None:
        raise damage


def _row(entry: MetadataEntry) -> dict[str, Any]:
    from fenceline.metadata.image_tree import plain
    from fenceline.metadata.records import ConfigRecord

    fields: Any = plain(entry.record)
    if isinstance(entry.record, ConfigRecord) and entry.record.value is not None:
        fields["value"] = show_config(entry.record.name, entry.record.value)
    if entry.record is None:
        fields = {"problem": entry.problem, "bytes": entry.value.hex()}
    return {
        "offset": entry.offset,
        "epoch": entry.epoch,
        "timestamp": entry.timestamp_ms,
        "type": entry.name,
        "version": entry.version,
        "record": fields,
    }


def _facts(loaded: LoadedMetadata) -> dict[str, Any]:
    image = loaded.image
    return {
        "offset": image.offset,
        "epoch": image.epoch,
        "metadata_version": image.metadata_version,
        "brokers": len(image.brokers),
        "controllers": len(image.controllers),
        "topics": len(image.topics_by_id),
        "partitions": sum(len(topic.partitions) for topic in image.topics_by_id.values()),
        "settings": sum(map(len, image.configs.values())),
        "next_producer_id": image.next_producer_id,
        "voters": [voter.voter_id for voter in loaded.voters],
        "snapshot": loaded.source or None,
    }
