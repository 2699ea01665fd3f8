"""The subjects of tests/README.md: `python -m tests.subjects WORD` prints the test modules of the subjects that contain
the word."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
PAGE: Final = TESTS / "README.md"


def subjects() -> dict[str, list[str]]:
    """The patterns of each subject."""
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+`) \|$", PAGE.read_text(), re.MULTILINE)
    return {subject: re.findall(r"`([^`]+)`", patterns) for subject, patterns in rows}


def modules_of(pattern: str) -> Iterator[Path]:
    yield from (path for path in TESTS.glob(pattern) if path.name.startswith("test_"))


def main(word: str) -> None:
    found = {
        path.relative_to(TESTS.parent)
        for subject, patterns in subjects().items()
        if word in subject
        for pattern in patterns
        for path in modules_of(pattern)
    }
    if not found:
        sys.exit(f"No subject in tests/README.md contains {word!r}.")
    print(*sorted(found))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m tests.subjects WORD, a part of a subject's name in tests/README.md")
    main(sys.argv[1])
