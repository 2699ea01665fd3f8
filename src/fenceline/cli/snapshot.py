"""`fenceline snapshot`: reads snapshots of the metadata log from files. Reads Kafka's files as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from fenceline.cli.output import AsJson, examples, print_json, readable_errors, show

snapshot = typer.Typer(
    no_args_is_help=True,
    help="List, verify, dump and compare snapshots of the metadata log; the node need not run.",
    epilog=examples(
        ("fenceline snapshot list ./data", "the snapshots of a node"),
        ("fenceline snapshot verify ./data", "check every snapshot of a node"),
        ("fenceline snapshot diff 100 200 --dir ./data", "changes between two offsets"),
    ),
)

_Directory = Annotated[Path, typer.Argument(help="a node's data directory")]


@snapshot.command("list")
def list_snapshots(directory: _Directory, as_json: AsJson = False) -> None:
    """List the snapshots of a node, oldest first."""
    from fenceline.cli.metadata_files import MetadataFiles
    from fenceline.log.core.disk import OsDisk
    from fenceline.node.metadata.snapshot_files import timestamp_of

    with readable_errors():
        files = MetadataFiles.at(directory)
        rows = [
            {
                "file": each.file_name,
                "end_offset": each.end_offset,
                "epoch": each.epoch,
                "size_bytes": files.path_of(each).stat().st_size,
                "last_timestamp_ms": timestamp_of(OsDisk(), str(files.path_of(each))),
            }
            for each in files.snapshots
        ]
        show(rows, as_json=as_json, title=str(files.directory), empty=f"{files.directory} has no snapshots.")


@snapshot.command()
def verify(
    path: Annotated[Path, typer.Argument(help="a *.checkpoint file, or a node's data directory for all its snapshots")],
    as_json: AsJson = False,
) -> None:
    """Check header, footer, CRCs, offsets and epoch. Exits with 1 if a snapshot is damaged."""
    from fenceline.log.core.disk import OsDisk
    from fenceline.node.metadata.snapshot_files import SnapshotDamaged, snapshot_of, verify_snapshot

    with readable_errors():
        rows: list[dict[str, Any]] = []
        for file in _files(path):
            row: dict[str, Any] = {
                "file": file.name,
                "state": "ok",
                "records": None,
                "batches": None,
                "size_bytes": None,
            }
            row |= {"last_timestamp_ms": None, "kraft_version": None, "voters": None, "reason": None}
            try:
                found = verify_snapshot(OsDisk(), str(file), snapshot_of(file.name))
            except SnapshotDamaged as error:
                row |= {"state": "DAMAGED", "reason": error.reason}
            else:
                row |= {
                    "records": found.record_count,
                    "batches": found.batch_count,
                    "size_bytes": found.size_bytes,
                    "last_timestamp_ms": found.last_contained_log_timestamp,
                    "kraft_version": found.kraft_version,
                    "voters": [voter.voter_id for voter in found.voters],
                }
            rows.append(row)
        show(rows, as_json=as_json, empty=f"{path} has no snapshots.")
    if any(row["state"] != "ok" for row in rows):
        raise typer.Exit(1)


@snapshot.command()
def dump(
    file: Annotated[Path, typer.Argument(help="a *.checkpoint file")],
    limit: Annotated[int, typer.Option(help="stop after this many records; 0: no limit")] = 0,
    as_json: AsJson = False,
) -> None:
    """Print the records of a snapshot, including control records. Exits with 1 if the file is damaged."""
    from fenceline.cli.metadata import show_entries
    from fenceline.cli.metadata_files import snapshot_entries
    from fenceline.errors import OperatorError

    with readable_errors():
        if not file.is_file():
            raise OperatorError(f"{file} is not a file", "Specify a *.checkpoint file.")
        show_entries(snapshot_entries(file), limit=limit, as_json=as_json)


@snapshot.command()
def diff(
    before: Annotated[str, typer.Argument(help="a *.checkpoint file, or an offset of the log in --dir")],
    after: Annotated[str, typer.Argument(help="a *.checkpoint file, or an offset of the log in --dir")],
    directory: Annotated[
        Path | None, typer.Option("--dir", "-d", help="a node's data directory, needed for offsets and snapshot names")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the changes from one snapshot or offset to another, by entity."""
    from fenceline.cli.metadata import load, print_problems, show_config
    from fenceline.metadata.image_diff import entity_changes
    from fenceline.metadata.image_tree import plain

    with readable_errors():
        old, new = load(before, directory), load(after, directory)
        for loaded in (old, new):
            print_problems(loaded)
        rows = [
            {"kind": each.kind, "name": each.name, "change": each.change, "fields": dict(each.fields)}
            for each in entity_changes(old.image, new.image, show_config)
        ]
        voters = [{voter["voter_id"]: voter for voter in plain(each.voters)} for each in (old, new)]
        for voter_id in sorted({*voters[0], *voters[1]}):
            left, right = voters[0].get(voter_id), voters[1].get(voter_id)
            if left != right:
                change = "added" if left is None else "removed" if right is None else "changed"
                rows.append(
                    {"kind": "voter", "name": str(voter_id), "change": change, "fields": {"voter": (left, right)}}
                )
        if as_json:
            print_json(rows)
        else:
            show([{**row, "fields": list(_changes(row["fields"]))} for row in rows], as_json=False, empty="No changes.")


def _changes(fields: Any) -> Iterator[str]:
    for name, (before, after) in fields.items():
        if before is None:
            yield f"{name}: {after}"
        elif after is None:
            yield f"{name}: {before} (removed)"
        else:
            yield f"{name}: {before} -> {after}"


def _files(path: Path) -> list[Path]:
    from fenceline.cli.metadata_files import MetadataFiles
    from fenceline.errors import OperatorError

    if path.is_dir():
        files = MetadataFiles.at(path)
        return [files.path_of(each) for each in files.snapshots]
    if not path.is_file():
        raise OperatorError(f"{path} does not exist", "Specify a *.checkpoint file or a node's data directory.")
    return [path]
