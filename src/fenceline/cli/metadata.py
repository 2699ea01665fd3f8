"""`fenceline metadata`: what the metadata log of a node says, without the node. Reads Kafka's files as well."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import AsJson, examples, print_json, readable_errors, show

if TYPE_CHECKING:
    from fenceline.cli.metadata_files import Entry, Loaded
    from fenceline.metadata.image_tree import Folder

metadata = typer.Typer(
    no_args_is_help=True,
    help="Look at the metadata log of a node, without the node.",
    epilog=examples(
        ("fenceline metadata shell ./data", "walk in it; ls, cat and Tab"),
        ("fenceline metadata shell ./data cat /topics/hello/0", "one command"),
        ("fenceline metadata dump ./data --from 100", "records as they were written"),
        ("fenceline metadata at-offset 100 ./data --json", "the whole cluster as it was"),
    ),
)

_Path = Annotated[Path, typer.Argument(help="a node's data directory, or a *.checkpoint file")]
_At = Annotated[int | None, typer.Option("--at", help="as it was after the record at this offset; else the newest")]


@metadata.command(context_settings={"ignore_unknown_options": True})
def shell(
    path: _Path,
    command: Annotated[
        list[str] | None, typer.Argument(help="one command, such as `ls /topics`; else you type")
    ] = None,
    at: _At = None,
    as_json: AsJson = False,
) -> None:
    """Walk through brokers, topics, settings and all else as a tree: ls, cat, cd, find, tree, pwd, help, exit.

    The paths are those of Kafka's metadata shell (`/image/topics/byName/...`); `/topics`, `/brokers`, `/configs` and
    others are short for them.
    """
    from fenceline.cli.metadata_files import MetadataFiles
    from fenceline.cli.metadata_shell import Shell

    with readable_errors():
        loaded = load(str(path), None) if at is None else MetadataFiles.at(path).image_at(at)
        tell_problems(loaded)
        session = Shell(tree_of_loaded(loaded), as_json=as_json)
        if command:
            if not session.run(command):
                raise typer.Exit(1)
        else:
            session.interact(f"{loaded.image.offset + 1} records, {len(loaded.image.topics_by_id)} topics")


@metadata.command()
def dump(
    path: Annotated[Path, typer.Argument(help="a node's data directory, or a *.checkpoint file")],
    from_offset: Annotated[int, typer.Option("--from", help="begin at this offset")] = 0,
    limit: Annotated[int, typer.Option(help="stop after so many records; 0: no limit")] = 0,
    as_json: AsJson = False,
) -> None:
    """Every record of the metadata log, control records too; unknown ones by their number."""
    from fenceline.cli.metadata_files import MetadataFiles, snapshot_entries

    with readable_errors():
        entries = snapshot_entries(path) if path.is_file() else MetadataFiles.at(path).log_entries(from_offset)
        show_entries((each for each in entries if each.offset >= from_offset), limit=limit, as_json=as_json)


@metadata.command("at-offset")
def at_offset(
    offset: Annotated[int, typer.Argument(help="the last record that counts")],
    path: Annotated[Path, typer.Argument(help="a node's data directory")],
    as_json: AsJson = False,
) -> None:
    """The cluster as it was after the record at an offset; all of it with --json, else how much there was of what."""
    from fenceline.cli.metadata_files import MetadataFiles
    from fenceline.metadata.image_tree import nested

    with readable_errors():
        loaded = MetadataFiles.at(path).image_at(offset)
        tell_problems(loaded)
        if as_json:
            print_json(nested(tree_of_loaded(loaded)))
        else:
            show([_facts(loaded)], as_json=False, title=f"After offset {offset}")


def load(name: str, directory: Path | None) -> Loaded:
    """An image by its name: a snapshot file, a directory (the newest), or an offset. Raises OperatorError."""
    from fenceline.cli.metadata_files import MetadataFiles, load_snapshot
    from fenceline.errors import OperatorError

    path = Path(name)
    if path.is_file():
        return load_snapshot(path)
    if path.is_dir():
        return MetadataFiles.at(path).image_at()
    if directory is None:
        advice = "Name a *.checkpoint file or a data directory; for an offset name its directory with --dir."
        raise OperatorError(f"{name} does not exist", advice)
    files = MetadataFiles.at(directory)
    if (files.directory / name).is_file():
        return load_snapshot(files.directory / name)
    if not name.isdecimal():
        raise OperatorError(f"{name} is neither a snapshot of {files.directory} nor an offset", "See `snapshot list`.")
    return files.image_at(int(name))


def tree_of_loaded(loaded: Loaded) -> Folder:
    from fenceline.metadata.image_tree import tree_of

    return tree_of(loaded.image, kraft_version=loaded.kraft_version, voters=loaded.voters, show_config=show_config)


def show_config(name: str, value: str) -> str:
    """Passwords stay unsaid."""
    from fenceline.config.broker import ALL_CONFIGS
    from fenceline.config.definitions import ConfigType
    from fenceline.metadata.image_tree import REDACTED

    known = ALL_CONFIGS.get(name)
    return REDACTED if "password" in name or (known is not None and known.type is ConfigType.PASSWORD) else value


def tell_problems(loaded: Loaded) -> None:
    """What was left out, to stderr."""
    for problem in loaded.problems:
        print(f"fenceline: left out: {problem}", file=sys.stderr)


def show_entries(entries: Iterable[Entry], *, limit: int, as_json: bool) -> None:
    """Print records; of a damaged file what comes before the damage. Raises OperatorError then."""
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


def _row(entry: Entry) -> dict[str, Any]:
    from fenceline.metadata.image_tree import plain
    from fenceline.metadata.records import ConfigRecord

    told: Any = plain(entry.record)
    if isinstance(entry.record, ConfigRecord) and entry.record.value is not None:
        told["value"] = show_config(entry.record.name, entry.record.value)
    if entry.record is None:
        told = {"problem": entry.problem, "bytes": entry.value.hex()}
    return {
        "offset": entry.offset,
        "epoch": entry.epoch,
        "timestamp": entry.timestamp_ms,
        "type": entry.name,
        "version": entry.version,
        "record": told,
    }


def _facts(loaded: Loaded) -> dict[str, Any]:
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
