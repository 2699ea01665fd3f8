"""docs/configuration.md names every key that Kafka does not have, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from fenceline.config.broker import OWN_CONFIGS
from fenceline.config.topic import TOPIC_CONFIGS

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()


def _own() -> set[str]:
    return {name for name in (*OWN_CONFIGS, *TOPIC_CONFIGS) if name.startswith("fenceline.")}


def test_every_own_key_has_a_row() -> None:
    assert sorted(name for name in _own() if f"`{name}`" not in PAGE) == []


def test_every_named_key_exists() -> None:
    assert sorted(set(re.findall(r"`(fenceline\.[a-z.]+[a-z])`", PAGE)) - _own()) == []
