"""Administration of quotas: answers of Apache Kafka 4.3.1, and of the handlers here with a controller behind them.

Rules: controller.md C44; security.md A56.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from fenceline.config.node import NodeConfig
from fenceline.errors import ErrorCode
from fenceline.node.api.handlers import client_quotas
from fenceline.node.context import NodeView, RequestContext
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, read_response, write_request, write_response
from tests.controller.helpers import Cluster
from tests.support.raw import RawConnection, plain
from tests.support.recorded import Answer, as_recorded

Step = tuple[ApiKey, int, dict[str, Any]]
Call = Callable[[ApiKey, int, Mapping[str, Any]], Any]
Parts = tuple[tuple[str, str | None], ...]

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
PRODUCE, FETCH, TIME, CHANGES = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
)
CONNECTIONS = "connection_creation_rate"
ANNA: Final = (("user", "anna"),)
ANNA_APP: Final = (("user", "anna"), ("client-id", "app"))


def entry(parts: Parts, **values: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
        "ops": [
            {"key": key, "value": 0.0 if value is None else value, "remove": value is None}
            for key, value in values.items()
        ],
    }


def alter(*entries: dict[str, Any], version: int = 1, validate_only: bool = False) -> Step:
    return ApiKey.ALTER_CLIENT_QUOTAS, version, {"entries": entries, "validate_only": validate_only}


def describe(*components: tuple[str, int, str | None], strict: bool = False, version: int = 1) -> Step:
    rows = [{"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components]
    return ApiKey.DESCRIBE_CLIENT_QUOTAS, version, {"components": rows, "strict": strict}


def doubled(key: str) -> dict[str, Any]:
    made = entry(ANNA, **{key: 1.0})
    return {**made, "ops": made["ops"] * 2}


SCRIPTS: Final[dict[str, list[Step]]] = {
    "set, described and removed": [
        describe(),
        alter(entry(ANNA, **{PRODUCE: 1000.0, TIME: 12.5}), entry(ANNA_APP, **{FETCH: 5.0}), version=0),
        describe(version=0),
        alter(entry(ANNA, **{PRODUCE: None, CHANGES: 0.5})),
        describe(),
        alter(entry(ANNA, **{PRODUCE: None}), entry((("user", "nobody"),), **{PRODUCE: None})),
        alter(entry(ANNA, **{TIME: 1.0}), validate_only=True),
        describe(strict=True),
        alter(entry(ANNA, **{TIME: None, CHANGES: None}), entry(ANNA_APP, **{FETCH: None})),
        describe(),
        alter(),
    ],
    "filters": [
        alter(
            *(
                entry(parts, **{PRODUCE: float(number + 1)})
                for number, parts in enumerate(
                    (
                        ANNA,
                        (("user", "otto"),),
                        (("user", None),),
                        (("client-id", "app"),),
                        (("client-id", None),),
                        ANNA_APP,
                        (("user", "anna"), ("client-id", None)),
                        (("user", None), ("client-id", "app")),
                        (("user", None), ("client-id", None)),
                    )
                )
            ),
            entry((("ip", "1.2.3.4"),), **{CONNECTIONS: 7.0}),
            entry((("ip", None),), **{CONNECTIONS: 8.0}),
        ),
        *(
            describe(*components, strict=strict)
            for strict in (False, True)
            for components in (
                (),
                (("user", EXACT, "anna"),),
                (("user", EXACT, "none"),),
                (("user", DEFAULT, None),),
                (("user", SPECIFIED, None),),
                (("client-id", EXACT, "app"),),
                (("client-id", SPECIFIED, None),),
                (("user", EXACT, "anna"), ("client-id", EXACT, "app")),
                (("user", EXACT, "anna"), ("client-id", DEFAULT, None)),
                (("user", SPECIFIED, None), ("client-id", SPECIFIED, None)),
                (("ip", EXACT, "1.2.3.4"),),
                (("ip", DEFAULT, None),),
                (("ip", SPECIFIED, None),),
            )
        ),
    ],
    "filters that are refused": [
        describe(("", EXACT, "a")),
        describe(("user", EXACT, "a"), ("user", EXACT, "b")),
        describe(("ip", EXACT, "1.2.3.4"), ("user", EXACT, "b")),
        describe(("topic", EXACT, "a")),
        describe(("user", EXACT, None)),
        describe(("user", DEFAULT, "a")),
        describe(("user", SPECIFIED, "a")),
        describe(("user", 3, "a")),
        describe(("user", -1, None)),
    ],
    "values": [
        *(
            alter(entry(ANNA, **{key: value}))
            for key in (PRODUCE, FETCH, TIME, CHANGES)
            for value in (0.0, -1.0, 0.5, 1.5, 1.0, 1e12, 1e19, 1e300, 1.0000001)
        ),
        *(
            alter(entry((("ip", "1.2.3.4"),), **{CONNECTIONS: value}))
            for value in (0.0, -1.0, 0.5, 1.0, 2.0**31, 2.0**31 - 1)
        ),
        alter(entry(ANNA, **{CONNECTIONS: 1.0})),
        alter(entry((("ip", "1.2.3.4"),), **{PRODUCE: 1.0})),
        alter(entry(ANNA, no_such_key=1.0)),
        alter(entry(ANNA, **{"": 1.0})),
        alter(entry(ANNA, no_such_key=None)),
        alter(doubled(PRODUCE)),
        alter(doubled(PRODUCE), entry(ANNA_APP, **{PRODUCE: 1.0})),
        alter(entry(ANNA)),
        describe(),
    ],
    "entities that are refused": [
        *(
            alter(entry(parts, **{PRODUCE: 1.0}), entry(ANNA_APP, **{PRODUCE: 1.0}))
            for parts in (
                (),
                (("topic", "a"),),
                (("", "a"),),
                (("user", ""),),
                (("client-id", ""),),
                (("User", "a"),),
                (("user", "a"), ("topic", "b")),
            )
        ),
        *(
            alter(entry(parts, **{CONNECTIONS: 1.0}))
            for parts in (
                (("ip", ""),),
                (("ip", "no.such.host.invalid"),),
                (("ip", "::1"),),
                (("ip", "1.2.3.4"), ("user", "a")),
                (("ip", "1.2.3.4"), ("client-id", None)),
            )
        ),
        alter(entry((("user", "a/b c\n" + "x" * 300),), **{PRODUCE: 1.0})),
        describe(),
    ],
}


def run(call: Call, steps: list[Step], settle: Callable[[], None] = lambda: None) -> list[Any]:
    found = []
    for key, version, fields in steps:
        found.append(comparable(plain(call(key, version, fields))))
        if key is ApiKey.ALTER_CLIENT_QUOTAS:
            settle()
    return found


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without messages, in an order of its own."""
    entries = [
        {
            "error_code": row.get("error_code", 0),
            "entity": sorted((part["entity_type"], part["entity_name"] or "") for part in row["entity"]),
            "values": sorted((each["key"], each["value"]) for each in row.get("values", ())),
        }
        for row in answer["entries"] or ()
    ]
    return {
        "error_code": answer.get("error_code", 0),
        "entries": None if answer["entries"] is None else sorted(entries, key=repr),
    }


@pytest.fixture
def kafka_with_quotas() -> Iterator[ApacheKafka]:
    with small_kafka() as kafka:
        yield kafka


class KafkaSide:
    def __init__(self, kafka: ApacheKafka) -> None:
        self._port = kafka.port

    def call(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        with RawConnection(self._port) as connection:
            return connection.call(key, version, fields)

    def settle(self) -> None:
        """Wait until the broker knows all changes: it applies them in order."""
        barrier = (("client-id", "barrier"),)
        for value in (1.0, None):
            self.call(*alter(entry(barrier, **{PRODUCE: value})))
            deadline = time.monotonic() + 60
            while bool(self.call(*describe(("client-id", EXACT, "barrier"))).entries) is (value is None):
                assert time.monotonic() < deadline, "the broker does not follow"


class OwnSide:
    """The handlers of a node that is the active controller."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        node = NodeView(1, "cluster", NodeConfig.load(None, {}, {}), lambda: self.cluster.image)
        self._apis = {api.key: api for api in client_quotas.apis(node, self._submit)}

    async def _submit(self, request: Any, client: object = None) -> Any:
        return self.cluster.ask(request)

    def call(self, key: ApiKey, version: int, fields: Mapping[str, Any]) -> Any:
        request = read_request(key, version, write_request(key, version, fields))
        context = RequestContext(version, 1, "test", "peer", "host", "PLAINTEXT")
        answer = self._apis[key].handler(context, request)
        found: Any = answer if isinstance(answer, dict) else asyncio.run(answer)  # type: ignore[arg-type]
        return read_response(key, version, write_response(key, version, found))


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_are_those_of_kafka(name: str, answer: Answer) -> None:
    def asked(kafka: ApacheKafka) -> list[Any]:
        side = KafkaSide(kafka)
        return run(side.call, SCRIPTS[name], side.settle)

    theirs = answer("kafka_with_quotas", asked)
    for step, expected, found in zip(SCRIPTS[name], theirs, run(OwnSide().call, SCRIPTS[name]), strict=True):
        assert as_recorded(found) == expected, f"{step[0].name} {str(step[2])[:300]}"


def test_an_entity_that_is_named_twice_is_not_changed() -> None:
    side = OwnSide()
    twice = alter(entry(ANNA, **{PRODUCE: 1.0}), entry(ANNA, **{FETCH: 2.0}), entry(ANNA_APP, **{FETCH: 3.0}))
    changed, described = run(side.call, [twice, describe()])
    assert {tuple(row["entity"]): row["error_code"] for row in changed["entries"]} == {
        ANNA: ErrorCode.INVALID_REQUEST,
        tuple(sorted(ANNA_APP)): 0,
    }
    assert [row["values"] for row in described["entries"]] == [[(FETCH, "3.0")]]


def test_addresses_need_all_their_parts() -> None:
    """Kafka takes 1.2.3 for 1.2.0.3, as Java does."""
    changed, described = run(OwnSide().call, [alter(entry((("ip", "1.2.3"),), **{CONNECTIONS: 1.0})), describe()])
    assert [row["error_code"] for row in changed["entries"]] == [ErrorCode.INVALID_REQUEST]
    assert described["entries"] == []
