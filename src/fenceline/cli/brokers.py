"""`fenceline brokers`: who is registered, forgetting one, and what lies in their directories."""

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
    done,
    examples,
    only_without_command,
    show,
)

brokers = typer.Typer(
    invoke_without_command=True,
    help="List and unregister brokers; show their log directories. Without a command: list.",
    epilog=examples(
        ("fenceline brokers", "who is registered, who is fenced, and what each leads"),
        ("fenceline brokers log-dirs 2 --partitions", "what lies on broker 2"),
        ("fenceline brokers unregister 3", "forget broker 3, which is gone for good"),
    ),
)

_STATES = {True: "fenced", False: "unfenced", None: "not known"}


@brokers.callback()
def brokers_root(context: typer.Context, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    if context.invoked_subcommand is None:
        list_brokers(bootstrap, as_json)
    else:
        only_without_command(context)


@brokers.command("list")
def list_brokers(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Every registered broker, with the partitions that it leads and holds."""
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
    """Forget a broker that is gone for good. One that still runs registers again when it is restarted."""
    with admin_of(bootstrap, controllers) as admin:
        admin.unregister_broker(broker)
    done(f"Broker {broker} is forgotten.", {"unregistered": broker}, as_json=as_json)


@brokers.command("log-dirs")
def log_dirs(
    broker: Annotated[
        list[int] | None, typer.Argument(help="node.ids; all unfenced brokers when none is given")
    ] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="a row for each replica")] = False,
    topic: Annotated[list[str] | None, typer.Option(help="only replicas of this topic; may be repeated")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Each broker's directories: replicas, their bytes, and what the volume has left."""
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
