"""`fenceline features`: lists finalized and supported feature levels, and changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Controllers,
    admin_of,
    examples,
    pairs,
    print_json,
    print_result,
    readable_errors,
    reject_options_before_command,
    show,
)
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from fenceline.client.admin.quorum import Change, NodeFeatures

features = typer.Typer(
    invoke_without_command=True,
    help="List, raise, lower and disable feature levels. Without a command: list.",
    epilog=examples(
        ("fenceline features", "finalized levels, and those that each node supports"),
        ("fenceline features upgrade kraft.version=1", "one level; several levels are changed together"),
        ("fenceline features upgrade --release-version 4.3 --dry-run", "check whether all nodes support it"),
    ),
)

_Levels = Annotated[
    list[str] | None, typer.Argument(help="name=level, or metadata.version=4.2; several levels are changed together")
]
_Release = Annotated[str | None, typer.Option(help="the default levels of this release, for example 4.3 or 4.3-IV0")]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="validate the change only")]
_Unsafe = Annotated[
    bool, typer.Option("--unsafe", help="allow a downgrade that loses metadata which the lower level cannot represent")
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
        reject_options_before_command(context)


@features.command("list")
def list_features(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, controllers: Controllers = None, as_json: AsJson = False
) -> None:
    """List finalized levels, and those that each broker (or controller, with --bootstrap-controller) supports."""
    with admin_of(bootstrap, controllers) as admin:
        nodes = admin.describe_features()
    newest = max(nodes.values(), key=lambda node: node.finalized_epoch, default=None)
    finalized = dict(newest.finalized) if newest is not None else {}
    if as_json:
        described = [_node(node) for node in nodes.values()]
        epoch = newest.finalized_epoch if newest is not None else -1
        print_json({"finalized": finalized, "finalized_epoch": epoch, "nodes": described})
        return
    names = sorted({name for node in nodes.values() for name in (*node.supported, *node.finalized)})
    rows = []
    for name in names:
        row: dict[str, Any] = {"feature": name, "finalized": _level(name, finalized.get(name, 0))}
        for node in nodes.values():
            row[f"node_{node.node_id}_supports"] = _range(name, node) if not node.trouble else "?"
        rows.append(row)
    show(rows, as_json=False, empty="There are no features.")
    for node in nodes.values():
        if node.trouble:
            print(f"Node {node.node_id} did not answer: {node.trouble}")
        elif newest is not None and node.finalized_epoch != newest.finalized_epoch:
            print(f"Node {node.node_id} is at metadata offset {node.finalized_epoch}, behind {newest.finalized_epoch}.")


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
    """Raise feature levels, all or none of those given."""
    with readable_errors():
        wanted = _wanted(levels, release_version)
        # Skip features that are at level 0 in the release.
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
    """Lower feature levels, all or none of those given."""
    with readable_errors():
        wanted = _wanted(levels, release_version)
        change: Change = "unsafe_downgrade" if unsafe else "safe_downgrade"
        _change(wanted, change, bootstrap, controllers, dry_run=dry_run, as_json=as_json)


@features.command()
def disable(
    names: Annotated[list[str], typer.Argument(help="features; several are changed together")],
    unsafe: _Unsafe = False,
    dry_run: _DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Set features to level 0."""
    with readable_errors():
        change: Change = "unsafe_downgrade" if unsafe else "safe_downgrade"
        _change(dict.fromkeys(names, 0), change, bootstrap, controllers, dry_run=dry_run, as_json=as_json)


def _wanted(levels: list[str] | None, release_version: str | None) -> dict[str, int]:
    if bool(levels) is bool(release_version):
        raise OperatorError(
            "Feature levels and --release-version are mutually exclusive, and one is required",
            "Give levels, such as metadata.version=30, or --release-version.",
        )
    if release_version:
        from fenceline.metadata.features import KRAFT_VERSION, SUPPORTED, fresh_levels

        fresh = fresh_levels(_metadata_version(release_version))
        # kraft.version is independent of releases: it is set by its own name.
        return {name: fresh.get(name, 0) for name in SUPPORTED if name != KRAFT_VERSION}
    return {name: _number(name, text) for name, text in pairs(levels or [], "feature").items()}


def _number(name: str, text: str) -> int:
    from fenceline.metadata.features import METADATA_VERSION

    if text.isdigit():
        return int(text)
    if name != METADATA_VERSION:
        raise OperatorError(f"{name}={text} is not a level", "A level is an integer, 0 or greater.")
    return _metadata_version(text)


def _metadata_version(text: str) -> int:
    """The level of a metadata version, or the newest level of a release."""
    from fenceline.metadata.features import METADATA_VERSION_NAMES

    found = [level for level, name in METADATA_VERSION_NAMES.items() if name == text or name.startswith(f"{text}-")]
    if not found:
        names = tuple(METADATA_VERSION_NAMES.values())
        raise OperatorError(f"{text} is not a metadata version", f"Use one from {names[0]} to {names[-1]}.")
    return max(found)


def _change(
    levels: dict[str, int], change: Change, bootstrap: str, controllers: str | None, *, dry_run: bool, as_json: bool
) -> None:
    with admin_of(bootstrap, controllers) as admin:
        admin.update_features(levels, change=change, validate_only=dry_run)
    verb = "would be set to" if dry_run else "is set to"
    message = "\n".join(f"{name} {verb} {_level(name, level)}." for name, level in sorted(levels.items()))
    print_result(message, {"levels": levels, "change": change, "dry_run": dry_run}, as_json=as_json)
