"""`fenceline features`: which levels are finalized, which ones every node supports, and changing them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Controllers,
    admin_of,
    done,
    examples,
    only_without_command,
    pairs,
    print_json,
    readable_errors,
    show,
)
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from fenceline.client.admin_quorum import Change, NodeFeatures

features = typer.Typer(
    invoke_without_command=True,
    help="List, raise, lower and disable feature levels. Without a command: list.",
    epilog=examples(
        ("fenceline features", "what is in force, and what every node supports"),
        ("fenceline features upgrade kraft.version=1", "one level; several are one change"),
        ("fenceline features upgrade --release-version 4.3 --dry-run", "would all nodes take it?"),
    ),
)

_Levels = Annotated[
    list[str] | None, typer.Argument(help="name=level, or metadata.version=4.2; several are one change")
]
_Release = Annotated[
    str | None, typer.Option(help="the levels that a fresh cluster of this release has, for example 4.3 or 4.3-IV0")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="have it checked, change nothing")]
_Unsafe = Annotated[
    bool, typer.Option("--unsafe", help="also where metadata is lost that the lower level can not express")
]


@features.callback()
def features_root(
    context: typer.Context,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is None:
        list_features(bootstrap, controllers, as_json)
    else:
        only_without_command(context)


@features.command("list")
def list_features(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, controllers: Controllers = None, as_json: AsJson = False
) -> None:
    """Finalized levels, and what each broker (or controller, with --bootstrap-controller) supports."""
    with admin_of(bootstrap, controllers) as admin:
        nodes = admin.describe_features()
    newest = max(nodes.values(), key=lambda node: node.finalized_epoch, default=None)
    finalized = dict(newest.finalized) if newest is not None else {}
    if as_json:
        told = [_node(node) for node in nodes.values()]
        epoch = newest.finalized_epoch if newest is not None else -1
        print_json({"finalized": finalized, "finalized_epoch": epoch, "nodes": told})
        return
    names = sorted({name for node in nodes.values() for name in (*node.supported, *node.finalized)})
    rows = []
    for name in names:
        row: dict[str, Any] = {"feature": name, "finalized": _level(name, finalized.get(name, 0))}
        for node in nodes.values():
            row[f"node_{node.node_id}_supports"] = _range(name, node) if not node.trouble else "?"
        rows.append(row)
    show(rows, as_json=False, empty="No features are known.")
    for node in nodes.values():
        if node.trouble:
            print(f"Node {node.node_id} could not be asked: {node.trouble}")
        elif newest is not None and node.finalized_epoch != newest.finalized_epoch:
            print(
                f"Node {node.node_id} is at metadata offset {node.finalized_epoch}, not {newest.finalized_epoch} yet."
            )


def _node(node: NodeFeatures) -> dict[str, Any]:
    supported = {name: {"min": low, "max": high} for name, (low, high) in sorted(node.supported.items())}
    return {
        "id": node.node_id,
        "supported": supported,
        "finalized": dict(sorted(node.finalized.items())),
        "finalized_epoch": node.finalized_epoch,
        "trouble": node.trouble or None,
    }


def _range(name: str, node: NodeFeatures) -> str:
    low, high = node.supported.get(name, (0, 0))
    return f"{_level(name, low)} to {_level(name, high)}"


def _level(name: str, level: int) -> str:
    from fenceline.metadata.features import METADATA_VERSION, METADATA_VERSION_NAMES

    return METADATA_VERSION_NAMES.get(level, str(level)) if name == METADATA_VERSION else str(level)


@features.command()
def upgrade(
    levels: _Levels = None,
    release_version: _Release = None,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Raise levels: all of those named, or none."""
    with readable_errors():
        wanted = _wanted(levels, release_version)
        # A feature that the release leaves at 0 is not raised to anything.
        wanted = {name: level for name, level in wanted.items() if level or not release_version}
        _change(wanted, "upgrade", bootstrap, controllers, dry_run=dry_run, as_json=as_json)


@features.command()
def downgrade(
    levels: _Levels = None,
    release_version: _Release = None,
    unsafe: _Unsafe = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Lower levels: all of those named, or none."""
    with readable_errors():
        wanted = _wanted(levels, release_version)
        change: Change = "unsafe_downgrade" if unsafe else "safe_downgrade"
        _change(wanted, change, bootstrap, controllers, dry_run=dry_run, as_json=as_json)


@features.command()
def disable(
    names: Annotated[list[str], typer.Argument(help="features; several are one change")],
    unsafe: _Unsafe = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Lower features to level 0."""
    with readable_errors():
        change: Change = "unsafe_downgrade" if unsafe else "safe_downgrade"
        _change(dict.fromkeys(names, 0), change, bootstrap, controllers, dry_run=dry_run, as_json=as_json)


def _wanted(levels: list[str] | None, release_version: str | None) -> dict[str, int]:
    if bool(levels) is bool(release_version):
        raise OperatorError(
            "It must be said which levels are meant", "Name them, as metadata.version=30, or give --release-version."
        )
    if release_version:
        from fenceline.metadata.features import KRAFT_VERSION, SUPPORTED, fresh_levels

        fresh = fresh_levels(_metadata_version(release_version))
        # How voters are kept is not a matter of releases: kraft.version is named on its own.
        return {name: fresh.get(name, 0) for name in SUPPORTED if name != KRAFT_VERSION}
    return {name: _number(name, text) for name, text in pairs(levels or [], "feature").items()}


def _number(name: str, text: str) -> int:
    from fenceline.metadata.features import METADATA_VERSION

    if text.isdigit():
        return int(text)
    if name != METADATA_VERSION:
        raise OperatorError(f"{name}={text} is not a level", "Levels are whole numbers from 0 on.")
    return _metadata_version(text)


def _metadata_version(text: str) -> int:
    """The level of a release (its newest) or of one of its steps."""
    from fenceline.metadata.features import METADATA_VERSION_NAMES

    found = [level for level, name in METADATA_VERSION_NAMES.items() if name == text or name.startswith(f"{text}-")]
    if not found:
        names = tuple(METADATA_VERSION_NAMES.values())
        raise OperatorError(f"{text} is not a metadata version", f"Known are {names[0]} to {names[-1]}.")
    return max(found)


def _change(
    levels: dict[str, int], change: Change, bootstrap: str, controllers: str | None, *, dry_run: bool, as_json: bool
) -> None:
    with admin_of(bootstrap, controllers) as admin:
        admin.update_features(levels, change=change, validate_only=dry_run)
    verb = "would be set to" if dry_run else "is set to"
    words = "\n".join(f"{name} {verb} {_level(name, level)}." for name, level in sorted(levels.items()))
    done(words, {"levels": levels, "change": change, "dry_run": dry_run}, as_json=as_json)
