"""Ids that operators name in commands (`formats.md F1`)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from typer.testing import CliRunner

from fenceline import ids
from fenceline.cli.app import app
from fenceline.ids import encode_uuid, random_id


class Dashes(Random):
    """The first draws are ids whose texts start with a dash."""

    def __init__(self, count: int) -> None:
        super().__init__(7)
        self.left = count

    def getrandbits(self, k: int, /) -> int:
        drawn = super().getrandbits(k)
        if not self.left:
            return drawn
        self.left -= 1
        return int.from_bytes(b"\xf9" + drawn.to_bytes(k // 8)[1:])


def test_no_id_looks_like_an_option() -> None:
    assert encode_uuid(UUID(int=Dashes(1).getrandbits(128), version=4)).startswith("-"), "precondition of this test"
    rng = Dashes(3)
    made = random_id(rng)
    assert rng.left == 0
    assert not encode_uuid(made).startswith("-")
    assert made.version == 4


def test_every_other_id_is_possible() -> None:
    first = {encode_uuid(random_id(Random(seed)))[0] for seed in range(2000)}
    assert len(first) == 63


@pytest.mark.parametrize("dashes", [1, 2, 5])
def test_format_generates_no_such_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dashes: int) -> None:
    rng = Dashes(dashes)
    monkeypatch.setattr(ids._SYSTEM, "getrandbits", rng.getrandbits)
    done = CliRunner().invoke(app, ["format", "--data-dir", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert rng.left == 0, "not every id comes from random_id"
    meta = dict(line.split("=", 1) for line in (tmp_path / "meta.properties").read_text().splitlines() if "=" in line)
    assert not meta["cluster.id"].startswith("-")
    assert not meta["directory.id"].startswith("-")
