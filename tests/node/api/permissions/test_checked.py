"""Handlers behind the checks of the table. Rules: security.md A50, A53, A69."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fenceline.errors import InternalError
from fenceline.metadata.image import EMPTY_IMAGE
from fenceline.node.api.permissions.checked import checked, has_row
from fenceline.node.api.permissions.table import PERMISSIONS
from fenceline.node.context import Api, RequestContext
from fenceline.security.acls import AskingPeer
from fenceline.security.rights import Authorization, RequestRights
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_request
from fenceline.wire.principal import Principal


class Node:
    """One API behind its check; `asked` are the requests that reached the handler."""

    def __init__(self, key: ApiKey, *, allows_everything: bool) -> None:
        self.key = key
        self.asked: list[Any] = []
        self.rules = Authorization([], allows_without_rules=allows_everything, denied=lambda denial: None)
        self.loaded = asyncio.Event()
        self.answers_later = False
        api = Api(key, 0, 99, self.handle)
        (self.api,) = checked((api,), lambda: EMPTY_IMAGE, self.in_force)

    async def in_force(self, waiting: RequestRights) -> None:
        await self.loaded.wait()

    def handle(self, context: RequestContext, request: Any) -> Any:
        self.asked.append(request)
        answer = {"groups": [{"group_id": "a", "error_code": 0, "authorized_operations": -(2**31)}]}

        async def later() -> Any:
            return answer

        return later() if self.answers_later else answer

    def ask(self, version: int, fields: dict[str, Any]) -> Any:
        peer = AskingPeer(Principal("User", "anna"), "127.0.0.1")
        rights = self.rules.rights(peer, self.key)
        context = RequestContext(version, 1, "c", "p", "127.0.0.1", "L", peer.principal, rights)
        return self.api.handler(context, read_request(self.key, version, write_request(self.key, version, fields)))


def test_an_api_without_a_row_does_not_start() -> None:
    with pytest.raises(InternalError, match="SHARE_FETCH"):
        has_row(PERMISSIONS, [ApiKey.FETCH, ApiKey.SHARE_FETCH])
    unknown = Api(ApiKey.SHARE_FETCH, 0, 0, lambda context, request: {})
    in_force = Node(ApiKey.DESCRIBE_GROUPS, allows_everything=True).in_force
    with pytest.raises(InternalError, match="SHARE_FETCH"):
        checked((unknown,), lambda: EMPTY_IMAGE, in_force)


@pytest.mark.parametrize("later", [False, True])
def test_refused_parts_do_not_reach_the_handler_and_are_answered(later: bool) -> None:
    async def run() -> tuple[Node, Any]:
        node = Node(ApiKey.DESCRIBE_GROUPS, allows_everything=True)
        node.answers_later = later
        node.rules.is_in_force = True
        node.rules.allows = lambda peer, operation, resource, name: name == "a"  # type: ignore[method-assign]
        answer = node.ask(5, {"groups": ["a", "b"]})
        return node, await answer if later else answer

    node, answer = asyncio.run(run())
    assert [request.groups for request in node.asked] == [("a",)]
    assert [(row["group_id"], row["error_code"]) for row in answer["groups"]] == [("a", 0), ("b", 30)]


def test_nothing_left_is_answered_without_the_handler() -> None:
    """An empty list means everything to some handlers."""
    node = Node(ApiKey.DESCRIBE_GROUPS, allows_everything=False)
    node.rules.is_in_force = True
    answer = node.ask(5, {"groups": ["a", "b"]})
    assert [row["error_code"] for row in answer["groups"]] == [30, 30]
    assert node.asked == []


def test_requests_wait_for_the_rules() -> None:
    async def run() -> tuple[Node, Any]:
        node = Node(ApiKey.DESCRIBE_GROUPS, allows_everything=True)
        answer = asyncio.ensure_future(node.ask(5, {"groups": ["a"]}))
        await asyncio.sleep(0)
        assert not answer.done()
        assert node.asked == []
        node.rules.is_in_force = True
        node.loaded.set()
        return node, await answer

    node, answer = asyncio.run(run())
    assert len(node.asked) == 1
    assert answer["groups"][0]["error_code"] == 0
