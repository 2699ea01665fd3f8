"""`fenceline brokers`: lists and unregisters brokers, and shows their log directories."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Controllers,
    admin_of,
    examples,
    print_result,
    reject_options_before_command,
    show,
)

brokers = typer.Typer(
    invoke_without_command=True,
    help="List and unregister brokers; show their log directories. Without a command: list.",
    epilog=examples(
        ("fenceline brokers", "registered brokers, their state and partition counts"),
        ("fenceline brokers log-dirs 2 --partitions", "replicas on broker 2"),
        ("fenceline brokers unregister 3", "remove the registration of broker 3"),
    ),
)

_STATES = {True: "fenced", False: "unfenced", None: "unknown"}


@brokers.callback()
def brokers_root(context: typer.Context, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        list_brokers(bootstrap, as_json)
    else:
        reject_options_before_command(context)


@brokers.command("list")
def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List registered brokers with their numbers of leaders and replicas."""
    with admin_of(bootstrap) as admin:
        found = admin.describe_brokers()
        partitions = [p for topic in admin.metadata().topics.values() for p in topic.partitions.values()]
    leaders = Counter(partition.leader for partition in partitions)
    replicas = Counter(replica for partition in partitions for replica in partition.replicas)
    rows = [
        {
            "id": broker.node_id,
            "state": _STATES[broker.is_fenced],
            "endpoint": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "leaders": leaders[broker.node_id],
            "replicas": replicas[broker.node_id],
        }
        for broker in found
    ]
    show(rows, as_json=as_json, empty="No broker is registered.")


@brokers.command()
def unregister(
    broker: Annotated[int, typer.Argument(help="the broker's node.id")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Remove the registration of a broker. A running broker registers again when it is restarted."""
    with admin_of(bootstrap, controllers) as admin:
        admin.unregister_broker(broker)
    print_result(f"Unregistered broker {broker}.", {"unregistered": broker}, as_json=as_json)


@brokers.command("log-dirs")
def log_dirs(
    broker: Annotated[list[int] | None, typer.Argument(help="node.ids; default: all unfenced brokers")] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="print a row for each replica")] = False,
    topic: Annotated[list[str] | None, typer.Option(help="print only replicas of this topic; may be repeated")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show each broker's log directories: replicas, their size, and the free space of the volume."""
    with admin_of(bootstrap) as admin:
        described = admin.describe_log_dirs(broker or None)
    rows: list[dict[str, Any]] = []
    for broker_id, directories in described.items():
        for directory in directories:
            of = {tp: r for tp, r in sorted(directory.replicas.items()) if not topic or tp.topic in topic}
            place = {"broker": broker_id, "directory": directory.path}
            if partitions:
                rows += [
                    {
                        **place,
                        "topic": tp.topic,
                        "partition": tp.partition,
                        "size_bytes": replica.size_bytes,
                        "offset_lag": replica.offset_lag,
                        "is_future": replica.is_future,
                    }
                    for tp, replica in of.items()
                ]
                continue
            state = "ok" if directory.error == 0 else directory.error.name
            rows.append(
                {
                    **place,
                    "state": "cordoned" if directory.is_cordoned and state == "ok" else state,
                    "replicas": len(of),
                    "size_bytes": sum(replica.size_bytes for replica in of.values()),
                    "usable_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
                    "total_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
                }
            )
    show(rows, as_json=as_json, empty="There are no replicas." if partitions else "There are no directories.")
