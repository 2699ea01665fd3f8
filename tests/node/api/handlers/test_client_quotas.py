"""Administration of quotas: answers of Apache Kafka 4.3.1, and of the handlers here with a controller behind them.

Rules: controller.md C44; security.md A56.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import pytest

from fenceline.errors import ErrorCode
from fenceline.node.api.handlers import client_quotas
from fenceline.node.context import RequestContext
from fenceline.testing.apache_kafka import ApacheKafka, small_kafka
from fenceline.wire.apis import ApiKey
from fenceline.wire.entities import read_request, write_request
from tests.support.handler_sides import ControllerHandlers, KafkaBroker, Step
from tests.support.raw import plain
from tests.support.recorded import Answer, as_recorded

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


def removed_and_set(*removals: bool) -> Step:
    """One key several times."""
    ops = [{"key": PRODUCE, "value": 1.0, "remove": removal} for removal in removals]
    return alter({**entry(ANNA), "ops": ops})


def users(count: int, name: str = "u", **values: float | None) -> list[dict[str, Any]]:
    return [entry((("user", f"{name}{number}"),), **values) for number in range(count)]


MOST: Final = 10_000
ADDRESS: Final = (("ip", "1.2.3.4"),)
INFINITY: Final = float("inf")
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
        *(
            describe(*components, strict=strict, version=version)
            for strict, version in ((False, 0), (True, 1))
            for components in (
                (("", 9, None),),
                (("topic", 9, None),),
                (("USER", DEFAULT, None),),
                (("ip", EXACT, "1.2.3.4"), ("user", 9, None)),
                (("ip", EXACT, "1.2.3.4"), ("client-id", SPECIFIED, None)),
                (("user", EXACT, "a"), ("topic", EXACT, "b")),
                (("user", EXACT, "a"), ("user", 9, "b")),
                (("user", EXACT, None), ("", EXACT, "b")),
                (("user", DEFAULT, ""),),
                (("user", -128, "a"),),
            )
        ),
    ],
    "values": [
        *(
            alter(entry(ANNA, **{key: value}))
            for key in (PRODUCE, FETCH, TIME, CHANGES)
            for value in (0.0, -1.0, 0.5, 1.5, 1.0, 1e12, 1e19, 1e300, 1.0000001)
        ),
        *(
            alter(entry(ANNA, **{key: value}))
            for key in (PRODUCE, TIME)
            for value in (4.9999999, 0.9999999, 5.0000005, 5.0000011, 1e-7, 2e-6, -0.0, 5e-324, INFINITY, -INFINITY)
        ),
        *(alter(entry(ANNA, **{FETCH: value})) for value in (2.0**53 + 2, 2.0**62, 2.0**63, 2.0**63 + 2048)),
        *(
            alter(entry(ADDRESS, **{CONNECTIONS: value}))
            for value in (4.9999999, 5.0000005, 2.0**31 - 0.5, 2147483647.0000005, INFINITY)
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
        *(removed_and_set(*each) for each in ((False, True), (True, False), (True, True))),
        *(alter(entry(parts, **{key: None})) for parts, key in ((ANNA, CONNECTIONS), (ADDRESS, PRODUCE), (ANNA, ""))),
        describe(),
    ],
    "entities that fail in part": [
        alter(entry(ANNA, **{PRODUCE: 1.0, FETCH: 0.0}), entry(ANNA_APP, **{PRODUCE: 2.0})),
        describe(),
        alter(entry(ANNA, **{FETCH: 0.0, PRODUCE: 1.0}), entry(ANNA_APP, **{PRODUCE: None}), validate_only=True),
        alter(entry(ANNA_APP, **{PRODUCE: None, FETCH: 0.5})),
        describe(),
    ],
    "names": [
        alter(
            *(entry((("user", name),), **{PRODUCE: 1.0}) for name in ("<default>", "User:a", "a,b=c", "\u00fc", "%3A"))
        ),
        alter(*(entry((("client-id", name),), **{PRODUCE: 1.0}) for name in ("\x00", " ", "x" * 10_000))),
        *(describe((kind, EXACT, name)) for kind, name in (("client-id", "\x00"), ("user", ""), ("user", "<default>"))),
        describe(("user", DEFAULT, None)),
        describe(),
    ],
    "addresses": [
        *(
            alter(entry((("ip", name),), **{CONNECTIONS: 1e6}))
            for name in (
                "::1",
                "::ffff:1.2.3.4",
                "0.0.0.0",
                "2001:DB8::1",
                "2001:db8:0::1",
                "256.1.1.1",
                "1.2.3.4/8",
                "*",
            )
        ),
        *(
            alter(entry((("ip", name),), **{CONNECTIONS: 1e6}))
            for name in (" ", "1.2.3.4 ", "1.2.3.4.5", "0x7f.1", "fe80::1%nope", "a b", "x" * 300)
        ),
        alter(entry((("ip", "no.such.host.invalid"),))),
        describe(),
    ],
    "more than one batch": [
        alter(*users(MOST + 1, **{PRODUCE: 1.0})),
        alter(*users(MOST + 1, **{PRODUCE: 1.0}), validate_only=True),
        alter(*users(MOST // 2 + 1, **{PRODUCE: 1.0, FETCH: 2.0})),
        alter(*users(MOST + 1, **{PRODUCE: None})),
        describe(),
        alter(*users(MOST, **{PRODUCE: 1.0})),
        alter(*users(MOST, **{PRODUCE: 1.0}), *users(1, "new", **{PRODUCE: 1.0})),
        describe(("user", EXACT, "u9999")),
        describe(("user", SPECIFIED, None)),
        alter(*users(MOST, **{PRODUCE: None})),
        alter(*users(1, "new", **{PRODUCE: None})),
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
    """In an order of its own; the number of entries if there are many."""
    entries = [
        {
            "error": (row.get("error_code", 0), same_words(row.get("error_message"))),
            "entity": sorted((part["entity_type"], part["entity_name"]) for part in row["entity"]),
            "values": sorted((each["key"], each["value"]) for each in row.get("values", ())),
        }
        for row in answer["entries"] or ()
    ]
    found: Any = sorted(entries, key=repr)
    if len(found) > 100:
        found = sorted(Counter(row["error"] for row in entries).items(), key=repr)
    return {
        "error": (answer.get("error_code", 0), answer.get("error_message")),
        "entries": None if answer["entries"] is None else found,
    }


_WORDS: Final = (
    (r"Ignoring duplicate entity .*|(A quota|The quotas) of an entity can be changed once in a request", "twice"),
    (r"is not a valid IP( or resolvable host\.| address)", "is not an address"),
    ("shouldnot", "should not"),
    (r"Request parameters do not satisfy the .* policy\.|Unable to perform excessively large .*", "too large"),
)
"""What Kafka says in other words, as patterns."""


def same_words(message: str | None) -> str | None:
    for pattern, replacement in _WORDS:
        message = message and re.sub(pattern, replacement, message)
    return message


@pytest.fixture
def kafka_with_quotas() -> Iterator[ApacheKafka]:
    with small_kafka() as kafka:
        yield kafka


def settle(side: KafkaBroker) -> None:
    """Wait until the broker knows all changes."""
    barrier = (("client-id", "barrier"),)

    def is_there() -> bool:
        return bool(side.call(*describe(("client-id", EXACT, "barrier"))).entries)

    side.carry_out(alter(entry(barrier, **{PRODUCE: 1.0})), is_there)
    side.carry_out(alter(entry(barrier, **{PRODUCE: None})), lambda: not is_there())


def handlers() -> ControllerHandlers:
    return ControllerHandlers(lambda node, submit, subscribe: client_quotas.apis(node, submit))


@pytest.mark.parametrize("name", SCRIPTS)
def test_answers_are_those_of_kafka(name: str, answer: Answer) -> None:
    def asked(kafka: ApacheKafka) -> list[Any]:
        side = KafkaBroker(kafka)
        return run(side.call, SCRIPTS[name], partial(settle, side))

    theirs = answer("kafka_with_quotas", asked)
    for step, expected, found in zip(SCRIPTS[name], theirs, run(handlers().call, SCRIPTS[name]), strict=True):
        assert as_recorded(found) == expected, f"{step[0].name} {str(step[2])[:300]}"


def test_an_entity_that_is_named_twice_is_not_changed() -> None:
    side = handlers()
    twice = alter(entry(ANNA, **{PRODUCE: 1.0}), entry(ANNA, **{FETCH: 2.0}), entry(ANNA_APP, **{FETCH: 3.0}))
    changed, described = run(side.call, [twice, describe()])
    assert {tuple(row["entity"]): row["error"][0] for row in changed["entries"]} == {
        ANNA: ErrorCode.INVALID_REQUEST,
        tuple(sorted(ANNA_APP)): 0,
    }
    assert [row["values"] for row in described["entries"]] == [[(FETCH, "3.0")]]


@pytest.mark.parametrize("name", ["1.2.3", "1", "01.2.3.4", "[::1]", "localhost"])
def test_addresses_need_all_their_parts(name: str) -> None:
    """Kafka takes 1.2.3 for 1.2.0.3, as Java does, and resolves names."""
    changed, described = run(handlers().call, [alter(entry((("ip", name),), **{CONNECTIONS: 1.0})), describe()])
    assert [row["error"][0] for row in changed["entries"]] == [ErrorCode.INVALID_REQUEST]
    assert described["entries"] == []


@pytest.mark.parametrize("key", [PRODUCE, TIME])
def test_not_a_number_is_refused(key: str) -> None:
    """Kafka stores it; nothing is above such a quota."""
    changed, described = run(handlers().call, [alter(entry(ANNA, **{key: float("nan")})), describe()])
    assert [row["error"] for row in changed["entries"]] == [(42, f"Quota {key} must be greater than 0")]
    assert described["entries"] == []


@pytest.mark.parametrize("names", [("a", "b"), ("a", None), ("a", "a")])
def test_a_type_that_an_entity_has_twice_is_refused(names: tuple[str | None, ...]) -> None:
    """Kafka takes the last one."""
    parts = tuple(("user", name) for name in names)
    steps = [alter(entry(parts, **{PRODUCE: 1.0}), entry(ANNA_APP, **{PRODUCE: 1.0})), describe(("user", EXACT, "a"))]
    side = handlers()
    found = [plain(side.call(*step))["entries"] for step in steps]
    assert [row["error_code"] for row in found[0]] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert found[1] == []


def test_size_of_the_records_is_limited() -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR to the larger request."""
    side = handlers()
    long = [entry((("user", f"{number}".ljust(30_000)),), **{PRODUCE: 1.0}) for number in range(290)]
    too_large, fits = (plain(side.call(*alter(*some)))["entries"] for some in (long, long[:270]))
    assert {row["error_code"] for row in too_large} == {ErrorCode.POLICY_VIOLATION}
    assert {row["error_code"] for row in fits} == {ErrorCode.NONE}
    assert len(side.cluster.image.client_quotas) == 270


def test_other_requests_get_their_turn_while_many_quotas_are_described() -> None:
    side = handlers()
    side.call(*alter(*users(5_000, **{PRODUCE: 1.0})))
    key, version, fields = describe(("user", EXACT, "u1"))
    request = read_request(key, version, write_request(key, version, fields))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def described() -> Any:
        task = asyncio.create_task(others())
        answer: Any = side.handler(key)(RequestContext(version, 1, "test", "peer", "host", "PLAINTEXT"), request)
        found = await answer
        task.cancel()
        return found

    assert len(asyncio.run(described())["entries"]) == 1
    assert turns == 2
