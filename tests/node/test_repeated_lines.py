"""Log lines that others can cause at will are limited, and none is lost."""

from __future__ import annotations

import asyncio
from typing import Any

from fenceline.node.repeated_lines import RepeatedLines, shape


class Written:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.repeated = RepeatedLines(lambda event, **fields: self.lines.append((event, fields)))


def test_equal_lines_are_written_once_and_counted() -> None:
    async def run() -> Written:
        written = Written()
        for _ in range(5):
            written.repeated.write("denied", user="a")
        written.repeated.write("denied", user="b")
        written.repeated.flush()
        written.repeated.flush()
        return written

    assert asyncio.run(run()).lines == [
        ("denied", {"user": "a"}),
        ("denied", {"user": "b"}),
        ("denied", {"user": "a", "repeated": 4}),
    ]


def test_memory_is_bounded_and_forgotten_lines_keep_their_number() -> None:
    async def run() -> Written:
        written = Written()
        for _ in range(3):
            written.repeated.write("denied", user="first")
        for number in range(2_000):
            written.repeated.write("denied", user=str(number))
        return written

    written = asyncio.run(run())
    assert ("denied", {"user": "first", "repeated": 2}) in written.lines
    assert len(written.lines) == 2_002
    assert len(written.repeated._repeats) == 1_000


def test_lines_that_count_as_equal() -> None:
    """A peer chooses what it sends, and so what the log says of it."""

    async def run() -> Written:
        written = Written()
        for size in range(5):
            reason = f"invalid request size of {size} bytes"
            written.repeated.write("closed", alike=("host", shape(reason)), peer=str(size), reason=reason)
        written.repeated.flush()
        return written

    fields = {"peer": "0", "reason": "invalid request size of 0 bytes"}
    assert asyncio.run(run()).lines == [("closed", fields), ("closed", {**fields, "repeated": 4})]


def test_shape_of_a_reason() -> None:
    assert shape("API 17 version 3 before the authentication") == "API # version # before the authentication"
    for mechanism in ("x", "it's", 'a"b', "a'\"b"):
        assert shape(f"mechanism {mechanism!r} is not enabled") == "mechanism "
