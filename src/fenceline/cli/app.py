"""The command tree. Owns the names of commands; each group of commands is a module."""

from __future__ import annotations

from typing import Annotated

import typer

from fenceline import __version__
from fenceline.cli.acls import acls
from fenceline.cli.audit import AUDIT_EXAMPLES, audit
from fenceline.cli.brokers import brokers
from fenceline.cli.check_client import CHECK_CLIENT_EXAMPLES, check_client
from fenceline.cli.checkpoint import checkpoint
from fenceline.cli.cluster import cluster
from fenceline.cli.demo import demo
from fenceline.cli.features import features
from fenceline.cli.format import FORMAT_EXAMPLES, format_directory_command
from fenceline.cli.groups import groups
from fenceline.cli.lab import LAB_EXAMPLES, lab
from fenceline.cli.logs import logs
from fenceline.cli.losses import losses
from fenceline.cli.metadata import metadata
from fenceline.cli.output import CommandConfig, use_command_config
from fenceline.cli.quorum import quorum
from fenceline.cli.quotas import quotas
from fenceline.cli.records import consume, offsets, produce
from fenceline.cli.snapshot import snapshot
from fenceline.cli.tokens import tokens
from fenceline.cli.topics import configs, topics
from fenceline.cli.transactions import transactions
from fenceline.cli.verify import VERIFY_EXAMPLES, verify

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="A Kafka-compatible replicated log that reports every data loss.",
    epilog="Start with `fenceline start`, then `fenceline topics create hello` in another terminal.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fenceline {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
    command_config: CommandConfig = None,
) -> None:
    """A Kafka-compatible replicated log that reports every data loss."""
    use_command_config(command_config, is_given_first=True)


@app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True}, add_help_option=False)
def start(context: typer.Context) -> None:
    """Run one node in the foreground (`fenceline start --help`)."""
    from fenceline.cli.start import main

    raise typer.Exit(main(context.args))


app.command("format", epilog=FORMAT_EXAMPLES)(format_directory_command)
app.add_typer(topics, name="topics")
app.add_typer(configs, name="configs")
app.add_typer(groups, name="groups")
app.add_typer(transactions, name="transactions")
app.add_typer(tokens, name="tokens")
app.command()(produce)
app.command()(consume)
app.command()(offsets)
app.add_typer(quorum, name="quorum")
app.add_typer(features, name="features")
app.add_typer(brokers, name="brokers")
app.add_typer(acls, name="acls")
app.add_typer(quotas, name="quotas")
app.add_typer(logs, name="log")
app.command(epilog=VERIFY_EXAMPLES)(verify)
app.add_typer(losses, name="losses")
app.add_typer(snapshot, name="snapshot")
app.add_typer(metadata, name="metadata")
app.add_typer(cluster, name="cluster")
app.command(epilog=LAB_EXAMPLES)(lab)
app.command(epilog=AUDIT_EXAMPLES)(audit)
app.add_typer(checkpoint, name="checkpoint")
app.command()(demo)
app.command("check-client", epilog=CHECK_CLIENT_EXAMPLES)(check_client)


def run() -> None:
    """Run the command line."""
    app()
