"""Handlers of delegation tokens: who may ask, and who sees what, with an authorizer. Rules: security.md A33, A35."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from immutables import Map

from fenceline.config.node import NodeConfig
from fenceline.controller.requests import CreatedDelegationToken, CreateDelegationToken, DelegationTokenExpiry
from fenceline.errors import ErrorCode, PeerError
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.metadata.security_records import DelegationTokenRecord
from fenceline.node.api.handlers import delegation_tokens
from fenceline.node.context import NodeView, RequestContext
from fenceline.sasl.delegation_tokens import token_hmac
from fenceline.wire.acl_codes import AclOperation, ResourceType
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, unknown_fields, write_request, write_response
from fenceline.wire.principal import ANONYMOUS, Principal

CREATE, RENEW = ApiKey.CREATE_DELEGATION_TOKEN, ApiKey.RENEW_DELEGATION_TOKEN
EXPIRE, DESCRIBE = ApiKey.EXPIRE_DELEGATION_TOKEN, ApiKey.DESCRIBE_DELEGATION_TOKEN
ANNA, EVE = Principal(name="anna"), Principal(name="eve")
TOKENS = (
    DelegationTokenRecord("User:anna", "User:anna", ("User:otto",), 1, 3, 2, "a"),
    DelegationTokenRecord("User:otto", "User:eve", (), 1, 3, 2, "b"),
    DelegationTokenRecord("User:otto", "User:otto", (), 1, 3, 2, "c"),
)


class Desk:
    """A broker's handlers. `allowed`: what the authorizer allows, of what it was `asked`."""

    def __init__(self, *allowed: tuple[AclOperation, ResourceType, str], secret: str = "secret") -> None:
        settings = {
            "listeners": "PLAINTEXT://:1,SSL://:2,SASL_SSL://:3,SASL_PLAINTEXT://:4",
            "delegation.token.secret.key": secret,
        }
        self.image = EMPTY_IMAGE.__class__(
            **{name: getattr(EMPTY_IMAGE, name) for name in EMPTY_IMAGE.__slots__ if name != "delegation_tokens"},
            delegation_tokens=Map({each.token_id: each for each in TOKENS}),
        )
        node = NodeView(1, "cluster", NodeConfig.load(None, settings, {}), lambda: self.image)
        self.asked: list[tuple[AclOperation, ResourceType, str]] = []
        self.submitted: list[Any] = []
        self.answer: Any = DelegationTokenExpiry(77)

        def may(operation: AclOperation, kind: ResourceType, name: str, *, quiet: bool) -> bool:
            self.asked.append((operation, kind, name))
            return (operation, kind, name) in allowed

        async def submit(request: Any) -> Any:
            self.submitted.append(request)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

        self.apis = {api.key: api for api in delegation_tokens.apis(node, submit, lambda: 1_000)}
        self.rights: Any = SimpleNamespace(may=may)

    def ask(
        self,
        key: ApiKey,
        principal: Principal = ANNA,
        listener: str = "SASL_SSL",
        *,
        is_forwarded: bool = False,
        **fields: Any,
    ) -> Any:
        version = self.apis[key].max_version
        context = RequestContext(
            *(version, 1, "test", "127.0.0.1:1", "127.0.0.1", listener, principal, self.rights),
            is_forwarded=is_forwarded,
        )
        try:
            answer: Any = self.apis[key].handler(
                context, read_request(key, version, write_request(key, version, fields))
            )
            if not isinstance(answer, dict):
                answer = asyncio.run(answer)
        except PeerError as error:
            answer = {"error_code": error.code}
        assert unknown_fields(key, answer) == []
        return read_response(key, version, write_response(key, version, answer))


@pytest.mark.parametrize("key", [CREATE, RENEW, EXPIRE, DESCRIBE])
@pytest.mark.parametrize(
    ("principal", "listener", "is_forwarded", "is_allowed"),
    [
        (ANONYMOUS, "PLAINTEXT", False, False),
        (ANNA, "PLAINTEXT", False, False),
        (ANONYMOUS, "SSL", False, False),
        (ANNA, "SSL", False, True),
        (ANNA, "SASL_SSL", False, True),
        (ANNA, "SASL_PLAINTEXT", False, True),
        (Principal(name="anna", token_authenticated=True), "SASL_SSL", False, False),
        (ANNA, "PLAINTEXT", True, True),
        (Principal(name="anna", token_authenticated=True), "PLAINTEXT", True, False),
    ],
)
def test_who_may_ask(key: ApiKey, principal: Principal, listener: str, is_forwarded: bool, is_allowed: bool) -> None:
    desk = Desk()
    desk.answer = PeerError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    found = desk.ask(key, principal, listener, is_forwarded=is_forwarded, owners=[])
    if not is_allowed:
        assert found.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        assert (desk.submitted, desk.asked) == ([], [])
    else:
        assert found.error_code == (0 if key == DESCRIBE else ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    refuses = desk.apis[key].is_refused
    context = RequestContext(1, 1, "", "", "", listener, principal, is_forwarded=is_forwarded)
    assert refuses is None if key == DESCRIBE else refuses is not None and refuses(context) != is_allowed


def test_a_token_for_somebody_else_needs_the_right() -> None:
    right = (AclOperation.CREATE_TOKENS, ResourceType.USER, "User:otto")
    fields = {"owner_principal_type": "User", "owner_principal_name": "otto", "renewers": []}
    desk = Desk()
    refused = desk.ask(CREATE, **fields)
    assert refused.error_code == ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    assert (refused.principal_name, refused.token_requester_principal_name) == ("otto", "anna")
    assert (desk.asked, desk.submitted) == ([right], [])
    desk = Desk(right)
    desk.answer = CreatedDelegationToken(TOKENS[0], b"hmac")
    made = desk.ask(CREATE, **fields)
    assert (made.error_code, made.token_id, made.hmac) == (0, "a", b"hmac")
    assert desk.submitted == [CreateDelegationToken("User:anna", "User:otto", (), 0, 1_000)]


@pytest.mark.parametrize("fields", [{}, {"owner_principal_type": "User", "owner_principal_name": "anna"}])
def test_a_token_for_oneself_needs_no_right(fields: dict[str, str]) -> None:
    desk = Desk()
    desk.answer = CreatedDelegationToken(TOKENS[0], b"hmac")
    assert desk.ask(CREATE, **fields).error_code == 0
    assert desk.asked == []


@pytest.mark.parametrize(
    "fields",
    [
        {"renewers": [{"principal_type": "Group", "principal_name": "x"}]},
        {"owner_principal_type": None, "owner_principal_name": "otto"},
    ],
)
def test_types_of_principals(fields: dict[str, Any]) -> None:
    desk = Desk((AclOperation.CREATE_TOKENS, ResourceType.USER, ":otto"))
    assert desk.ask(CREATE, **fields).error_code == ErrorCode.INVALID_PRINCIPAL_TYPE
    assert desk.submitted == []


@pytest.mark.parametrize(
    ("principal", "allowed", "seen"),
    [
        (ANNA, [], "a"),
        (Principal(name="otto"), [], "abc"),
        (EVE, [], "b"),
        (EVE, [(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, "c")], "bc"),
        (EVE, [(AclOperation.DESCRIBE_TOKENS, ResourceType.USER, "User:anna")], "ab"),
        (Principal("Group", "anna"), [], ""),
    ],
)
def test_who_sees_which_token(principal: Principal, allowed: list[Any], seen: str) -> None:
    found = Desk(*allowed).ask(DESCRIBE, principal, owners=None)
    assert "".join(each.token_id for each in found.tokens) == seen
    assert all(each.hmac == token_hmac(b"secret", each.token_id) for each in found.tokens)


def test_only_tokens_of_the_owners_that_are_named() -> None:
    everything = [(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, each) for each in "abc"]
    for name, expected in {"anna": "a", "otto": "abc", "eve": "b", "nobody": ""}.items():
        found = Desk(*everything).ask(DESCRIBE, owners=[{"principal_type": "User", "principal_name": name}])
        assert "".join(each.token_id for each in found.tokens) == expected
    assert Desk(*everything).ask(DESCRIBE, owners=[]).tokens == ()


def test_tokens_that_are_off() -> None:
    assert Desk(secret="").ask(DESCRIBE, owners=None).error_code == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED


@pytest.mark.parametrize("key", [CREATE, RENEW, EXPIRE])
def test_a_controller_that_is_no_longer_active_is_not_an_answer(key: ApiKey) -> None:
    """The broker asks the next one."""
    desk = Desk()
    desk.answer = PeerError(ErrorCode.NOT_CONTROLLER)
    assert desk.ask(key).error_code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("key", [RENEW, EXPIRE])
def test_new_expiry(key: ApiKey) -> None:
    found = Desk().ask(key, hmac=b"x")
    assert (found.error_code, found.expiry_timestamp.timestamp()) == (0, 0.077)
