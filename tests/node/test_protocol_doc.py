"""docs/protocol.md matches the dispatch table."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

from fenceline.node.api.handlers.api_versions import api_ranges
from fenceline.node.api.tables import raw_apis
from fenceline.wire.apis import ApiKey
from tests.node.api.handlers.fakes import FakeBroker, image_of

_DOC = Path(__file__).parents[2] / "docs" / "protocol.md"
_ROW = re.compile(r"^\| (\d+) \| (\w+) \| (\d+)-(\d+) \|", re.MULTILINE)


def _spoken() -> dict[int, tuple[str, int, int]]:
    spoken = api_ranges(FakeBroker(image_of()).apis, {})
    spoken.update({key: (low, high) for key, (low, high, _) in raw_apis(Mock(), Mock()).items()})
    return {int(key): (_title(key), *versions) for key, versions in sorted(spoken.items())}


def _title(key: ApiKey) -> str:
    return "".join(word.capitalize() for word in key.name.split("_"))


def test_the_table_matches_the_dispatch_table() -> None:
    reported = {int(key): (name, int(low), int(high)) for key, name, low, high in _ROW.findall(_DOC.read_text())}
    assert reported == _spoken()
    assert list(reported) == sorted(reported)
