"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373).

Owns who may use these requests, and the translation to the controller's; descriptions come from this node's own image.
Tokens are handed out only on connections that prove who asks, and never to a client that logged in by a token.

Rules: security.md A32 to A36.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fenceline.controller.requests import CreateDelegationToken, ExpireDelegationToken, RenewDelegationToken
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.sasl.delegation_tokens import token_hmac
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import millis, request_field
from fenceline.wire.principal import ANONYMOUS

if TYPE_CHECKING:
    from fenceline.metadata.security_records import DelegationTokenRecord
    from fenceline.wire.requests import (
        CreateDelegationTokenRequest,
        DescribeDelegationTokenRequest,
        ExpireDelegationTokenRequest,
        RenewDelegationTokenRequest,
    )

_USER: Final = "User"
_NOT_ASKED: Final = -1
"""A time in answers of requests that the controller did not get; in its own refusals it is 0."""


def _may(context: RequestContext, operation: AclOperation, resource: ResourceType, name: str, *, quiet: bool) -> bool:
    return context.rights is None or context.rights.may(operation, resource, name, quiet=quiet)


def is_refused(node: NodeView, context: RequestContext) -> bool:
    """Whether this client must not use these requests. A forwarded request came through a broker that checked its
    listener."""
    if context.principal.token_authenticated:
        return True
    if context.is_forwarded:
        return False
    protocol = node.config.security_protocol(context.listener)
    return protocol == "PLAINTEXT" or (protocol == "SSL" and context.principal == ANONYMOUS)


async def create_delegation_token(
    node: NodeView,
    submit: Submit,
    now_ms: Callable[[], int],
    context: RequestContext,
    request: CreateDelegationTokenRequest,
) -> dict[str, Any]:
    """The token, with its hmac. An answer that fails names owner and requester, too."""
    requester = context.principal
    owner_type, owner_name = requester.type, requester.name
    if request_field(request, "owner_principal_name", None):
        owner_type, owner_name = request.owner_principal_type or "", request.owner_principal_name or ""
    owner = f"{owner_type}:{owner_name}"
    named = {
        "principal_type": owner_type,
        "principal_name": owner_name,
        "token_requester_principal_type": requester.type,
        "token_requester_principal_name": requester.name,
    }

    def refused(code: ErrorCode, time: int = _NOT_ASKED) -> dict[str, Any]:
        times = dict.fromkeys(("issue_timestamp", "expiry_timestamp", "max_timestamp"), time)
        return {"error_code": code, **named, **times}

    if is_refused(node, context):
        return refused(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    if owner != str(requester) and not _may(context, AclOperation.CREATE_TOKENS, ResourceType.USER, owner, quiet=False):
        return refused(ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)
    if not owner_type or any(each.principal_type != _USER for each in request.renewers):
        return refused(ErrorCode.INVALID_PRINCIPAL_TYPE)
    renewers = tuple(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
    wanted = CreateDelegationToken(str(requester), owner, renewers, millis(request.max_lifetime), now_ms())
    try:
        made = await submit(wanted)
    except PeerError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise
        return refused(error.code, 0)
    token: DelegationTokenRecord = made.token
    return {
        "error_code": ErrorCode.NONE,
        **named,
        "issue_timestamp": token.issue_timestamp,
        "expiry_timestamp": token.expiration_timestamp,
        "max_timestamp": token.max_timestamp,
        "token_id": token.token_id,
        "hmac": made.hmac,
    }


async def renew_delegation_token(
    node: NodeView,
    submit: Submit,
    now_ms: Callable[[], int],
    context: RequestContext,
    request: RenewDelegationTokenRequest,
) -> dict[str, Any]:
    """The new time of expiry."""
    period_ms = millis(request.renew_period)
    wanted = RenewDelegationToken(str(context.principal), bytes(request.hmac), period_ms, now_ms())
    return await _new_expiry(node, submit, context, wanted)


async def expire_delegation_token(
    node: NodeView,
    submit: Submit,
    now_ms: Callable[[], int],
    context: RequestContext,
    request: ExpireDelegationTokenRequest,
) -> dict[str, Any]:
    """The new time of expiry."""
    period_ms = millis(request.expiry_time_period)
    wanted = ExpireDelegationToken(str(context.principal), bytes(request.hmac), period_ms, now_ms())
    return await _new_expiry(node, submit, context, wanted)


async def _new_expiry(
    node: NodeView, submit: Submit, context: RequestContext, wanted: RenewDelegationToken | ExpireDelegationToken
) -> dict[str, Any]:
    if is_refused(node, context):
        return {"error_code": ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED, "expiry_timestamp": _NOT_ASKED}
    try:
        answer = await submit(wanted)
    except PeerError as error:
        if error.code is ErrorCode.NOT_CONTROLLER:
            raise
        return {"error_code": error.code, "expiry_timestamp": 0}
    return {"error_code": ErrorCode.NONE, "expiry_timestamp": answer.expiry_ms}


def describe_delegation_token(
    node: NodeView, context: RequestContext, request: DescribeDelegationTokenRequest
) -> dict[str, Any]:
    """Owners, requesters and renewers see a token; others if they may. Tokens that the client must not see are left
    out. Naming somebody also finds tokens that he requested or may renew."""
    if is_refused(node, context):
        raise PeerError(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED)
    secret = node.config.token_secret
    if not secret:
        raise PeerError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)
    wanted: set[str] | None = None
    if request.owners is not None:
        wanted = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    asking = str(context.principal)
    found = []
    for token in node.image.delegation_tokens.values():
        known = {token.owner, token.requester, *token.renewers}
        if wanted is not None and not wanted & known:
            continue
        if (
            asking in known
            or _may(context, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id, quiet=True)
            or _may(context, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, quiet=True)
        ):
            found.append(_described(token, secret))
    return {"error_code": ErrorCode.NONE, "tokens": sorted(found, key=lambda token: str(token["token_id"]))}


def _described(token: DelegationTokenRecord, secret: bytes) -> dict[str, Any]:
    requester = _parts(token.requester)
    return {
        **_parts(token.owner),
        "token_requester_principal_type": requester["principal_type"],
        "token_requester_principal_name": requester["principal_name"],
        "issue_timestamp": token.issue_timestamp,
        "expiry_timestamp": token.expiration_timestamp,
        "max_timestamp": token.max_timestamp,
        "token_id": token.token_id,
        "hmac": token_hmac(secret, token.token_id),
        "renewers": list(map(_parts, token.renewers)),
    }


def _parts(principal: str) -> dict[str, str]:
    kind, _, name = principal.partition(":")
    return {"principal_type": kind, "principal_name": name}


def apis(node: NodeView, submit: Submit, now_ms: Callable[[], int]) -> tuple[Api, ...]:
    """`now_ms`: of the wall clock."""
    return (
        *controller_apis(node, submit, now_ms),
        Api(ApiKey.DESCRIBE_DELEGATION_TOKEN, 1, 3, partial(describe_delegation_token, node)),
    )


def controller_apis(node: NodeView, submit: Submit, now_ms: Callable[[], int]) -> tuple[Api, ...]:
    """As `apis`. Requests that are refused are not forwarded."""
    refused = partial(is_refused, node)
    create, renew, expire = (
        partial(each, node, submit, now_ms)
        for each in (create_delegation_token, renew_delegation_token, expire_delegation_token)
    )
    return (
        Api(ApiKey.CREATE_DELEGATION_TOKEN, 1, 3, create, is_refused=refused),
        Api(ApiKey.RENEW_DELEGATION_TOKEN, 1, 2, renew, is_refused=refused),
        Api(ApiKey.EXPIRE_DELEGATION_TOKEN, 1, 2, expire, is_refused=refused),
    )
