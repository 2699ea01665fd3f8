"""docs/protocol.md matches the dispatch table."""

from __future__ import annotations

import re
from pathlib import Path

from fenceline.node.api.fetch import fetching
from fenceline.node.api.handlers import entity_apis
from fenceline.node.api.produce import producing
from fenceline.wire.apis import ApiKey

_DOC = Path(__file__).parents[2] / "docs" / "protocol.md"
_ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \|", re.MULTILINE)


def _spoken() -> dict[int, tuple[str, int, int]]:
    spoken = {api.key: (api.min_version, api.max_version) for api in entity_apis()}
    spoken[ApiKey.PRODUCE] = (producing.MIN_VERSION, producing.MAX_VERSION)
    spoken[ApiKey.FETCH] = (fetching.MIN_VERSION, fetching.MAX_VERSION)
    spoken[ApiKey.API_VERSIONS] = (0, 4)
    return {int(key): (_title(key), *versions) for key, versions in sorted(spoken.items())}


def _title(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))


def test_the_table_matches_the_dispatch_table() -> None:
    told = {int(key): (name, int(low), int(high)) for key, name, low, high in _ROW.findall(_DOC.read_text())}
    assert told == _spoken()
    assert list(told) == sorted(told)
