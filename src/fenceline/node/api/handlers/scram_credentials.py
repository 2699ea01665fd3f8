"""DescribeUserScramCredentials v0 and AlterUserScramCredentials v0 (KIP-554).

Owns the translation to the controller's requests; descriptions come from this node's own image. Answers contain
mechanisms and iterations only. Rules: security.md A37, A38.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from fenceline.controller.requests import AlterUserScram, ScramDeletion, ScramUpsertion
from fenceline.errors import ErrorCode, PeerError
from fenceline.node.context import Api, NodeView, RequestContext, Submit
from fenceline.wire.apis import ApiKey

if TYPE_CHECKING:
    from fenceline.wire.requests import AlterUserScramCredentialsRequest, DescribeUserScramCredentialsRequest


def describe_user_scram_credentials(
    node: NodeView, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> dict[str, Any]:
    """All users if none is named."""
    known: dict[str, list[dict[str, int]]] = {}
    for (user, mechanism), credential in sorted(node.image.scram.items()):
        known.setdefault(user, []).append({"mechanism": mechanism, "iterations": credential.iterations})
    asked = Counter(each.name for each in request.users or ())
    results = [_described(user, asked[user], known.get(user)) for user in asked or known]
    return {"error_code": ErrorCode.NONE, "error_message": "", "results": results}


def _described(user: str, times: int, known: list[dict[str, int]] | None) -> dict[str, Any]:
    code, message = ErrorCode.NONE, ""
    if times > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    elif known is None:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    infos = known if code is ErrorCode.NONE else []
    return {"user": user, "error_code": code, "error_message": message, "credential_infos": infos}


async def alter_user_scram_credentials(
    submit: Submit, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> dict[str, Any]:
    """One result for each user."""
    wanted = AlterUserScram(
        tuple(ScramDeletion(each.name, each.mechanism) for each in request.deletions),
        tuple(
            ScramUpsertion(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
            for each in request.upsertions
        ),
    )
    try:
        outcomes = [(user, outcome.code, outcome.message) for user, outcome in (await submit(wanted)).users]
    except PeerError as error:
        users = dict.fromkeys([each.name for each in wanted.deletions] + [each.name for each in wanted.upsertions])
        outcomes = [(user, error.code, error.message) for user in users]
    return {
        "results": [{"user": user, "error_code": code, "error_message": message} for user, code, message in outcomes]
    }


def apis(node: NodeView, submit: Submit) -> tuple[Api, ...]:
    return (
        Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, partial(describe_user_scram_credentials, node)),
        *controller_apis(submit),
    )


def controller_apis(submit: Submit) -> tuple[Api, ...]:
    return (Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, partial(alter_user_scram_credentials, submit)),)
