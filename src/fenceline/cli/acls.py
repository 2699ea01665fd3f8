"""`fenceline acls`: lists, adds and removes ACLs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.options import with_options_of
from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    Controllers,
    admin_of,
    examples,
    print_json,
    readable_errors,
    reject_options_before_command,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fenceline.cli.acl_rules import AclOptions, Resource
    from fenceline.client.admin.acls import AclBinding

acls = typer.Typer(
    invoke_without_command=True,
    help="List, add and remove ACLs. Without a command: list.",
    epilog=examples(
        ("fenceline acls", "all ACLs"),
        ("fenceline acls list --topic rain --resource-pattern-type match", "those that apply to the topic"),
        ("fenceline acls add --allow-principal User:anna --producer --topic rain", "let anna write to a topic"),
        ("fenceline acls add --allow-principal User:ben --consumer --topic rain --group readers", "let ben read it"),
        ("fenceline acls remove --topic rain --execute", "remove all ACLs of the topic"),
    ),
)

_Topics = Annotated[list[str] | None, typer.Option("--topic", help="a topic; * for all. May be repeated")]
_Groups = Annotated[list[str] | None, typer.Option("--group", help="a group; * for all. May be repeated")]
_Cluster = Annotated[bool, typer.Option("--cluster", help="the cluster itself")]
_Ids = Annotated[list[str] | None, typer.Option("--transactional-id", help="may be repeated")]
_Tokens = Annotated[list[str] | None, typer.Option("--delegation-token", help="id of a token; may be repeated")]
_Users = Annotated[list[str] | None, typer.Option("--user-principal", help="owner of tokens; may be repeated")]
_Allowed = Annotated[list[str] | None, typer.Option("--allow-principal", help="User:NAME; may be repeated")]
_Denied = Annotated[list[str] | None, typer.Option("--deny-principal", help="User:NAME; may be repeated")]
_AllowedHosts = Annotated[list[str] | None, typer.Option("--allow-host", help="IP address; may be repeated")]
_DeniedHosts = Annotated[list[str] | None, typer.Option("--deny-host", help="IP address; may be repeated")]
_Operations = Annotated[list[str] | None, typer.Option("--operation", help="such as read; may be repeated")]
_Producer = Annotated[bool, typer.Option("--producer", help="write, describe and create topics; transactional ids")]
_Consumer = Annotated[bool, typer.Option("--consumer", help="read and describe topics, read groups")]
_Idempotent = Annotated[bool, typer.Option("--idempotent", help="with --producer: for Kafka before 3.0")]
_Pattern = Annotated[
    str,
    typer.Option("--resource-pattern-type", help="literal, or prefixed: all names that begin with the given ones"),
]
_PatternFilter = Annotated[
    str,
    typer.Option("--resource-pattern-type", help="literal, prefixed, any, or match: ACLs that apply to the names"),
]


@acls.callback()
def acls_root(
    context: typer.Context,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is None:
        list_acls(bootstrap=bootstrap, controllers=controllers, as_json=as_json)
    else:
        reject_options_before_command(context)


def _named(
    topic: _Topics = None,
    group: _Groups = None,
    cluster: _Cluster = False,
    transactional_id: _Ids = None,
    delegation_token: _Tokens = None,
    user_principal: _Users = None,
) -> tuple[Resource, ...]:
    from fenceline.cli.acl_rules import named_resources

    return named_resources(topic, group, transactional_id, delegation_token, user_principal, cluster=cluster)


@with_options_of(_named)
def _rules(
    named: tuple[Resource, ...],
    allow_principal: _Allowed = None,
    deny_principal: _Denied = None,
    allow_host: _AllowedHosts = None,
    deny_host: _DeniedHosts = None,
    operation: _Operations = None,
    producer: _Producer = False,
    consumer: _Consumer = False,
    idempotent: _Idempotent = False,
) -> AclOptions:
    from fenceline.cli.acl_rules import AclOptions

    return AclOptions(
        named,
        allowed=tuple(allow_principal or ()),
        denied=tuple(deny_principal or ()),
        allowed_hosts=tuple(allow_host or ()),
        denied_hosts=tuple(deny_host or ()),
        operations=tuple(operation or ()),
        producer=producer,
        consumer=consumer,
        idempotent=idempotent,
    )


@acls.command("list")
@with_options_of(_named)
def list_acls(
    named: tuple[Resource, ...],
    principal: Annotated[list[str] | None, typer.Option(help="User:NAME; may be repeated")] = None,
    pattern: _PatternFilter = "any",
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """List ACLs: all, or those of the named resources and principals."""
    from fenceline.cli.acl_rules import pattern_filter
    from fenceline.client.admin.acls import AclBindingFilter
    from fenceline.wire.acl_codes import ANY

    with readable_errors():
        of = pattern_filter(pattern)
    found: set[AclBinding] = set()
    with admin_of(bootstrap, controllers) as admin:
        for kind, name in named or ((ANY, None),):
            for each in principal or (None,):
                found.update(admin.describe_acls(AclBindingFilter(kind, name, each, pattern_type=of)))
    show(_rows(sorted(found)), as_json=as_json, empty="There are no ACLs.")


@acls.command()
@with_options_of(_rules)
def add(
    rules: AclOptions,
    pattern: _Pattern = "literal",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the ACLs only")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Add ACLs: of each named principal, for each named resource. Without --operation: all operations."""
    from fenceline.cli.acl_rules import bindings

    with readable_errors():
        wanted = sorted(bindings(replace(rules, pattern=pattern)))
    if not dry_run:
        with admin_of(bootstrap, controllers) as admin:
            admin.create_acls(wanted)
    if as_json:
        print_json({"added": _rows(wanted), "dry_run": dry_run})
        return
    show(_rows(wanted), as_json=False, title="These would be added" if dry_run else "Added")


@acls.command()
@with_options_of(_rules)
def remove(
    rules: AclOptions,
    pattern: _PatternFilter = "literal",
    execute: Annotated[bool, typer.Option("--execute", help="remove the ACLs [default: print them only]")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    controllers: Controllers = None,
    as_json: AsJson = False,
) -> None:
    """Remove the ACLs that match the options; one that is left out matches everything. Without --execute, only prints
    them."""
    from fenceline.cli.acl_rules import filters

    with readable_errors():
        wanted = filters(replace(rules, pattern=pattern))
    with admin_of(bootstrap, controllers) as admin:
        if execute:
            found = {binding for each in admin.delete_acls(wanted) for binding in each}
        else:
            found = {binding for each in wanted for binding in admin.describe_acls(each)}
    if as_json:
        print_json({"removed": _rows(sorted(found)), "executed": execute})
        return
    title = "Removed" if execute else "These would be removed; use --execute"
    show(_rows(sorted(found)), as_json=False, title=title, empty="No ACL matches.")


def _rows(found: Iterable[AclBinding]) -> list[dict[str, Any]]:
    from fenceline.client.admin.acls import name_of
    from fenceline.wire.acl_codes import AclOperation, PatternType, Permission, ResourceType

    return [
        {
            "resource_type": name_of(ResourceType, each.resource_type),
            "resource_name": each.resource_name,
            "pattern_type": name_of(PatternType, each.pattern_type),
            "principal": each.principal,
            "host": each.host,
            "operation": name_of(AclOperation, each.operation),
            "permission": name_of(Permission, each.permission),
        }
        for each in found
    ]
