"""docs/troubleshooting.md quotes messages as the code prints them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = sorted({each for each in re.findall(r"`([^`\n]+)`", PAGE) if each.count(" ") >= 2 or "{…}" in each})
COMMANDS = ("ss ", "fenceline ", "make ")
OF_THE_SYSTEM = (
    "Address already in use",
    "Cannot assign requested address",
    "No space left on device",
    "Read-only file",
)


@cache
def sources() -> str:
    text = "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    # String literals that follow each other are one.
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


@pytest.mark.parametrize("message", [each for each in QUOTED if not each.startswith(COMMANDS)])
def test_a_quoted_message_is_in_the_code(message: str) -> None:
    text = sources()
    pieces = [piece.strip(" ,:?{}") for piece in message.split("…")]
    for piece in pieces:
        if piece and not any(piece.endswith(each) or piece.startswith(each) for each in OF_THE_SYSTEM):
            assert piece in text, piece


def test_page_quotes_messages() -> None:
    assert len(QUOTED) > 30
