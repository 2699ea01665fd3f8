"""`fenceline quorum`: who votes, how far each is, and changes of the voter set."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
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
    is_ascii_only,
    plain_admin,
    print_json,
    readable_errors,
    show,
)
from fenceline.errors import ErrorCode, FencelineError, OperatorError, PeerError
from fenceline.ids import decode_uuid, encode_uuid

if TYPE_CHECKING:
    from uuid import UUID

    from fenceline.client.admin_quorum import Endpoint, ReplicaStatus

quorum = typer.Typer(no_args_is_help=True, help="Show the controllers' quorum; add and remove voters.")

_KNOWN_WAIT_MS = 3000
_REACH_WAIT_S = 1.0
"""How long a node may take to take a connection, where nobody leads."""


@quorum.command(
    epilog=examples(
        ("fenceline quorum describe", "asks the node at 127.0.0.1:9092"),
        ("fenceline quorum describe -b host:9092 --json", "for programs; times are ms since 1970"),
        ("fenceline quorum describe -c host:9093", "asks a controller, which works without any broker"),
    )
)
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, controllers: Controllers = None, as_json: AsJson = False
) -> None:
    """The leader, its epoch, and how far each voter and observer has come.

    Lag is in records of the metadata log. Silent is who has not fetched for 2 seconds.
    """
    with admin_of(bootstrap, controllers) as admin:
        try:
            found = admin.describe_quorum()
        except PeerError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
            raise _nobody_answered(bootstrap, controllers, error) from error
    if as_json:
        voters, observers = [_row(each) for each in found.voters], [_row(each) for each in found.observers]
        head = {"leader_id": found.leader_id, "leader_epoch": found.leader_epoch}
        head["high_watermark"] = found.high_watermark
        print_json({**head, "voters": voters, "observers": observers})
        return
    from fenceline.cli import quorum_view

    print(quorum_view.headline(found))
    rows = quorum_view.rows(found, ascii_only=is_ascii_only())
    show(rows, as_json=False, empty="There are no voters.", optional=("log end", "directory id"))


def _nobody_answered(bootstrap: str, controllers: str | None, error: PeerError) -> FencelineError:
    """What can still be said: which of the nodes that the one asked knows take connections."""
    kind = "controllers" if controllers else "brokers"
    try:
        # By new connections: those there were still wait for their answers.
        with plain_admin(bootstrap, controllers) as admin:
            known = admin.describe_cluster(timeout_ms=_KNOWN_WAIT_MS).brokers
    except FencelineError:
        return error
    reached = [str(each.node_id) for each in known if _takes_connections(each.host, each.port)]
    missing = [str(each.node_id) for each in known if str(each.node_id) not in reached]
    words = f"Of the {kind} that it knows, {', '.join(reached) or 'none'} can be reached from here"
    words += f", not {', '.join(missing)}." if missing else "."
    return OperatorError(
        f"Nobody leads the quorum, or who does can not be asked: {error.message}",
        f"{words} A majority of the voters must run and reach each other; see their logs."
        + (
            ""
            if kind == "controllers"
            else " Which of them run is told by: fenceline quorum describe -c CONTROLLER:PORT"
        ),
    )


def _takes_connections(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_REACH_WAIT_S):
            return True
    except OSError:
        return False


def _row(replica: ReplicaStatus) -> dict[str, Any]:
    return {
        "id": replica.replica_id,
        "directory_id": encode_uuid(replica.directory_id) if replica.directory_id is not None else None,
        "log_end_offset": replica.log_end_offset,
        "lag": replica.lag,
        "last_fetch_ms": replica.last_fetch_ms,
        "last_caught_up_ms": replica.last_caught_up_ms,
        "endpoints": [str(each) for each in replica.endpoints],
    }


@quorum.command(
    epilog=examples(
        ("fenceline quorum add --config node4.properties -b host:9092", "on the machine of the new controller"),
        (
            "fenceline quorum add --id 4 --directory-id DRgdfgY1SRmN8DLPVGrZeg --endpoint CONTROLLER://four:9093",
            "from anywhere; the directory id is in its meta.properties",
        ),
    )
)
def add(
    config: Annotated[
        Path | None, typer.Option("--config", help="server.properties of the controller, run on its own machine")
    ] = None,
    voter_id: Annotated[int | None, typer.Option("--id", help="the controller's node.id")] = None,
    directory_id: Annotated[
        str | None, typer.Option(help="22 characters, from meta.properties of its metadata directory")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="CONTROLLER://HOST:PORT where other voters find it; may be repeated")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Make a controller that runs and follows already a voter.

    Named by its configuration (--config), or by --id, --directory-id and --endpoint.
    """
    with readable_errors():
        by_hand = [option is not None for option in (voter_id, directory_id, endpoint)]
        if (config is None) is not all(by_hand) or (config is not None and any(by_hand)):
            raise OperatorError(
                "It must be said which controller is to be added",
                "Give --config FILE on its own machine, or all of --id, --directory-id and --endpoint.",
            )
        cluster_id: str | None = None
        if config is not None:
            voter, directory, endpoints, cluster_id = _local_controller(config)
        else:
            from fenceline.client.admin_quorum import Endpoint

            assert voter_id is not None
            assert directory_id is not None
            voter, directory = voter_id, _directory_id(directory_id)
            endpoints = [Endpoint.parse(each) for each in endpoint or ()]
        with admin_of(bootstrap, controllers) as admin, _static_voters_explained():
            admin.add_raft_voter(voter, directory, endpoints, cluster_id=cluster_id)
        document = {"added": voter, "directory_id": encode_uuid(directory), "endpoints": list(map(str, endpoints))}
        done(f"Node {voter} is a voter now.", document, as_json=as_json)


def _local_controller(config: Path) -> tuple[int, UUID, list[Endpoint], str]:
    """Id, directory, endpoints and cluster of a controller of this machine."""
    from fenceline.client.admin_quorum import Endpoint
    from fenceline.config.node import NodeConfig
    from fenceline.log.disk import OsDisk
    from fenceline.log.meta_properties import read_meta

    node = NodeConfig.load(config, {}, os.environ)
    if not node.is_controller or not node.advertised_controller_listeners:
        raise OperatorError(
            f"{config} is not of a controller with a listener", "It needs process.roles with controller, and listeners."
        )
    path = str(node.metadata_log_dir)
    meta = read_meta(OsDisk(), path)
    if not meta.get("directory.id"):
        raise OperatorError(f"{path}/meta.properties has no directory.id", "Format the directory with this release.")
    endpoints = [Endpoint(each.name, each.host, each.port) for each in node.advertised_controller_listeners]
    if any(each.port == 0 for each in endpoints):
        raise OperatorError(f"{config} leaves a port open", "Give the port that it got, by --id and --endpoint.")
    return int(node.node_id), _directory_id(meta["directory.id"]), endpoints, meta["cluster.id"]


@quorum.command(
    epilog=examples(
        ("fenceline quorum remove 4", "whether it runs or is gone for good"),
        ("fenceline quorum remove 4 -c host:9093", "by way of any controller"),
    )
)
def remove(
    voter_id: Annotated[int, typer.Argument(help="the voter's node.id")],
    directory_id: Annotated[
        str | None, typer.Option(help="refuse unless the voter has this directory; the one that it has otherwise")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Take a voter out of the set. It goes on as an observer if it runs."""
    with readable_errors():
        known = _directory_id(directory_id) if directory_id is not None else None
        with admin_of(bootstrap, controllers) as admin, _static_voters_explained():
            directory = known if known is not None else admin.directory_of_voter(voter_id)
            admin.remove_raft_voter(voter_id, directory)
        document = {"removed": voter_id, "directory_id": encode_uuid(directory)}
        done(f"Node {voter_id} is no longer a voter.", document, as_json=as_json)


@contextmanager
def _static_voters_explained() -> Iterator[None]:
    try:
        yield
    except PeerError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise OperatorError(
            error.message,
            "A fixed set of voters (kraft.version 0) can not change. Make it one that can, for good, with:"
            " fenceline features upgrade kraft.version=1",
        ) from error


def _directory_id(text: str) -> UUID:
    try:
        return decode_uuid(text)
    except ValueError:
        raise OperatorError(
            f"{text!r} is not a directory id", "It is 22 characters of base64url, as meta.properties has it."
        ) from None
