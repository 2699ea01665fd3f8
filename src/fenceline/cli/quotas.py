"""`fenceline quotas`: lists, sets and removes quotas of users, client ids and addresses. Also Apache Kafka's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.options import with_options_of
from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    CommandConfig,
    admin_of,
    examples,
    pairs,
    print_result,
    readable_errors,
    show,
    use_command_config,
)
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from collections.abc import Mapping

quotas = typer.Typer(
    no_args_is_help=True,
    help="List, set and remove quotas of users, client ids and IP addresses.",
    epilog=examples(
        ("fenceline quotas list", "all quotas"),
        ("fenceline quotas set producer_byte_rate=1048576 --user anna", "1 MiB/s for anna, at each broker"),
        ("fenceline quotas set consumer_byte_rate=5e6 --client-defaults", "for each client id that has none"),
        ("fenceline quotas remove producer_byte_rate --user anna", "anna is not limited any more"),
    ),
)

_User = Annotated[str | None, typer.Option(help="a user; without User:")]
_UserDefaults = Annotated[bool, typer.Option("--user-defaults", help="each user that has no quota of its own")]
_Client = Annotated[str | None, typer.Option(help="a client id")]
_ClientDefaults = Annotated[bool, typer.Option("--client-defaults", help="each client id that has no quota of its own")]
_Ip = Annotated[str | None, typer.Option(help="an IP address")]
_IpDefaults = Annotated[bool, typer.Option("--ip-defaults", help="each IP address that has no quota of its own")]


def _entity(
    user: _User = None,
    user_defaults: _UserDefaults = False,
    client: _Client = None,
    client_defaults: _ClientDefaults = False,
    ip: _Ip = None,
    ip_defaults: _IpDefaults = False,
) -> dict[str, str | None]:
    """Names by type; None: the default."""
    chosen = {"user": (user, user_defaults), "client-id": (client, client_defaults), "ip": (ip, ip_defaults)}
    with readable_errors():
        for option, (name, is_default) in zip(("user", "client", "ip"), chosen.values(), strict=True):
            if name is not None and is_default:
                raise OperatorError(
                    f"--{option} and --{option}-defaults are both given", "Change them one after the other."
                )
        found = {kind: name for kind, (name, is_default) in chosen.items() if name is not None or is_default}
        if "ip" in found and len(found) > 1:
            raise OperatorError(
                "A quota is of users and client ids, or of addresses", "Leave out either --ip or --user and --client."
            )
    return found


@quotas.command("list")
@with_options_of(_entity)
def list_quotas(
    wanted: dict[str, str | None],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """List quotas: all, or those of a user, client id or address. --user also lists those of its client ids."""
    use_command_config(command_config)
    with admin_of(bootstrap) as admin:
        found = admin.describe_client_quotas(wanted)
    if as_json:
        show([{"entity": each.entity, "quotas": each.values} for each in found], as_json=True)
        return
    rows = [
        {**_names(each.entity), "quota": key, "value": f"{value:.15g}"}
        for each in found
        for key, value in sorted(each.values.items())
    ]
    show(rows, as_json=False, empty="There are no quotas.")


@quotas.command("set")
@with_options_of(_entity)
def set_quotas(
    chosen: dict[str, str | None],
    values: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY=VALUE",
            help="producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate;"
            " of an address connection_creation_rate",
        ),
    ],
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Set quotas of a user, a client id, both together, or an address. They hold at each broker separately."""
    from fenceline.client.admin.client_quotas import ClientQuotaAlteration, quota_entity_text

    use_command_config(command_config)
    with readable_errors():
        entity = _named(chosen)
        wanted = {key: _number(key, value) for key, value in pairs(values, "quota").items()}
    with admin_of(bootstrap) as admin:
        admin.alter_client_quotas([ClientQuotaAlteration(entity, wanted)])
    message = f"Set {', '.join(wanted)} of {quota_entity_text(entity)}."
    print_result(message, {"entity": entity, "set": wanted}, as_json=as_json)


@quotas.command()
@with_options_of(_entity)
def remove(
    chosen: dict[str, str | None],
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="the quotas; all if left out")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Remove quotas of a user, a client id, both together, or an address."""
    from fenceline.client.admin.client_quotas import ClientQuotaAlteration, quota_entity_text

    use_command_config(command_config)
    with readable_errors():
        entity = _named(chosen)
    with admin_of(bootstrap) as admin:
        known = {key for each in admin.describe_client_quotas(entity, strict=True) for key in each.values}
        removed = sorted(known.intersection(keys) if keys else known)
        if removed:
            admin.alter_client_quotas([ClientQuotaAlteration(entity, dict.fromkeys(removed))])
    text = quota_entity_text(entity)
    message = f"Removed {', '.join(removed)} of {text}." if removed else f"There is no such quota of {text}."
    print_result(message, {"entity": entity, "removed": removed}, as_json=as_json)


def _named(entity: dict[str, str | None]) -> dict[str, str | None]:
    """A change needs an entity. Raises OperatorError."""
    if not entity:
        raise OperatorError(
            "The command does not say whose quotas",
            "Use --user NAME, --client NAME or --ip ADDRESS, or --user-defaults, --client-defaults, --ip-defaults.",
        )
    return entity


def _number(key: str, text: str) -> float:
    """Raises OperatorError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise OperatorError(f"The quota {key}={text} is not a number", "For example: 1048576 or 12.5")
    return value


def _names(entity: Mapping[str, str | None]) -> dict[str, Any]:
    return {
        column: None if kind not in entity else "(default)" if entity[kind] is None else entity[kind]
        for kind, column in (("user", "user"), ("client-id", "client_id"), ("ip", "ip"))
    }
