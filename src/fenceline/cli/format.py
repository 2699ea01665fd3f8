"""`fenceline format`: formats data directories, as kafka-storage format does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fenceline.cli.output import AsJson, examples, print_result, readable_errors
from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid, random_id

FORMAT_EXAMPLES = examples(
    ("fenceline format --config node.properties --standalone", "the first controller; prints the cluster id"),
    (
        "fenceline format --config node4.properties --no-initial-controllers --cluster-id ID",
        "a controller that joins a quorum",
    ),
    ("fenceline format --config broker.properties --cluster-id ID", "a broker"),
)


def format_directory_command(
    config: Annotated[Path | None, typer.Option("--config", help="a server.properties file")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="the data directory, if the file does not name it")] = None,
    cluster_id: Annotated[str | None, typer.Option(help="22 characters [default: a new id]")] = None,
    override: Annotated[list[str] | None, typer.Option(help="set a property as key=value; may be repeated")] = None,
    ignore_formatted: Annotated[
        bool, typer.Option("--ignore-formatted", help="skip directories that are formatted already")
    ] = False,
    standalone: Annotated[
        bool,
        typer.Option("--standalone", help="create a quorum of this controller alone (the default for a controller)"),
    ] = False,
    initial_controllers: Annotated[
        str | None,
        typer.Option(help="create a quorum of id@host:port:directory-id, ...; use the same value on each of them"),
    ] = None,
    no_initial_controllers: Annotated[
        bool, typer.Option("--no-initial-controllers", help="join an existing quorum")
    ] = False,
    add_scram: Annotated[
        list[str] | None,
        typer.Option(help="a user of the new cluster, MECHANISM=[name=...,password=...]; may be repeated"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Format the node's directories for a cluster."""
    from fenceline.config.node import NodeConfig
    from fenceline.node.metadata.format import format_directory, initial_quorum
    from fenceline.node.run import settings_from_options
    from fenceline.security.added_users import added_user

    with readable_errors():
        settings = settings_from_options(override or [], data_dir, None)
        node = NodeConfig.load(config, settings, os.environ)
        if no_initial_controllers and cluster_id is None:
            raise OperatorError(
                "--no-initial-controllers requires --cluster-id",
                "The cluster id is in meta.properties of every other node,"
                " and in the ready message of `fenceline start`.",
            )
        endpoint, voters = initial_quorum(
            node, standalone=standalone, initial_controllers=initial_controllers, joins=no_initial_controllers
        )
        formatted = format_directory(
            node.log_dirs,
            cluster_id=cluster_id or encode_uuid(random_id()),
            node_id=node.node_id,
            metadata_log_dir=node.metadata_log_dir,
            voter_endpoint=endpoint,
            voters=voters,
            users=[added_user(text, os.urandom) for text in add_scram or ()],
            ignore_formatted=ignore_formatted,
        )
        message = f"Formatted {', '.join(formatted.directories)}" if formatted.directories else "Nothing to format"
        print_result(
            f"{message} for cluster {formatted.cluster_id}.",
            {"cluster_id": formatted.cluster_id, "directories": list(formatted.directories)},
            as_json=as_json,
        )
