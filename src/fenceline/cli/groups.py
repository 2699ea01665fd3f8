"""`fenceline groups`: lists, describes, resets and deletes groups. Works with Apache Kafka as well."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    admin_of,
    examples,
    print_json,
    print_result,
    show,
)
from fenceline.errors import ErrorCode, OperatorError, PeerError
from fenceline.ids import TopicPartition

if TYPE_CHECKING:
    from fenceline.client.admin.admin import Admin
    from fenceline.client.admin.groups import GroupDescription, GroupListing
    from fenceline.groups.messages import CommittedRewind

groups = typer.Typer(no_args_is_help=True, help="List, describe, reset and delete consumer groups.")

_INACTIVE = ("Empty", "Dead")


@groups.command("list")
def list_groups(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: Annotated[list[str] | None, typer.Option(help="list only groups in this state; may be repeated")] = None,
    lag: Annotated[
        bool, typer.Option("--lag", help="also print members, lag and marks (one request per group)")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List groups with their states."""
    from fenceline.cli.group_marks import rewinds_of

    with admin_of(bootstrap) as admin:
        listed = sorted(_with_states(admin, admin.list_groups(states=state or ()), state or ()))
        rows: list[dict[str, Any]] = [
            {"group": g.group_id, "state": g.state, "protocol_type": g.protocol_type, "type": g.group_type}
            for g in listed
        ]
        if lag:
            rewinds = rewinds_of(admin, bootstrap, [g.group_id for g in listed])
            for row in rows:
                row |= _summed(_described_if_there(admin, row["group"], rewinds[row["group"]]))
        show(rows, as_json=as_json, empty="There are no groups.")


def _with_states(admin: Admin, listed: Sequence[GroupListing], wanted: Collection[str]) -> list[GroupListing]:
    """Add and filter by states for brokers before Kafka 2.6, whose ListGroups has none: each group is described."""
    without_state = [each.group_id for each in listed if not each.state]
    described = admin.describe_groups(without_state) if without_state else {}
    found = [each if each.state else each._replace(state=described[each.group_id].state) for each in listed]
    return [each for each in found if not wanted or each.state in wanted] if without_state else found


def _summed(document: dict[str, Any] | None) -> dict[str, Any]:
    """The total lag of a group, and all marks of its offsets."""
    if document is None:
        return {"members": None, "lag": None, "mark": None}
    lags = [each["lag"] for each in document["offsets"] if each["lag"] is not None]
    marks = {mark for each in document["offsets"] if each["mark"] for mark in each["mark"].split(", ")}
    return {
        "members": len(document["members"]),
        "lag": sum(lags) if lags else None,
        "mark": ", ".join(sorted(marks)) or None,
    }


@groups.command(
    epilog=examples(
        ("fenceline groups describe readers", "offsets, lag, members"),
        ("fenceline groups describe --all --json", "all groups, as JSON"),
    )
)
def describe(
    group: Annotated[list[str] | None, typer.Argument(help="groups")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    all_groups: Annotated[bool, typer.Option("--all", help="describe all groups")] = False,
    history: Annotated[bool, typer.Option(help="search __consumer_offsets for rewound offsets")] = True,
    as_json: AsJson = False,
) -> None:
    """Show members, committed offsets with their leader epochs, lag, and marks.

    Marks: rewound (moved back because the log was truncated), truncated (the log was truncated below the offset),
    expired (below the log start offset), beyond (above the log end offset).
    """
    from fenceline.cli.group_marks import rewinds_of

    if not group and not all_groups:
        raise typer.BadParameter("give a group or --all")
    with admin_of(bootstrap) as admin:
        names = sorted(each.group_id for each in admin.list_groups()) if all_groups else list(group or ())
        rewinds = rewinds_of(admin, bootstrap, names) if history else {}
        of_one = _described_if_there if all_groups else _described
        documents = [found for name in names if (found := of_one(admin, name, rewinds.get(name, {}))) is not None]
        if as_json:
            print_json(documents if all_groups or len(documents) != 1 else documents[0])
            return
        for document in documents:
            _show_described(document)


def _described_if_there(
    admin: Admin, group: str, rewinds: dict[TopicPartition, CommittedRewind]
) -> dict[str, Any] | None:
    """None for a group that was deleted meanwhile, or that has no offsets, such as a share group."""
    try:
        return _described(admin, group, rewinds)
    except PeerError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return None
        raise


def _described(admin: Admin, group: str, rewinds: dict[TopicPartition, CommittedRewind]) -> dict[str, Any]:
    description = admin.describe_groups([group])[group]
    return {
        "group": group,
        "state": description.state,
        "members": [
            {
                "member": m.member_id,
                "instance": m.group_instance_id,
                "host": m.client_host,
                "partitions": [str(tp) for tp in m.assignment],
            }
            for m in description.members
        ],
        "offsets": _positions(admin, group, description, rewinds),
        "rewinds": [
            {"topic": tp.topic, "partition": tp.partition, **rewind._asdict()} for tp, rewind in sorted(rewinds.items())
        ],
    }


def _positions(
    admin: Admin, group: str, description: GroupDescription, rewinds: dict[TopicPartition, CommittedRewind]
) -> list[dict[str, Any]]:
    """One row for each partition with a committed offset or an assigned member."""
    from fenceline.cli.group_marks import epoch_ends, marks_of

    committed = admin.list_group_offsets(group)
    owners = {tp: member.member_id for member in description.members for tp in member.assignment}
    wanted = sorted(committed.keys() | owners.keys())
    topics = admin.metadata({tp.topic for tp in wanted}).topics if wanted else {}
    there = [tp for tp in wanted if tp.partition in topics[tp.topic].partitions]
    starts = admin.list_offsets(dict.fromkeys(there, "earliest"))
    ends = admin.list_offsets(dict.fromkeys(there, "latest"))
    epochs = epoch_ends(admin, committed)
    rows: list[dict[str, Any]] = []
    for tp in wanted:
        at, end = committed.get(tp), ends[tp].offset if tp in ends else None
        row: dict[str, Any] = {
            "topic": tp.topic,
            "partition": tp.partition,
            "current_offset": None,
            "epoch": None,
            "log_end": end,
            "lag": None,
            "mark": None,
            "member": owners.get(tp),
        }
        if at is not None:
            row |= {"current_offset": at.offset, "epoch": at.leader_epoch if at.leader_epoch >= 0 else None}
            if end is not None:
                row["lag"] = max(end - at.offset, 0)
                marks = marks_of(
                    at,
                    log_start=starts[tp].offset,
                    log_end=end,
                    epoch_end=epochs.get(tp, -1),
                    rewind=rewinds.get(tp),
                )
                row["mark"] = ", ".join(marks) or None
        rows.append(row)
    return rows


def _show_described(document: dict[str, Any]) -> None:
    print(f"Group {document['group']} is {document['state']}.")
    show(document["offsets"], as_json=False, empty="The group has no committed offsets.", optional=("member",))
    for each in document["rewinds"]:
        when = datetime.fromtimestamp(each["at_ms"] / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        print(
            f"{each['topic']}-{each['partition']} was rewound from {each['from_offset']} (epoch {each['from_epoch']})"
            f" to {each['to_offset']} (epoch {each['to_epoch']}) at {when}: the log was truncated."
        )
    if any("truncated" in (each["mark"] or "") for each in document["offsets"]):
        print("Truncated: the log was truncated below the committed offset. See: fenceline losses list")
    if document["members"]:
        show(document["members"], as_json=False)


@groups.command(
    epilog=examples(
        ("fenceline groups reset readers hello --to-earliest", "print the new offsets only"),
        ("fenceline groups reset readers hello:0,1 --shift-by -100 --execute", "two partitions"),
        ("fenceline groups reset readers --all-topics --by-duration PT2H --execute", "move back by two hours"),
    )
)
def reset(
    group: str,
    topic: Annotated[list[str] | None, typer.Argument(help="TOPIC, or TOPIC:0,1 for some partitions")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="all topics with committed offsets of the group")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="to the log start offset")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="to the log end offset")] = False,
    to_current: Annotated[
        bool, typer.Option("--to-current", help="to the committed offset, or the log end offset if there is none")
    ] = False,
    to_offset: Annotated[int | None, typer.Option(help="to this offset")] = None,
    to_datetime: Annotated[
        str | None, typer.Option(help="to the first record at or after a time, such as 2026-11-22T04:30:00.000")
    ] = None,
    shift_by: Annotated[int | None, typer.Option(help="forward by N offsets; back if N is negative")] = None,
    by_duration: Annotated[
        str | None, typer.Option(help="to the first record at or after now minus a duration (PnDTnHnMnS)")
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="commit the new offsets [default: print them only]")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Reset the offsets of a group without members. Without --execute, only prints the new offsets."""
    from fenceline.cli.group_epochs import with_epochs
    from fenceline.cli.group_reset import new_offsets, partitions_of, target_of

    with admin_of(bootstrap) as admin:
        target = target_of(
            earliest=to_earliest,
            latest=to_latest,
            current=to_current,
            offset=to_offset,
            when=to_datetime,
            shift=shift_by,
            duration=by_duration,
        )
        committed = admin.list_group_offsets(group)
        if bool(topic) == all_topics:
            raise OperatorError(
                "Topics and --all-topics are mutually exclusive, and one is required", "Give topics or --all-topics."
            )
        partitions = sorted(committed) if all_topics else partitions_of(admin, topic or ())
        state = _state(admin, group)
        if state not in _INACTIVE:
            raise OperatorError(
                f"Group {group} is {state}: offsets can be reset only while a group has no members",
                "Stop the members, and wait until the group is Empty (see: fenceline groups list).",
            )
        targets = with_epochs(admin, new_offsets(admin, target, partitions, committed))
        if execute and targets:
            admin.alter_group_offsets(group, targets)
        ends = admin.list_offsets(dict.fromkeys(targets, "latest"))
        rows = [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "current_offset": committed[tp].offset if tp in committed else None,
                "new_offset": at.offset,
                "epoch": at.leader_epoch if at.leader_epoch >= 0 else None,
                "lag": max(ends[tp].offset - at.offset, 0),
            }
            for tp, at in sorted(targets.items())
        ]
        if as_json:
            print_json({"group": group, "executed": execute, "offsets": rows})
            return
        title = f"New offsets of group {group}" + ("" if execute else " (not committed; use --execute)")
        show(rows, as_json=False, title=title, empty=f"Group {group} has committed no offsets.")


def _state(admin: Admin, group: str) -> str:
    """The group's state; Dead if there is no such group: a commit creates it."""
    listed = [each for each in admin.list_groups() if each.group_id == group]
    return next((each.state for each in _with_states(admin, listed, ())), "Dead")


@groups.command()
def delete(
    group: list[str],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[
        list[str] | None, typer.Option(help="delete only the offsets of this topic (or TOPIC:0,1); may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Delete groups without members, or only their offsets of some topics."""
    from fenceline.cli.group_reset import partitions_of

    with admin_of(bootstrap) as admin:
        if topic:
            partitions = partitions_of(admin, topic)
            for each in group:
                admin.delete_group_offsets(each, partitions)
            names = [str(tp) for tp in partitions]
            message = f"Deleted the offsets of {', '.join(names)} of {', '.join(group)}."
            print_result(message, {"groups": group, "deleted_offsets": names}, as_json=as_json)
            return
        admin.delete_groups(group)
        print_result(f"Deleted {', '.join(group)}.", {"deleted": group}, as_json=as_json)
