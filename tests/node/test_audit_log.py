"""The log of denials. Rules: security.md A52."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fenceline.node import authorizing
from fenceline.node.authorizing import AuditLog
from fenceline.security.rights import Denial

READ = Denial("User:anna", "1.2.3.4", "READ", "Topic:LITERAL:rain", "FETCH")
OF_A_NODE = Denial("User:borker", "1.2.3.5", "CLUSTER_ACTION", "Cluster:LITERAL:kafka-cluster", "VOTE")


class Lines:
    """In place of a `Logger`."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **fields: self.seen.append((level, event, fields))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    made = Lines()
    monkeypatch.setattr(authorizing, "log", made)
    return made


def told(path: Path | None, *denials: Denial) -> None:
    async def tell() -> None:
        audit = AuditLog(path)
        for denial in denials:
            audit.denied(denial)
        audit.close()

    asyncio.run(tell())


def test_equal_denials_are_one_line_and_their_number(lines: Lines) -> None:
    told(None, READ, READ, READ._replace(host="9.9.9.9"), READ)
    assert [(level, fields["host"], fields.get("repeated")) for level, _, fields in lines.seen] == [
        ("info", "1.2.3.4", None),
        ("info", "9.9.9.9", None),
        ("info", "1.2.3.4", 2),
    ]


def test_a_file_of_their_own_has_json_lines(lines: Lines, tmp_path: Path) -> None:
    told(tmp_path / "audit.log", READ)
    [line] = (tmp_path / "audit.log").read_text().splitlines()
    assert READ._asdict().items() <= json.loads(line).items()
    assert lines.seen == []


def test_a_file_that_cannot_be_written_loses_no_denial(lines: Lines, tmp_path: Path) -> None:
    told(tmp_path / "no" / "such" / "folder", READ)
    [(level, _, fields)] = lines.seen
    assert level == "error"
    assert READ._asdict().items() <= fields.items()


@pytest.mark.parametrize("has_file", [False, True])
def test_a_denied_node_is_a_warning_with_advice(lines: Lines, tmp_path: Path, has_file: bool) -> None:
    told(tmp_path / "audit.log" if has_file else None, READ, OF_A_NODE, OF_A_NODE)
    warnings = [fields for level, _, fields in lines.seen if level == "warning"]
    assert [fields["principal"] for fields in warnings] == ["User:borker"] * 2, "and how often it was repeated"
    assert "super.users" in warnings[0]["advice"]
