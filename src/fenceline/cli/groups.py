"""`fenceline groups`."""

from __future__ import annotations

from typing import Annotated

import typer

from fenceline.cli.output import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, admin_of, done, print_json, show
from fenceline.client.admin import Admin
from fenceline.errors import OperatorError
from fenceline.ids import TopicPartition

groups = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")


@groups.command("list")
def list_groups(bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """All groups with their states."""
    with admin_of(bootstrap) as admin:
        rows = [
            {"group": g.group_id, "state": g.state, "protocol_type": g.protocol_type, "type": g.group_type}
            for g in sorted(admin.list_groups())
        ]
        show(rows, as_json=as_json, empty="There are no groups.")


@groups.command()
def describe(group: str, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Members, committed offsets with their leader epochs, and lag."""
    with admin_of(bootstrap) as admin:
        description = admin.describe_groups([group])[group]
        offsets = _lag(admin, group)
        members = [
            {
                "member": m.member_id,
                "instance": m.group_instance_id,
                "host": m.client_host,
                "partitions": [str(tp) for tp in m.assignment],
            }
            for m in description.members
        ]
        if as_json:
            print_json({"group": group, "state": description.state, "members": members, "offsets": offsets})
            return
        print(f"Group {group} is {description.state}.")
        show(offsets, as_json=False, empty="It has committed no offsets.")
        if members:
            show(members, as_json=False)


def _lag(admin: Admin, group: str) -> list[dict[str, object]]:
    committed = admin.list_group_offsets(group)
    ends = admin.list_offsets(dict.fromkeys(committed, "latest"))
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": offset.offset,
            "leader_epoch": offset.leader_epoch,
            "end": ends[tp].offset,
            "lag": max(ends[tp].offset - offset.offset, 0),
        }
        for tp, offset in sorted(committed.items())
    ]


@groups.command()
def reset(
    group: str,
    topic: str,
    to: Annotated[str, typer.Option(help="earliest, latest, a time in ms since 1970, or an exact offset as =N")],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Move a group without members to other offsets of a topic."""
    with admin_of(bootstrap) as admin:
        partitions = [TopicPartition(topic, index) for index in admin.metadata([topic]).topics[topic].partitions]
        if not partitions:
            raise OperatorError(f"There is no topic {topic}", "See the topics with: fenceline topics list")
        if to.startswith("="):
            targets = dict.fromkeys(partitions, int(to[1:]))
        else:
            spec = int(to) if to.lstrip("-").isdigit() else to
            ends = admin.list_offsets(dict.fromkeys(partitions, "latest"))
            found = admin.list_offsets(dict.fromkeys(partitions, spec))
            targets = {tp: at.offset if at.offset >= 0 else ends[tp].offset for tp, at in found.items()}
        admin.alter_group_offsets(group, targets)
        rows = [{"topic": tp.topic, "partition": tp.partition, "offset": at} for tp, at in sorted(targets.items())]
        show(rows, as_json=as_json, title=f"Group {group} now starts at")


@groups.command()
def delete(group: list[str], bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False) -> None:
    """Delete groups without members, with their offsets."""
    with admin_of(bootstrap) as admin:
        admin.delete_groups(group)
        done(f"Deleted {', '.join(group)}.", {"deleted": group}, as_json=as_json)
