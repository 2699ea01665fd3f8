"""How commands print: a table for people, one JSON document for programs. Owns no facts.

Every command imports this, and `app.py` every command: what only some of them need is imported where it is used.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.errors import ErrorCode, FencelineError, OperatorError, PeerError

if TYPE_CHECKING:
    from rich.table import Table

    from fenceline.client.admin import Admin
    from fenceline.client.metadata import TopicMetadata

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
TIMEOUT_MS = 10_000
"""How long a command waits for a broker."""
_PATIENCE_S = 1.5
"""How long a person is left without a word."""
_ADVICE = {
    ErrorCode.REQUEST_TIMED_OUT: (
        "Where nothing can be changed there may be no active controller: it needs a majority of the voters."
        " See: fenceline quorum describe -c HOST:PORT, with the address of a controller."
    ),
}
_NOBODY_LEADS = "The partition has no leader now. Who could lead it: fenceline topics describe TOPIC"
_WIDTH_OF_FILES = 160
"""Columns of a table that is not shown on a terminal."""

Bootstrap = Annotated[
    str,
    typer.Option("--bootstrap", "-b", envvar="FENCELINE_BOOTSTRAP", help="HOST:PORT of any node", show_default=True),
]
Controllers = Annotated[
    str | None,
    typer.Option("--bootstrap-controller", "-c", help="HOST:PORT of any controller, instead of a broker's"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document instead of a table")]


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn the errors that a user can act on into one line and advice; exit code 1."""
    try:
        yield
    except OperatorError as error:
        fail(error.message, error.advice)
    except PeerError as error:
        message = error.message if error.code.name in error.message else f"{error.message} ({error.code.name})"
        is_leaderless = ErrorCode.LEADER_NOT_AVAILABLE.name in message
        fail(message, _NOBODY_LEADS if is_leaderless else _ADVICE.get(error.code, ""))
    except FencelineError as error:
        fail(str(error))


def fail(message: str, advice: str = "") -> None:
    print(f"fenceline: {message}", file=sys.stderr)
    if advice:
        print(f"  {advice}", file=sys.stderr)
    raise typer.Exit(1)


@contextmanager
def admin_of(bootstrap: str, controllers: str | None = None) -> Iterator[Admin]:
    """An admin client for one command, of brokers or else of controllers; errors come out readable."""
    still = f"no answer from {controllers or bootstrap} yet; waiting {TIMEOUT_MS // 1000} s at most"
    with readable_errors(), patience(still), plain_admin(bootstrap, controllers) as admin:
        yield admin


def plain_admin(bootstrap: str, controllers: str | None = None) -> Admin:
    """An admin client of brokers or else of controllers."""
    from fenceline.client.admin import Admin

    where = {"bootstrap.controllers": controllers} if controllers else {"bootstrap.servers": bootstrap}
    return Admin({**where, "default.api.timeout.ms": TIMEOUT_MS})


@contextmanager
def patience(words: str) -> Iterator[None]:
    """Say what is waited for when it takes long, to whoever looks at a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(_PATIENCE_S, lambda: print(f"fenceline: {words} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def existing_topic(admin: Admin, name: str) -> TopicMetadata:
    """What is known of a topic. Raises OperatorError where there is none, PeerError where the broker refuses."""
    found = admin.metadata([name]).topics[name]
    if found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise OperatorError(f"There is no topic {name}", "See what there is with: fenceline topics list")
    if found.error is not ErrorCode.NONE:
        raise PeerError(found.error, f"Topic {name} can not be described")
    return found


def show(
    rows: Sequence[dict[str, Any]],
    *,
    as_json: bool,
    title: str = "",
    empty: str = "nothing to show",
    optional: Sequence[str] = (),
) -> None:
    """Print rows of equal keys. A table's cells may be rich's, with a style; columns of `optional` are left out, the
    first ones first, where a terminal is too narrow for them.
    """
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        print(empty)
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES)
    keys = list(rows[0])
    table = _table(rows, keys, title)
    for key in optional:
        if console.measure(table, options=console.options.update(width=_WIDTH_OF_FILES * 2)).maximum <= console.width:
            break
        keys.remove(key)
        table = _table(rows, keys, title)
    console.print(table)


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str], title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", header_style="bold")
    for key in keys:
        is_numeric = all(isinstance(row[key], int | float) for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(value if isinstance(value := row[key], Text) else _text(value) for key in keys))
    return table


def print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=2, default=str)
    print()


def done(message: str, document: Any, *, as_json: bool) -> None:
    """Say that a change was made."""
    if as_json:
        print_json(document)
    else:
        print(message)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(str(each) for each in value)
    return str(value)


def is_ascii_only() -> bool:
    """Whether standard output takes no other characters."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def examples(*shown: tuple[str, str]) -> str:
    """The end of a command's help: commands as one would type them, and what each does."""
    return "Examples:\n\n" + "\n".join(f"- `{command}  # {words}`" for command, words in shown)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """`key=value` options as a mapping. Raises OperatorError."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise OperatorError(f"{option} {text!r} has no value", f"Write it as {option} key=value.")
        found[key] = value
    return found


def only_without_command(context: typer.Context) -> None:
    """Refuse options of a group that stand before a command, which would not see them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"options go after the command: {context.command_path} {context.invoked_subcommand} ..."
            )
