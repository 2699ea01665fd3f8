"""`fenceline tokens`: creates, lists, renews and expires delegation tokens. Also Apache Kafka's.

The hmac of a token, which is its password, is printed once, when it is created: tokens are named by their ids.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenceline.cli.output import (
    DEFAULT_BOOTSTRAP,
    AsJson,
    Bootstrap,
    CommandConfig,
    admin_of,
    examples,
    print_json,
    print_result,
    show,
    use_command_config,
)
from fenceline.errors import OperatorError

if TYPE_CHECKING:
    from fenceline.client.admin.admin import Admin
    from fenceline.client.admin.delegation_tokens import DelegationToken

tokens = typer.Typer(no_args_is_help=True, help="Create, list, renew and expire delegation tokens.")

TokenId = Annotated[str, typer.Argument(help="id of the token")]


@tokens.command(
    epilog=examples(
        ("fenceline tokens create --command-config anna.properties", "for anna herself"),
        ("fenceline tokens create --renewer User:scheduler --max-lifetime 86400", "for a day; scheduler may renew it"),
    )
)
def create(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    renewer: Annotated[list[str] | None, typer.Option(help="User:NAME who may renew it; may be repeated")] = None,
    owner: Annotated[str | None, typer.Option(help="User:NAME for whom it logs in, if not you")] = None,
    max_lifetime: Annotated[float | None, typer.Option(help="seconds after which it cannot be renewed")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print its id and hmac.

    A client logs in with SCRAM: `sasl.username` is the id, `sasl.password` the hmac, and `sasl.tokenauth=true`.
    """
    use_command_config(command_config)
    with admin_of(bootstrap) as admin:
        made = admin.create_delegation_token(
            renewers=renewer or (), owner=owner, max_lifetime_ms=_milliseconds(max_lifetime)
        )
    if as_json:
        print_json({**_row(made), "hmac": made.password})
        return
    print(f"id      {made.token_id}")
    print(f"hmac    {made.password}")
    print(f"owner   {made.owner}")
    print(f"expires {_time(made.expiry_ms)}, can be renewed until {_time(made.max_ms)}")


@tokens.command("list")
def list_tokens(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    owner: Annotated[
        list[str] | None, typer.Option(help="only tokens that User:NAME owns, requested or may renew; may be repeated")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the tokens that you may see, without their hmacs."""
    use_command_config(command_config)
    with admin_of(bootstrap) as admin:
        found = admin.describe_delegation_tokens(owner)
    show([_row(each) for each in found], as_json=as_json, empty="There are no delegation tokens.")


@tokens.command()
def renew(
    token_id: TokenId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    period: Annotated[float | None, typer.Option(help="seconds from now until it expires")] = None,
    as_json: AsJson = False,
) -> None:
    """Renew a token: by default for delegation.token.expiry.time.ms of the nodes."""
    use_command_config(command_config)
    with admin_of(bootstrap) as admin:
        hmac = _named(admin, token_id).hmac
        expiry_ms = admin.renew_delegation_token(hmac, period_ms=_milliseconds(period))
    document = {"token_id": token_id, "expires": _time(expiry_ms)}
    print_result(f"The token {token_id} expires {_time(expiry_ms)}.", document, as_json=as_json)


@tokens.command(
    epilog=examples(
        ("fenceline tokens expire ID", "remove it; its connections end"),
        ("fenceline tokens expire ID --period 600", "let it expire in ten minutes"),
    )
)
def expire(
    token_id: TokenId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    command_config: CommandConfig = None,
    period: Annotated[float | None, typer.Option(help="seconds from now until it expires", min=0)] = None,
    as_json: AsJson = False,
) -> None:
    """Remove a token, or set when it expires."""
    use_command_config(command_config)
    with admin_of(bootstrap) as admin:
        hmac = _named(admin, token_id).hmac
        period_ms = _milliseconds(period)
        expiry_ms = admin.expire_delegation_token(hmac, period_ms=-1 if period_ms is None else period_ms)
    if period is None:
        print_result(f"The token {token_id} is removed.", {"token_id": token_id, "expires": None}, as_json=as_json)
        return
    document = {"token_id": token_id, "expires": _time(expiry_ms)}
    print_result(f"The token {token_id} expires {_time(expiry_ms)}.", document, as_json=as_json)


def _named(admin: Admin, token_id: str) -> DelegationToken:
    """Raises OperatorError."""
    for token in admin.describe_delegation_tokens():
        if token.token_id == token_id:
            return token
    raise OperatorError(
        f"There is no delegation token {token_id} that you may see", "List them with: fenceline tokens list"
    )


def _row(token: DelegationToken) -> dict[str, Any]:
    return {
        "token_id": token.token_id,
        "owner": token.owner,
        "requester": token.requester or None,
        "renewers": list(token.renewers),
        "issued": _time(token.issue_ms),
        "expires": _time(token.expiry_ms),
        "renewable_until": _time(token.max_ms),
    }


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _time(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError):
        return "never"
