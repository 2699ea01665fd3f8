"""`fenceline quorum`: describes the controller quorum, and adds and removes voters."""

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
    examples,
    is_ascii_only,
    plain_admin,
    print_json,
    print_result,
    readable_errors,
    show,
)
from fenceline.errors import ErrorCode, FencelineError, OperatorError, PeerError
from fenceline.ids import decode_uuid, encode_uuid

if TYPE_CHECKING:
    from uuid import UUID

    from fenceline.client.admin.quorum import ControllerAddress, ReplicaStatus

quorum = typer.Typer(no_args_is_help=True, help="Describe the controller quorum; add and remove voters.")

_KNOWN_WAIT_MS = 3000
_REACH_WAIT_S = 1.0
"""Connection timeout of the reachability check if there is no leader."""


@quorum.command(
    epilog=examples(
        ("fenceline quorum describe", "by the broker at 127.0.0.1:9092"),
        ("fenceline quorum describe -b host:9092 --json", "as JSON; times are ms since 1970"),
        ("fenceline quorum describe -c host:9093", "by a controller; works without brokers"),
    )
)
def describe(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, controllers: Controllers = None, as_json: AsJson = False
) -> None:
    """Show the leader, its epoch, and the state and lag of each voter and observer.

    Lag is in records of the metadata log. A replica is silent if it has not fetched for 2 seconds.
    """
    with admin_of(bootstrap, controllers) as admin:
        try:
            found = admin.describe_quorum()
        except PeerError as error:
            if error.code is not ErrorCode.REQUEST_TIMED_OUT:
                raise
            raise _no_leader_error(bootstrap, controllers, error) from error
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


def _no_leader_error(bootstrap: str, controllers: str | None, error: PeerError) -> FencelineError:
    """An error that names which of the known nodes accept connections."""
    kind = "controllers" if controllers else "brokers"
    try:
        # New connections: the existing ones still wait for their responses.
        with plain_admin(bootstrap, controllers) as admin:
            known = admin.describe_cluster(timeout_ms=_KNOWN_WAIT_MS).brokers
    except FencelineError:
        return error
    reached = [str(each.node_id) for each in known if _accepts_connections(each.host, each.port)]
    missing = [str(each.node_id) for each in known if str(each.node_id) not in reached]
    reachability = f"Reachable {kind}: {', '.join(reached) or 'none'}"
    reachability += f"; not reachable: {', '.join(missing)}." if missing else "."
    return OperatorError(
        f"The quorum has no leader, or the leader does not answer: {error.message}",
        f"{reachability} A majority of the voters must be running and reach each other; check their logs."
        + (
            ""
            if kind == "controllers"
            else " List reachable controllers with: fenceline quorum describe -c CONTROLLER:PORT"
        ),
    )


def _accepts_connections(host: str, port: int) -> bool:
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
        ("fenceline quorum add --config node4.properties -b host:9092", "on the new controller's machine"),
        (
            "fenceline quorum add --id 4 --directory-id DRgdfgY1SRmN8DLPVGrZeg --endpoint CONTROLLER://four:9093",
            "from any machine; the directory id is in meta.properties",
        ),
    )
)
def add(
    config: Annotated[
        Path | None, typer.Option("--config", help="server.properties of the controller, on its own machine")
    ] = None,
    voter_id: Annotated[int | None, typer.Option("--id", help="the controller's node.id")] = None,
    directory_id: Annotated[
        str | None, typer.Option(help="22 characters, from meta.properties in its metadata directory")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="CONTROLLER://HOST:PORT for the other voters; may be repeated")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Add a running controller, an observer, to the voters.

    Identify it by its configuration (--config), or by --id, --directory-id and --endpoint.
    """
    with readable_errors():
        explicit = [option is not None for option in (voter_id, directory_id, endpoint)]
        if (config is None) is not all(explicit) or (config is not None and any(explicit)):
            raise OperatorError(
                "The controller must be given by --config, or by --id, --directory-id and --endpoint",
                "Use --config FILE on the controller's machine, or all of the other three options.",
            )
        cluster_id: str | None = None
        if config is not None:
            voter, directory, endpoints, cluster_id = _local_controller(config)
        else:
            from fenceline.client.admin.quorum import ControllerAddress

            assert voter_id is not None
            assert directory_id is not None
            voter, directory = voter_id, _directory_id(directory_id)
            endpoints = [ControllerAddress.parse(each) for each in endpoint or ()]
        with admin_of(bootstrap, controllers) as admin, _static_voters_explained():
            admin.add_raft_voter(voter, directory, endpoints, cluster_id=cluster_id)
        document = {"added": voter, "directory_id": encode_uuid(directory), "endpoints": list(map(str, endpoints))}
        print_result(f"Added node {voter} to the voters.", document, as_json=as_json)


def _local_controller(config: Path) -> tuple[int, UUID, list[ControllerAddress], str]:
    """Node id, directory id, endpoints and cluster id of a controller on this machine."""
    from fenceline.client.admin.quorum import ControllerAddress
    from fenceline.config.node import NodeConfig
    from fenceline.log.core.disk import OsDisk
    from fenceline.log.core.meta_properties import read_meta

    node = NodeConfig.load(config, {}, os.environ)
    if not node.is_controller or not node.advertised_controller_listeners:
        raise OperatorError(
            f"{config} does not configure a controller with a listener",
            "Set process.roles to include controller, and set listeners.",
        )
    path = str(node.metadata_log_dir)
    meta = read_meta(OsDisk(), path)
    if not meta.get("directory.id"):
        raise OperatorError(f"{path}/meta.properties has no directory.id", "Format the directory with this release.")
    endpoints = [ControllerAddress(each.name, each.host, each.port) for each in node.advertised_controller_listeners]
    if any(each.port == 0 for each in endpoints):
        raise OperatorError(
            f"{config} has a listener with port 0",
            "Use --id, --directory-id and --endpoint, with the actual port.",
        )
    return int(node.node_id), _directory_id(meta["directory.id"]), endpoints, meta["cluster.id"]


@quorum.command(
    epilog=examples(
        ("fenceline quorum remove 4", "whether it is running or not"),
        ("fenceline quorum remove 4 -c host:9093", "by any controller"),
    )
)
def remove(
    voter_id: Annotated[int, typer.Argument(help="the voter's node.id")],
    directory_id: Annotated[
        str | None, typer.Option(help="fail unless the voter has this directory id [default: its current one]")
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Remove a voter. If it is running, it continues as an observer."""
    with readable_errors():
        known = _directory_id(directory_id) if directory_id is not None else None
        with admin_of(bootstrap, controllers) as admin, _static_voters_explained():
            directory = known if known is not None else admin.directory_of_voter(voter_id)
            admin.remove_raft_voter(voter_id, directory)
        document = {"removed": voter_id, "directory_id": encode_uuid(directory)}
        print_result(f"Removed node {voter_id} from the voters.", document, as_json=as_json)


@contextmanager
def _static_voters_explained() -> Iterator[None]:
    try:
        yield
    except PeerError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        raise OperatorError(
            error.message,
            "A static set of voters (kraft.version 0) cannot change. Upgrade, which cannot be undone, with:"
            " fenceline features upgrade kraft.version=1",
        ) from error


def _directory_id(text: str) -> UUID:
    try:
        return decode_uuid(text)
    except ValueError:
        raise OperatorError(
            f"{text!r} is not a directory id", "Use the 22 characters of directory.id in meta.properties."
        ) from None
