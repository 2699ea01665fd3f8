"""Output of commands: tables, JSON documents and error messages.

Every command imports this module, and `app.py` imports every command: imports that only some need are local.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.errors import ErrorCode, FencelineError, OperatorError, PeerError

if TYPE_CHECKING:
    from rich.table import Table

    from fenceline.client.admin.admin import Admin
    from fenceline.client.core.metadata import TopicMetadata

DEFAULT_BOOTSTRAP = ""
"""The address in the file of --command-config, or this one:"""
_DEFAULT_ADDRESS = "127.0.0.1:9092"
TIMEOUT_MS = 10_000
"""How long a command waits for a broker."""
_NOTICE_AFTER_S = 1.5
"""How long a command waits before it prints what it waits for."""
_ADVICE = {
    ErrorCode.REQUEST_TIMED_OUT: (
        "There may be no active controller, which needs a majority of the voters."
        " Check it with: fenceline quorum describe -c HOST:PORT, with the address of a controller."
    ),
}
_NO_LEADER = "The partition has no leader. See the state of its replicas with: fenceline topics describe TOPIC"
_DEFAULT_WIDTH = 160
"""Width of a table if the output is not a terminal."""

Bootstrap = Annotated[
    str,
    typer.Option(
        *("--bootstrap", "-b"),
        envvar="FENCELINE_BOOTSTRAP",
        help="HOST:PORT of any broker",
        show_default=f"that of --command-config, or {_DEFAULT_ADDRESS}",
    ),
]
Controllers = Annotated[
    str | None,
    typer.Option("--bootstrap-controller", "-c", help="HOST:PORT of any controller, used instead of --bootstrap"),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        envvar="FENCELINE_COMMAND_CONFIG",
        help="property file of a client, as for Kafka's tools: how to connect and log in",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON document instead of a table")]


@contextmanager
def readable_errors() -> Iterator[None]:
    """Print errors that a user can act on as one line and advice; exit with 1."""
    try:
        yield
    except OperatorError as error:
        fail(error.message, error.advice)
    except PeerError as error:
        message = error.message if error.code.name in error.message else f"{error.message} ({error.code.name})"
        is_leaderless = ErrorCode.LEADER_NOT_AVAILABLE.name in message
        fail(message, _NO_LEADER if is_leaderless else _ADVICE.get(error.code, ""))
    except FencelineError as error:
        fail(str(error))


def fail(message: str, advice: str = "") -> None:
    print(f"fenceline: {message}", file=sys.stderr)
    if advice:
        print(f"  {advice}", file=sys.stderr)
    raise typer.Exit(1)


@contextmanager
def admin_of(bootstrap: str, controllers: str | None = None) -> Iterator[Admin]:
    """An admin client for one command, connected to brokers or controllers; prints its errors."""
    notice = f"no answer from {controllers or bootstrap or 'the brokers'} yet; waiting {TIMEOUT_MS // 1000} s at most"
    with readable_errors(), waiting_notice(notice), plain_admin(bootstrap, controllers) as admin:
        yield admin


def plain_admin(bootstrap: str, controllers: str | None = None) -> Admin:
    """An admin client, connected to brokers or controllers."""
    from fenceline.client.admin.admin import Admin

    return Admin({**client_settings(bootstrap, controllers), "default.api.timeout.ms": TIMEOUT_MS})


_command_config: ContextVar[Path | None] = ContextVar("command_config", default=None)


def use_command_config(path: Path | None, *, is_given_first: bool = False) -> None:
    """Clients of this command are configured by the file. None changes nothing that was given first, before the name
    of the command."""
    if path is not None or is_given_first:
        _command_config.set(path)


def client_settings(bootstrap: str, controllers: str | None = None) -> dict[str, Any]:
    """The properties of a client for one command. Raises OperatorError if their file cannot be read."""
    from fenceline.config.properties import read_properties

    path = _command_config.get()
    found: dict[str, Any] = {} if path is None else dict(read_properties(path))
    own = found.pop("bootstrap.servers", None)
    if controllers:
        return {**found, "bootstrap.controllers": controllers}
    return {**found, "bootstrap.servers": bootstrap or own or _DEFAULT_ADDRESS}


@contextmanager
def waiting_notice(message: str) -> Iterator[None]:
    """Print a message on a terminal if the block takes long."""
    if not sys.stderr.isatty():
        yield
        return
    timer = threading.Timer(_NOTICE_AFTER_S, lambda: print(f"fenceline: {message} ...", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def existing_topic(admin: Admin, name: str) -> TopicMetadata:
    """Metadata of a topic. Raises OperatorError if it does not exist, PeerError if the broker returns an error."""
    found = admin.metadata([name]).topics[name]
    if found.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise OperatorError(f"There is no topic {name}", "List the topics with: fenceline topics list")
    if found.error is not ErrorCode.NONE:
        raise PeerError(found.error, f"Topic {name} cannot be described")
    return found


def show(
    rows: Sequence[dict[str, Any]],
    *,
    as_json: bool,
    title: str = "",
    empty: str = "No rows.",
    optional: Sequence[str] = (),
) -> None:
    """Print rows with equal keys, as a table or as JSON. Cells may be rich's Text. If the terminal is too narrow, the
    columns of `optional` are dropped, in this order.
    """
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        print(empty)
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else _DEFAULT_WIDTH)
    keys = list(rows[0])
    table = _table(rows, keys, title)
    for key in optional:
        if console.measure(table, options=console.options.update(width=_DEFAULT_WIDTH * 2)).maximum <= console.width:
            break
        keys.remove(key)
        table = _table(rows, keys, title)
    console.print(table)


def _table(rows: Sequence[dict[str, Any]], keys: Sequence[str], title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    # As Text: rich reads a str as markup, and a group may be called "[/red]".
    table = Table(title=Text(printable(title)) if title else None, title_justify="left", header_style="bold")
    for key in keys:
        is_numeric = all(isinstance(row[key], int | float) for row in rows)
        table.add_column(key.replace("_", " "), justify="right" if is_numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(value if isinstance(value := row[key], Text) else Text(_text(value)) for key in keys))
    return table


def print_json(document: Any) -> None:
    json.dump(document, sys.stdout, indent=2, default=str)
    print()


def print_result(message: str, document: Any, *, as_json: bool) -> None:
    """Print the result of a change, as a message or as JSON."""
    if as_json:
        print_json(document)
    else:
        print(message)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return ", ".join(printable(str(each)) for each in value)
    return printable(str(value))


def printable(text: str) -> str:
    """Names may have control characters, or turn the direction of what follows: these are escaped."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def is_ascii_only() -> bool:
    """Whether standard output cannot encode Unicode."""
    return not (sys.stdout.encoding or "").lower().startswith("utf")


def examples(*shown: tuple[str, str]) -> str:
    """The examples section of a help text: commands with comments."""
    return "Examples:\n\n" + "\n".join(f"- `{command}  # {comment}`" for command, comment in shown)


def pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    """Parse `key=value` options. Raises OperatorError."""
    found = {}
    for text in texts:
        key, separator, value = text.partition("=")
        if not separator:
            raise OperatorError(f"{option} {text!r} has no value", f"Use the form {option} key=value.")
        found[key] = value
    return found


def reject_options_before_command(context: typer.Context) -> None:
    """Reject group options before a command: the command would ignore them."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(
                f"options must follow the command: {context.command_path} {context.invoked_subcommand} ..."
            )
