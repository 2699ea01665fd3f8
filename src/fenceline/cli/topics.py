"""`fenceline topics` and `fenceline configs`."""

from __future__ import annotations

from typing import Annotated

import typer

from fenceline.cli.metadata import show_config
from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin_of,
    existing_topic,
    pairs,
    print_result,
    show,
)
from fenceline.cli.topic_view import json_row, summary, table_row
from fenceline.errors import OperatorError
from fenceline.ids import encode_uuid

topics = typer.Typer(no_args_is_help=True, help="List, describe, create, grow and delete topics.")
configs = typer.Typer(no_args_is_help=True, help="Show and change settings of topics and brokers.")


@topics.command("list")
def list_topics(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """List topics with their ids and partition counts."""
    with admin_of(bootstrap) as admin:
        found = admin.metadata().topics
        rows = [
            {"topic": t.name, "id": encode_uuid(t.id), "partitions": len(t.partitions), "internal": t.is_internal}
            for t in sorted(found.values(), key=lambda t: t.name)
        ]
        show(rows, as_json=as_json, empty="There are no topics. Create one with: fenceline topics create NAME")


@topics.command()
def describe(name: str, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Show leader, leader epoch, replicas, ISR, lag and state of each partition."""
    with admin_of(bootstrap) as admin:
        topic = existing_topic(admin, name)
        setting = admin.describe_configs([("topic", name)])["topic", name].get("min.insync.replicas")
        needed = int(setting.value) if setting is not None and setting.value else 1
        found = sorted((tp.partition, states) for tp, states in admin.describe_replicas([name]).items())
        if as_json:
            show([json_row(index, states, needed) for index, states in found], as_json=True)
        else:
            title = f"{name} ({encode_uuid(topic.id)}){summary([states for _, states in found], needed)}"
            rows = [table_row(index, states, needed) for index, states in found]
            show(rows, as_json=False, title=title, optional=("high_watermark", "replicas"))


@topics.command()
def create(
    name: str,
    partitions: Annotated[int, typer.Option(help="number of partitions; -1: the broker default")] = -1,
    replication_factor: Annotated[int, typer.Option(help="replicas of each partition; -1: the broker default")] = -1,
    config: Annotated[list[str] | None, typer.Option(help="a topic setting as key=value; may be repeated")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Create a topic."""
    from fenceline.client.admin.admin import NewTopic

    with admin_of(bootstrap) as admin:
        wanted = NewTopic(name, partitions, replication_factor, pairs(config or [], "--config"))
        made = admin.create_topics([wanted])
        created = next(iter(made.values() if isinstance(made, dict) else made))
        print_result(
            f"Created {name} with {created.num_partitions} partition{'s' * (created.num_partitions != 1)}.",
            {"topic": name, "id": encode_uuid(created.id), "partitions": created.num_partitions},
            as_json=as_json,
        )


@topics.command()
def grow(
    name: str,
    total: Annotated[int | None, typer.Argument(metavar="[PARTITIONS]", help="the new number of partitions")] = None,
    partitions: Annotated[int | None, typer.Option(help="the same as an option")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Add partitions to a topic. Existing records stay in their partitions."""
    wanted = partitions if total is None else total
    if wanted is None or None not in (total, partitions):
        raise OperatorError(
            "The new number of partitions must be given once, as argument or option",
            f"For example: fenceline topics grow {name} --partitions 6",
        )
    with admin_of(bootstrap) as admin:
        admin.create_partitions({name: wanted})
        print_result(f"{name} has {wanted} partitions.", {"topic": name, "partitions": wanted}, as_json=as_json)


@topics.command()
def delete(name: list[str], bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Delete topics with all their records."""
    with admin_of(bootstrap) as admin:
        admin.delete_topics(name)
        print_result(f"Deleted {', '.join(name)}.", {"deleted": name}, as_json=as_json)


Kind = Annotated[str, typer.Argument(help="topic or broker")]


@configs.command("describe")
def describe_configs(
    kind: Kind,
    name: Annotated[str, typer.Argument(help="the topic's name or the broker's id")],
    all_settings: Annotated[bool, typer.Option("--all", help="include default settings")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Show effective settings and their sources."""
    with admin_of(bootstrap) as admin:
        entries = admin.describe_configs([(kind, name)])[kind, name]
        rows = [
            {"setting": key, "value": entry.value, "source": entry.source, "read_only": entry.is_read_only}
            for key, entry in sorted(entries.items())
            if all_settings or entry.source != "DEFAULT_CONFIG"
        ]
        show(rows, as_json=as_json, empty=f"{kind} {name} has only default settings. Use --all to show them.")


@configs.command("set")
def set_configs(
    kind: Kind,
    name: Annotated[str, typer.Argument(help="the topic's name or the broker's id; '' for all brokers")],
    settings: Annotated[list[str], typer.Argument(help="key=value, or key= to restore the default")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Change dynamic settings."""
    with admin_of(bootstrap) as admin:
        changes = {key: value or None for key, value in pairs(settings, "setting").items()}
        admin.alter_configs({(kind, name): changes})
        shown = {key: None if value is None else show_config(key, value) for key, value in changes.items()}
        print_result(f"Changed {', '.join(changes)} of {kind} {name or '(all)'}.", {"changed": shown}, as_json=as_json)
